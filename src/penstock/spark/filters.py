"""Filters of a query that decide which partitions and offsets are read at all.

Filters on `topic`, `partition` and `offset` are facts about where a record lies, so they are done with when
the ranges are cut. A lower bound of `timestamp` is a seek: everything before the first record that late is
earlier. An upper bound is none: timestamps come from producers and may go back, so an early record can
follow late ones. What was only used to seek is returned to Spark, which looks at every row again.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.model import TopicPartition

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NEVER_NULL = {"topic", "partition", "offset"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the filters leave: records with all of these hold, others do not matter."""

    topics: frozenset[str] | None = None  # None: any
    partitions: frozenset[int] | None = None
    partition_min: int | None = None
    partition_max: int | None = None
    offset_min: int | None = None
    offset_max: int | None = None  # inclusive
    timestamp_ms_min: int | None = None

    def admits(self, partition: TopicPartition) -> bool:
        """Whether any record of this partition can pass."""
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and (self.partition_min is None or partition.partition >= self.partition_min)
            and (self.partition_max is None or partition.partition <= self.partition_max)
        )

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that can pass; empty if the start is not before the end."""
        if self.offset_min is not None:
            start = max(start, self.offset_min)
        if self.offset_max is not None:
            end = min(end, self.offset_max + 1)
        return start, end


def push(filters: Iterable[Filter]) -> tuple[Bounds, list[Filter]]:
    """The bounds that these filters come to, and those of them that Spark must still look at."""
    bounds, left = Bounds(), []
    for item in filters:
        narrowed, done = _narrow(bounds, item)
        bounds = narrowed or bounds
        if not done:
            left.append(item)
    return bounds, left


def _narrow(bounds: Bounds, item: Filter) -> tuple[Bounds | None, bool]:
    """The bounds with this filter, if it is one that bounds; and whether nothing of it is left."""
    path: tuple[str, ...] = getattr(item, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if isinstance(item, IsNotNull):
        return None, column in _NEVER_NULL
    value = getattr(item, "value", None)
    if column == "topic":
        narrowed = _narrow_topic(bounds, item, value)
    elif column == "partition":
        narrowed = _narrow_partition(bounds, item, value)
    elif column == "offset":
        narrowed = _narrow_offset(bounds, item, value)
    elif column == "timestamp":
        return _narrow_timestamp(bounds, item, value), False
    else:
        return None, False
    return narrowed, narrowed is not None


def _narrow_topic(bounds: Bounds, item: Filter, value: Any) -> Bounds | None:
    if isinstance(item, EqualTo | EqualNullSafe) and isinstance(value, str):
        names = frozenset({value})
    elif isinstance(item, In) and all(isinstance(one, str) for one in value):
        names = frozenset(value)
    else:
        return None
    return replace(bounds, topics=names if bounds.topics is None else bounds.topics & names)


def _narrow_partition(bounds: Bounds, item: Filter, value: Any) -> Bounds | None:
    if isinstance(item, In):
        if not all(type(one) is int for one in value):
            return None
        numbers = frozenset(value)
        return replace(
            bounds, partitions=numbers if bounds.partitions is None else bounds.partitions & numbers
        )
    limits = _limits(item, value)
    if limits is None:
        return None
    return replace(
        bounds,
        partition_min=_larger(bounds.partition_min, limits[0]),
        partition_max=_smaller(bounds.partition_max, limits[1]),
    )


def _narrow_offset(bounds: Bounds, item: Filter, value: Any) -> Bounds | None:
    limits = _limits(item, value)
    if limits is None:
        return None
    return replace(
        bounds,
        offset_min=_larger(bounds.offset_min, limits[0]),
        offset_max=_smaller(bounds.offset_max, limits[1]),
    )


def _narrow_timestamp(bounds: Bounds, item: Filter, value: Any) -> Bounds | None:
    """Records have whole milliseconds: whatever is later than 5.2 ms is at 5 ms or later, to be safe."""
    lower = isinstance(item, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe)
    if not lower or not isinstance(value, datetime.datetime):
        return None
    # The session's own time zone has no say in an instant; a naive time is one of this machine's zone.
    since = value.astimezone(datetime.UTC) - _EPOCH
    milliseconds = since // datetime.timedelta(milliseconds=1)
    return replace(bounds, timestamp_ms_min=_larger(bounds.timestamp_ms_min, milliseconds))


def _limits(item: Filter, value: Any) -> tuple[int | None, int | None] | None:
    """The least and the greatest whole number that pass this filter."""
    if type(value) is not int:
        return None
    if isinstance(item, EqualTo | EqualNullSafe):
        return value, value
    if isinstance(item, GreaterThan):
        return value + 1, None
    if isinstance(item, GreaterThanOrEqual):
        return value, None
    if isinstance(item, LessThan):
        return None, value - 1
    if isinstance(item, LessThanOrEqual):
        return None, value
    return None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((x for x in (one, other) if x is not None), default=None)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((x for x in (one, other) if x is not None), default=None)
