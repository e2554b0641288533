"""Holds the history of a run against what was promised, and names every promise that was broken.

    check(history)        # [] or violations, each with a partition and an offset to look around

Everything is looked at once; a run of a million records takes seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from tests.chaos.history import (
    NO_EPOCH,
    NO_OFFSET,
    Batch,
    Committed,
    History,
    Outcome,
    Processed,
    Seen,
    Sent,
    Started,
    Value,
)

__all__ = ["Kind", "Violation", "around", "check"]


class Kind(Enum):
    """The promises, by how they are broken."""

    LOST = "an acknowledged record is not in the log"
    MOVED = "an acknowledged record is not where it was acknowledged"
    REPEATED = "a record is in the log more than once"
    REORDERED = "records of one producer are out of order"
    INVENTED = "a record is in the log that nobody sent there"
    REFUSED_BUT_THERE = "a record is in the log though its producer was told that it is not"
    GAP = "the log's offsets have a gap or repeat"
    VANISHED = "a reader saw a record where the log now ends before"
    CHANGED = "a reader saw another record at this offset"
    SKIPPED = "a reader was led past a record"
    EPOCH_BACK = "an older epoch follows a newer one"
    TWO_LEADERS = "two leaders in one epoch"
    COMMIT_BACK = "a group's committed offset went back"
    COMMIT_SKIPPED = "a group has committed what none of its members had"
    DISKS_DIFFER = "replicas hold different bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise, and where to look."""

    kind: Kind
    partition: int
    offset: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: partition {self.partition}, offset {self.offset}: {self.detail}"


def check(history: History) -> list[Violation]:
    """Every broken promise, the same one many times if it was."""
    return [
        *_check_logs(history),
        *_check_sent(history),
        *_check_readers(history),
        *_check_epochs(history),
        *_check_group(history),
        *_check_disks(history.disks),
    ]


# -- the logs -------------------------------------------------------------------------------------


def _check_logs(history: History) -> Iterator[Violation]:
    """Offsets without gaps; each record once, where it was sent, in its producer's order."""
    sent_to: dict[Value, int] = {sent.value: sent.partition for sent in history.sent}
    found: dict[Value, tuple[int, int]] = {}
    for partition, records in history.final.items():
        last: dict[str, Seen] = {}
        for expected, record in enumerate(records, start=records[0].offset if records else 0):
            if record.offset != expected:
                yield _at(Kind.GAP, record, f"{expected} was to come")
                break
        for record in records:
            if sent_to.get(record.value) != partition:
                yield _at(Kind.INVENTED, record, f"{record.value}")
                continue
            first = found.setdefault(record.value, (partition, record.offset))
            if first != (partition, record.offset):
                yield _at(Kind.REPEATED, record, f"{record.value} is at {first[1]}, too")
                continue
            before = last.get(record.value.producer)
            if (
                before is not None
                and before.value.sequence > record.value.sequence
                and record.value.producer not in history.unordered
            ):
                yield _at(Kind.REORDERED, record, f"{record.value} behind {before}")
            last[record.value.producer] = record


def _check_sent(history: History) -> Iterator[Violation]:
    """What was acknowledged is there, at its offset; what was refused is not."""
    offsets: dict[Value, int] = {}
    for records in history.final.values():
        for record in records:
            offsets.setdefault(record.value, record.offset)
    for sent in history.sent:
        there = offsets.get(sent.value)
        if sent.outcome is Outcome.ACKNOWLEDGED:
            if there is None:
                yield _of(Kind.LOST, sent, sent.offset)
            elif sent.offset not in (NO_OFFSET, there):
                yield _of(Kind.MOVED, sent, there)
        elif sent.outcome is Outcome.REFUSED and there is not None:
            yield _of(Kind.REFUSED_BUT_THERE, sent, there)


# -- readers --------------------------------------------------------------------------------------


def _check_readers(history: History) -> Iterator[Violation]:
    """What was seen once stays for ever, and a reader passes no record by."""
    held = {
        partition: {record.offset: record for record in records}
        for partition, records in history.final.items()
    }
    for reader, losses in history.positions_lost.items():
        asked = history.epochs_asked.get(reader, frozenset())
        for lost in losses:
            # librdkafka asks where an epoch ended, and goes on to read what was on its way already. What it
            # has then may be of a later epoch, which nobody was asked for: the answer is about another.
            if lost.epoch == NO_EPOCH or (lost.partition, lost.epoch) in asked:
                detail = f"{reader} was told: {lost.text}"
                yield Violation(
                    kind=Kind.VANISHED, partition=lost.partition, offset=NO_OFFSET, detail=detail
                )
    for reader, seen in history.seen.items():
        expected: dict[int, int] = {}
        for record in seen:
            stays = held.get(record.partition, {}).get(record.offset)
            if stays is None:
                yield _at(Kind.VANISHED, record, f"{reader} saw {record.value}")
            elif stays.value != record.value:
                detail = f"{reader} saw {record.value}, there is {stays.value}"
                yield _at(Kind.CHANGED, record, detail)
            elif NO_EPOCH not in (record.epoch, stays.epoch) and record.epoch != stays.epoch:
                detail = f"{reader} saw it of epoch {record.epoch}, there it is of {stays.epoch}"
                yield _at(Kind.CHANGED, record, detail)
            wanted = expected.get(record.partition, record.offset)
            if record.offset != wanted:
                yield _at(Kind.SKIPPED, record, f"{reader} was to see {wanted} next")
            expected[record.partition] = record.offset + 1


