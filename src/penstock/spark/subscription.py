"""Which partitions a query reads, and at which offsets a position lies right now."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.client.cluster import Cluster
from penstock.model import TopicPartition
from penstock.spark.errors import MissingTopicError, OptionError
from penstock.spark.offsets import (
    EARLIEST,
    LATEST,
    Ago,
    BeforeEnd,
    ByPartition,
    ByTimestamp,
    Everywhere,
    Offsets,
    Position,
    parse_assignment,
)
from penstock.spark.options import Options


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a query asked to read: exactly one of topics, a pattern, or partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    @classmethod
    def from_options(cls, options: Options) -> Subscription:
        names = ("subscribe", "subscribePattern", "assign")
        given = [name for name in names if options[name] is not None]
        if len(given) != 1:
            problem = f"not {' and '.join(given)}" if given else "none is given"
            raise OptionError(f"set exactly one of {', '.join(names)}; {problem}")
        if given == ["assign"]:
            return cls(assigned=tuple(parse_assignment(options["assign"])))
        if given == ["subscribePattern"]:
            return cls(pattern=_checked_pattern(options["subscribePattern"]))
        topics = [name.strip() for name in options["subscribe"].split(",")]
        topics = list(dict.fromkeys(name for name in topics if name))
        if not topics:
            raise OptionError(f"subscribe = {options['subscribe']!r}: names no topic")
        return cls(topics=tuple(topics))

    def __str__(self) -> str:
        """A short name of it, for the group's name."""
        if self.assigned:
            return ",".join(dict.fromkeys(partition.topic for partition in self.assigned))
        return self.pattern or ",".join(self.topics)

    def partitions(self, cluster: Cluster) -> tuple[list[TopicPartition], list[str]]:
        """The partitions that are there now, and what was named but is not there."""
        if self.pattern is not None:
            match = re.compile(self.pattern).fullmatch
            counts = cluster.partitions([name for name in cluster.topics() if match(name)])
            return _expand(counts), []
        if self.assigned:
            counts = cluster.partitions({partition.topic for partition in self.assigned})
            there = [one for one in self.assigned if one.partition < (counts.get(one.topic) or 0)]
            return there, [str(one) for one in self.assigned if one not in set(there)]
        counts = cluster.partitions(self.topics)
        return _expand(counts), [name for name in self.topics if counts.get(name) is None]

    def existing_partitions(self, cluster: Cluster) -> list[TopicPartition]:
        """The partitions that are there; `MissingTopicError` if one that was named is not."""
        partitions, missing = self.partitions(cluster)
        if missing:
            kind = "partition" if self.assigned else "topic"
            raise MissingTopicError(f"there is no {kind} {', '.join(missing)}; create it first")
        return partitions


def _checked_pattern(pattern: str) -> str:
    if not pattern:
        raise OptionError("subscribePattern is empty")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"subscribePattern = {pattern!r}: {error}") from None
    return pattern


def _expand(counts: dict[str, int | None]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in sorted(counts)
        for number in range(counts[topic] or 0)
    ]


class Resolver:
    """Finds the offsets of positions. `edge` is what a position is for: a start or an end."""

    def __init__(self, cluster: Cluster, *, committed: bool, on_no_match: str = "error") -> None:
        self._cluster = cluster
        self._committed = committed  # the end of a log is where open transactions begin
        self._on_no_match = on_no_match  # "error" or "latest": a start later than any record

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._ask(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._ask(dict.fromkeys(partitions, LATEST))

    def uncommitted_latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends of logs, with the records of transactions that are still open."""
        return self._ask(dict.fromkeys(partitions, LATEST), committed=False)

    def since(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> Offsets:
        """The first record that late in each partition, or its end."""
        wanted = dict.fromkeys(partitions, max(timestamp_ms, 0))
        return self._first_since(wanted, edge="ending")

    def resolve(
        self,
        position: Position,
        partitions: Collection[TopicPartition],
        edge: Literal["starting", "ending"],
    ) -> Offsets:
        """The offset of this position in each partition. A named offset is taken as it is."""
        match position:
            case Everywhere(at):
                return self._ask(dict.fromkeys(partitions, at))
            case ByPartition(offsets):
                _check_same(offsets.keys(), partitions, f"{edge}Offsets")
                special = {one: at for one, at in offsets.items() if at < 0}
                return {**offsets, **self._ask(special)}
            case ByTimestamp(timestamps):
                if isinstance(timestamps, int):
                    return self._first_since(dict.fromkeys(partitions, timestamps), edge)
                _check_same(timestamps.keys(), partitions, f"{edge}OffsetsByTimestamp")
                return self._first_since(dict(timestamps), edge)
            case Ago(milliseconds):
                return self.since(partitions, int(time.time() * 1000) - milliseconds)
            case BeforeEnd(count):
                earliest, latest = self.earliest(partitions), self.latest(partitions)
                return {one: max(latest[one] - count, earliest[one]) for one in partitions}

    def _first_since(self, wanted: Offsets, edge: str) -> Offsets:
        # Before the times are looked up: a record that comes meanwhile is found, or behind the end.
        ends = self.latest(wanted)
        found = self._cluster.offsets(wanted, committed=self._committed)
        unmatched = [one for one in wanted if found.get(one) is None]
        if unmatched and edge == "starting" and self._on_no_match == "error":
            one = unmatched[0]
            raise OptionError(
                f"{one} has no record with timestamp {wanted[one]} or later; "
                "startingOffsetsByTimestampStrategy = latest would start at its end"
            )
        return {one: _known(one, found.get(one), ends) for one in wanted}

    def _ask(self, wanted: Offsets, *, committed: bool | None = None) -> Offsets:
        committed = self._committed if committed is None else committed
        found = self._cluster.offsets(wanted, committed=committed) if wanted else {}
        return {one: _known(one, offset, {}) for one, offset in found.items()}


def named_in(position: Position) -> Collection[TopicPartition]:
    """The partitions whose offset the user named. Others are wherever the logs put them."""
    if not isinstance(position, ByPartition):
        return ()
    return {one for one, offset in position.offsets.items() if offset >= 0}


def _known(partition: TopicPartition, offset: int | None, otherwise: Offsets) -> int:
    if offset is None:
        offset = otherwise.get(partition)
    assert offset is not None, f"no broker said where {partition} starts and ends"
    return offset


def _check_same(
    named: Collection[TopicPartition], there: Collection[TopicPartition], option: str
) -> None:
    missing, extra = set(there) - set(named), set(named) - set(there)
    if missing:
        names = ", ".join(str(one) for one in sorted(missing))
        raise OptionError(f"{option} must name every partition that is read; {names} is not in it")
    if extra:
        names = ", ".join(str(one) for one in sorted(extra))
        raise OptionError(f"{option} names {names}, which is not read or not there")
