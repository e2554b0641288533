"""How ranges become tasks, how filters cut them, and how a limit is shared."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.model import TopicPartition
from penstock.spark.admission import Admission
from penstock.spark.filters import Bounds, push
from penstock.spark.options import Options
from penstock.spark.planning import Range, SplitRules, split

ONE, TWO = TopicPartition("a", 0), TopicPartition("a", 1)


def rules(**given: int) -> SplitRules:
    return SplitRules(**{"split_bytes": 1 << 40, "cores": 1, **given})


def test_a_range_is_cut_by_its_bytes() -> None:
    parts = split([Range(ONE, 0, 100)], {ONE: 1024.0}, rules(split_bytes=50 * 1024))
    assert parts == [Range(ONE, 0, 50), Range(ONE, 50, 100)]


def test_a_large_partition_gets_more_tasks_than_a_small_one() -> None:
    ranges = [Range(ONE, 0, 1000), Range(TWO, 0, 10)]
    parts = split(ranges, {ONE: 1e6, TWO: 1e6}, rules(split_bytes=100_000_000))
    assert [part.partition for part in parts].count(ONE) == 10
    assert [part.partition for part in parts].count(TWO) == 1


def test_there_are_as_many_tasks_as_cores_if_there_is_enough_to_read() -> None:
    large, small = {ONE: 1e6}, {ONE: 1e3}
    assert len(split([Range(ONE, 0, 1000)], large, rules(cores=8))) == 8
    assert len(split([Range(ONE, 0, 1000)], small, rules(cores=8))) == 1


def test_a_task_reads_no_more_records_than_asked() -> None:
    parts = split([Range(ONE, 0, 1001)], {}, rules(records_max=100))
    assert len(parts) == 11
    assert max(part.offsets for part in parts) <= 100


def test_empty_ranges_need_no_task() -> None:
    assert split([Range(ONE, 5, 5), Range(TWO, 9, 3)], {}, rules(tasks_min=4)) == []


@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=6),
    tasks=st.integers(1, 40),
    split_bytes=st.integers(1, 100_000),
)
def test_splits_cover_each_offset_once(sizes: list[int], tasks: int, split_bytes: int) -> None:
    ranges = [Range(TopicPartition("a", n), 7, 7 + size) for n, size in enumerate(sizes)]
    per_offset = {one.partition: 10.0 for one in ranges}
    parts = split(ranges, per_offset, rules(tasks_min=tasks, split_bytes=split_bytes, cores=3))
    for one in ranges:
        mine = [part for part in parts if part.partition == one.partition]
        assert [o for part in mine for o in range(part.start, part.end)] == list(
            range(one.start, one.end)
        )
        assert all(part.offsets > 0 for part in mine)
    assert len(parts) >= min(tasks, sum(sizes))


T = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
T_MS = int(T.timestamp() * 1000)


@pytest.mark.parametrize(
    ("item", "bounds"),
    [
        (EqualTo(("topic",), "a"), Bounds(topics=frozenset({"a"}))),
        (In(("topic",), ("a", "b")), Bounds(topics=frozenset({"a", "b"}))),
        (EqualTo(("partition",), 1), Bounds(partition_min=1, partition_max=1)),
        (In(("partition",), (0, 2)), Bounds(partitions=frozenset({0, 2}))),
        (GreaterThan(("offset",), 5), Bounds(offset_min=6)),
        (GreaterThanOrEqual(("offset",), 5), Bounds(offset_min=5)),
        (LessThan(("offset",), 5), Bounds(offset_max=4)),
        (LessThanOrEqual(("offset",), 5), Bounds(offset_max=5)),
        (IsNotNull(("offset",)), Bounds()),
    ],
)
def test_filters_on_where_a_record_lies_are_done_with(item: Filter, bounds: Bounds) -> None:
    assert push([item]) == (bounds, [])


@pytest.mark.parametrize("kind", [GreaterThan, GreaterThanOrEqual, EqualTo])
def test_a_lower_bound_of_time_is_a_seek_and_is_looked_at_again(kind: type[Filter]) -> None:
    item = kind(("timestamp",), T + datetime.timedelta(microseconds=1))  # type: ignore[call-arg]
    assert push([item]) == (Bounds(timestamp_ms_min=T_MS), [item])


@pytest.mark.parametrize(
    "item",
    [
        LessThan(("timestamp",), T),
        LessThanOrEqual(("timestamp",), T),
        Not(EqualTo(("partition",), 1)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("partition",), None),
        In(("partition",), (1, None)),
        IsNotNull(("key",)),
    ],
)
def test_other_filters_are_left_to_spark(item: Filter) -> None:
    assert push([item]) == (Bounds(), [item])


def test_several_filters_leave_what_passes_all() -> None:
    bounds, left = push(
        [GreaterThan(("offset",), 5), GreaterThan(("offset",), 9), LessThan(("offset",), 20),
         In(("topic",), ("a", "b")), EqualTo(("topic",), "b")]
    )  # fmt: skip
    assert left == []
    assert bounds.cut(0, 100) == (10, 20)
    assert bounds.admits(TopicPartition("b", 0))
    assert not bounds.admits(TopicPartition("a", 0))


def admission(clock: Callable[[], float] = lambda: 0.0, **given: str) -> Admission:
    return Admission(Options({"bootstrap.servers": "a:1", **given}, "stream"), clock)


def test_a_limit_is_shared_by_what_each_partition_has() -> None:
    ends = {ONE: 900, TWO: 100}
    starts = {ONE: 0, TWO: 0}
    got = admission().end_of_batch(starts, ends, ReadMaxRows(100), may_wait=True)
    assert got == {ONE: 90, TWO: 10}


def test_a_small_partition_is_not_starved() -> None:
    got = admission().end_of_batch(
        {ONE: 0, TWO: 0}, {ONE: 1_000_000, TWO: 1}, ReadMaxRows(10), may_wait=True
    )
    assert got == {ONE: 9, TWO: 1}


def test_read_all_available_goes_before_every_limit() -> None:
    one = admission(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="5")
    ends = {ONE: 3}
    assert one.end_of_batch({ONE: 0}, ends, ReadAllAvailable(), may_wait=True) == ends


def test_a_batch_waits_for_its_least_but_not_longer_than_the_delay() -> None:
    now = 1_000.0
    given = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "20", "maxTriggerDelay": "60s"}
    one = admission(lambda: now, **given)
    limit = one.default_limit()
    assert limit == ReadMaxRows(20)
    start = {ONE: 0}
    assert one.end_of_batch(start, {ONE: 1}, limit, may_wait=True) == {ONE: 1}, "the first"
    assert one.end_of_batch(start, {ONE: 9}, limit, may_wait=True) is None
    assert one.end_of_batch(start, {ONE: 9}, limit, may_wait=False) == {ONE: 9}, "AvailableNow"
    assert one.end_of_batch(start, {ONE: 50}, limit, may_wait=True) == {ONE: 20}
    now += 59
    assert one.end_of_batch(start, {ONE: 9}, limit, may_wait=True) is None
    now += 1
    assert one.end_of_batch(start, {ONE: 9}, limit, may_wait=True) == {ONE: 9}