# -- epochs ---------------------------------------------------------------------------------------


def _check_epochs(history: History) -> Iterator[Violation]:
    """One leader for each epoch of a partition, and epochs that only grow along the log."""
    leaders: dict[tuple[int, int], int] = {}
    for told in history.told:
        first = leaders.setdefault((told.partition, told.epoch), told.leader)
        if first != told.leader:
            yield Violation(
                kind=Kind.TWO_LEADERS,
                partition=told.partition,
                offset=NO_OFFSET,
                detail=f"epoch {told.epoch} was led by {first} and, says {told.by}, {told.leader}",
            )
    for records in history.final.values():
        for before, record in pairwise(records):
            if record.epoch < before.epoch:
                yield _at(Kind.EPOCH_BACK, record, f"epoch {record.epoch} after {before.epoch}")


# -- the group ------------------------------------------------------------------------------------


def _check_group(history: History) -> Iterator[Violation]:
    """Commits never go back, and cover only what a member had."""
    highest: defaultdict[int, int] = defaultdict(int)
    had: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for member, events in history.group.items():
        position: dict[int, int] = {}
        for event in events:
            match event:
                case Started(partition, offset, before):
                    position[partition] = offset
                    if offset < before:
                        yield _group(Kind.COMMIT_BACK, event, member, f"{before} was answered")
                case Processed(partition, first, end):
                    if first != position.get(partition, first):
                        wanted = position[partition]
                        yield _group(Kind.COMMIT_SKIPPED, event, member, f"{wanted} was next")
                    position[partition] = end
                    had[partition].append((first, end))
                case Committed(partition, offset):
                    highest[partition] = max(highest[partition], offset)
    for partition, end in history.group_end.items():
        if end < highest[partition]:
            yield _group_end(Kind.COMMIT_BACK, partition, end, f"{highest[partition]} was answered")
        hole = _first_hole(had[partition])
        if hole < end:
            yield _group_end(Kind.COMMIT_SKIPPED, partition, end, f"nobody had {hole}")


def _first_hole(ranges: list[tuple[int, int]]) -> int:
    """The first offset from 0 on that no range covers."""
    reached = 0
    for first, end in sorted(ranges):
        if first > reached:
            break
        reached = max(reached, end)
    return reached


# -- the disks ------------------------------------------------------------------------------------


def _check_disks(disks: Mapping[int, Mapping[int, Sequence[Batch]]]) -> Iterator[Violation]:
    """Replicas at rest hold the same bytes, from where the shortest begins."""
    for partition, replicas in disks.items():
        if not replicas:
            continue
        reference = min(replicas)
        expected = _by_offset(replicas[reference])
        for broker, batches in replicas.items():
            found = _by_offset(batches)
            start = max(min(found, default=0), min(expected, default=0))
            for offset in sorted(set(found) | set(expected)):
                if offset >= start and found.get(offset) != expected.get(offset):
                    yield Violation(
                        kind=Kind.DISKS_DIFFER,
                        partition=partition,
                        offset=offset,
                        detail=f"broker {broker} has {_brief(found.get(offset))}, "
                        f"broker {reference} {_brief(expected.get(offset))}",
                    )
                    break  # whatever follows differs, too


def _by_offset(batches: Sequence[Batch]) -> dict[int, Batch]:
    return {batch.base_offset: batch for batch in batches}


def _brief(batch: Batch | None) -> str:
    if batch is None:
        return "nothing"
    return f"[{batch.base_offset}, {batch.end_offset}) of epoch {batch.epoch}"


# -- words ----------------------------------------------------------------------------------------


def around(history: History, violation: Violation, *, records: int = 5) -> str:
    """What everybody has to say of the place where a promise was broken."""
    low, high = violation.offset - records, violation.offset + records
    lines = [str(violation), "  the log:"]
    final = history.final.get(violation.partition, ())
    lines += [f"    {_line(record)}" for record in final if low <= record.offset <= high]
    lines.append("  acknowledged:")
    lines += [
        f"    {sent.offset:>8} {sent.value.producer}:{sent.value.sequence}"
        for sent in history.sent
        if sent.partition == violation.partition and low <= sent.offset <= high
    ]
    for reader, seen in history.seen.items():
        lines.append(f"  {reader} read:")
        lines += [
            f"    {_line(record)}"
            for record in seen
            if record.partition == violation.partition and low <= record.offset <= high
        ]
    lines.append("  leaders:")
    told = sorted({(t.epoch, t.leader) for t in history.told if t.partition == violation.partition})
    lines += [f"    epoch {epoch}: broker {leader}" for epoch, leader in told]
    return "\n".join(lines)


def _line(record: Seen) -> str:
    value = f"{record.value.producer}:{record.value.sequence}"
    return f"{record.offset:>8} {value} of epoch {record.epoch}"


def _at(kind: Kind, record: Seen, detail: str) -> Violation:
    return Violation(kind=kind, partition=record.partition, offset=record.offset, detail=detail)


def _of(kind: Kind, sent: Sent, offset: int) -> Violation:
    return Violation(kind=kind, partition=sent.partition, offset=offset, detail=f"{sent}")


def _group(kind: Kind, event: Started | Processed, member: str, detail: str) -> Violation:
    return Violation(
        kind=kind, partition=event.partition, offset=event[1], detail=f"{member}: {event}; {detail}"
    )


def _group_end(kind: Kind, partition: int, offset: int, detail: str) -> Violation:
    return Violation(kind=kind, partition=partition, offset=offset, detail=f"in the end; {detail}")
