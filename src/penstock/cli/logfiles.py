"""The log files that `penstock log` works on."""

from __future__ import annotations

import contextlib
import fcntl
import json as jsonlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli import output
from penstock.cli.failure import CommandError
from penstock.cli.recordtext import described, printable
from penstock.cli.values import iso, topic_partitions
from penstock.errors import PenstockError
from penstock.log import inspect
from penstock.log.inspect import Progress, Report
from penstock.log.scan import Damage, ScannedBatch
from penstock.log.segment import LOG_SUFFIX
from penstock.log.store import OWN_DIRECTORY
from penstock.records.decode import Record, records_of

_SEGMENT: Final = re.compile(r"\d{20}" + re.escape(LOG_SUFFIX))


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition's directory."""

    topic: str
    number: int
    directory: str


def find(directory: str, topics: Sequence[str] | None) -> list[Partition]:
    """The partitions in a data directory, or the one that `directory` is; only the chosen ones."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise CommandError(f"Cannot read {directory}: {error.strerror}.") from None
    if any(_SEGMENT.fullmatch(name) for name in names):
        path = os.path.abspath(directory)
        name = os.path.basename(path)
        number = int(name) if name.isdigit() else 0
        found = [Partition(os.path.basename(os.path.dirname(path)), number, directory)]
    else:
        found = [Partition(*where, path) for where, path in inspect.find_logs(directory)]
    if topics:
        chosen = topic_partitions(topics)
        found = [item for item in found if _is_chosen(item, chosen)]
    if not found:
        wanted = f" of {', '.join(topics)}" if topics else ""
        raise CommandError(
            f"There are no partitions{wanted} in {directory}.",
            "Name the directory that `penstock serve --data-dir` uses.",
        )
    return found


def _is_chosen(partition: Partition, chosen: dict[str, set[int] | None]) -> bool:
    if partition.topic not in chosen:
        return False
    numbers = chosen[partition.topic]
    return numbers is None or partition.number in numbers


def check(partitions: list[Partition]) -> list[tuple[Partition, Report]]:
    """Verify each one, with a progress display."""
    return _each(partitions, inspect.verify, "checking")


def mend(partitions: list[Partition]) -> list[tuple[Partition, Report]]:
    """Repair each one, with a progress display."""
    return _each(partitions, inspect.repair, "mending")


def _each(
    partitions: list[Partition], work: Callable[[str, Progress], Report], verb: str
) -> list[tuple[Partition, Report]]:
    total = sum(inspect.size_of(item.directory) for item in partitions)
    done = 0
    with output.Progress(
        f"{verb} {output.count(len(partitions), 'partition')}", total, unit_bytes=True
    ) as progress:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress.update(done)

        return [(item, work(item.directory, advance)) for item in partitions]


@contextlib.contextmanager
def exclusive(directory: str) -> Iterator[None]:
    """Keep brokers out of the data directory, or fail because one is in it."""
    lock = os.path.join(directory, OWN_DIRECTORY, "lock")
    if not os.path.exists(lock):  # one partition's directory: its data directory is two above
        lock = os.path.join(directory, "..", "..", OWN_DIRECTORY, "lock")
    if not os.path.exists(lock):
        yield
        return
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandError(
                f"A broker is using {directory}.", "Stop it first, then repair."
            ) from None
        yield


def show_batches(partition: Partition, *, records: bool, json: bool) -> None:
    """Print the batches of a partition as they lie on disk."""
    show = _print_json if json else _print_text
    for path, found in inspect.batches(partition.directory):
        if isinstance(found, Damage):
            show(partition, "damage", _damage(path, found))
            continue
        show(partition, "batch", _batch(path, found))
        if records:
            for record in _records(path, found):
                show(partition, "record", record)


def _batch(path: str, found: ScannedBatch) -> dict[str, Any]:
    header = found.header
    return {
        "file": os.path.basename(path),
        "position": found.position,
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size_bytes,
        "compression": header.compression,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "first_sequence": header.base_sequence,
    }


def _damage(path: str, found: Damage) -> dict[str, Any]:
    return {
        "file": os.path.basename(path),
        "position": found.position,
        "end": found.end,
        "reason": found.reason,
        "torn_tail": found.is_torn_tail,
    }


def _records(path: str, found: ScannedBatch) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        data = os.pread(file.fileno(), found.header.size_bytes, found.position)
    try:
        for record in records_of(data):
            yield _record(record)
    except PenstockError as error:
        raise CommandError(f"{path} at byte {found.position}: {error}.") from error


def _record(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **described("key", record.key),
        **described("value", record.value),
        "headers": [{"key": name, **described("value", value)} for name, value in record.headers],
    }


def _print_json(partition: Partition, kind: str, fields: dict[str, Any]) -> None:
    place = {"kind": kind, "topic": partition.topic, "partition": partition.number}
    output.line(jsonlib.dumps({**place, **fields}, ensure_ascii=False))


def _print_text(partition: Partition, kind: str, fields: dict[str, Any]) -> None:
    where = f"{partition.topic}:{partition.number}"
    if kind == "batch":
        output.line(
            f"{where} {fields['file']} at {fields['position']}: "
            f"offsets {fields['first_offset']} to {fields['last_offset']}, "
            f"{output.count(fields['records'], 'record')}, {fields['bytes']} bytes, {fields['compression']}, "
            f"up to {iso(fields['max_timestamp'])}"
            + (
                f", producer {fields['producer_id']}/{fields['producer_epoch']} "
                f"from {fields['first_sequence']}"
                if fields["producer_id"] >= 0
                else ""
            )
        )
    elif kind == "damage":
        tail = " (a torn tail)" if fields["torn_tail"] else ""
        output.line(
            f"{where} {fields['file']} at {fields['position']}: DAMAGED up to byte "
            f"{fields['end']}: {fields['reason']}{tail}"
        )
    else:
        output.line(
            f"    {fields['offset']} {iso(fields['timestamp'])} "
            f"{_text(fields, 'key')} {_text(fields, 'value')}"
        )


def _text(fields: dict[str, Any], name: str) -> str:
    text = fields.get(name, fields.get(f"{name}_base64"))
    return "null" if text is None else printable(text)
