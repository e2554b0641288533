"""The batch reader: where each partition starts and ends is decided once, when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.model import TopicPartition
from penstock.spark.connecting import ClusterSettings
from penstock.spark.errors import OptionError
from penstock.spark.filters import Bounds, push
from penstock.spark.loss import Gap, report
from penstock.spark.offsets import Offsets, check_order, ending_position, starting_position
from penstock.spark.options import Options
from penstock.spark.planning import Range, Sizes, SplitRules, split
from penstock.spark.reading import ReadSettings, Split, read_split
from penstock.spark.schema import check_read_schema
from penstock.spark.subscription import Resolver, Subscription, named_in
from penstock.spark.worker import Travels

if TYPE_CHECKING:
    import pyarrow as pa


class PenstockReader(Travels, DataSourceReader):
    """Reads what is in the topics between two positions."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_read_schema(schema)
        self._cluster = ClusterSettings.from_options(options)
        self._subscription = Subscription.from_options(options)
        self._start = starting_position(options, stream=False)
        self._end = ending_position(options)
        check_order(self._start, self._end)
        self._on_no_match: str = options["startingOffsetsByTimestampStrategy"]
        self._rules = SplitRules.from_options(options)
        self._settings = ReadSettings.from_options(options, schema)
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. One that reads nothing stands for an empty read: Spark wants at least one."""
        with self._cluster.connect() as cluster:
            resolver = Resolver(
                cluster, committed=self._settings.committed, on_no_match=self._on_no_match
            )
            partitions = self._subscription.existing_partitions(cluster)
            starts = resolver.resolve(self._start, partitions, "starting")
            ends = resolver.resolve(self._end, partitions, "ending")
            wanted = [one for one in partitions if self._bounds.admits(one)]
            earliest, latest = resolver.earliest(wanted), resolver.latest(wanted)
            ranges = self._ranges(resolver, wanted, starts, ends)
            ranges = [self._checked(one, earliest, latest) for one in ranges]
            per_offset = Sizes().bytes_per_offset(cluster, earliest, latest)
        tasks = split(ranges, per_offset, self._rules)
        return [Split(one) for one in tasks] or [Split(None)]

    def _ranges(
        self, resolver: Resolver, wanted: list[TopicPartition], starts: Offsets, ends: Offsets
    ) -> list[Range]:
        since = self._bounds.timestamp_ms_min
        late = resolver.since(wanted, since) if since is not None else {}
        ranges = []
        for one in wanted:
            if starts[one] > ends[one]:
                raise OptionError(f"{one}: the start {starts[one]} is after the end {ends[one]}")
            start, end = self._bounds.cut(max(starts[one], late.get(one, 0)), ends[one])
            ranges.append(Range(one, start, max(start, end)))
        return ranges

    def _checked(self, one: Range, earliest: Offsets, latest: Offsets) -> Range:
        """The part of a range that is in the log; what is not is data loss, if its offset was named."""
        first, last = earliest[one.partition], latest[one.partition]
        fail = self._settings.fail_on_data_loss
        start, end = one.start, one.end
        if start < min(first, end):
            if one.partition in named_in(self._start):
                lost = Gap(one.partition, start, min(first, end), f"the log begins at {first}")
                report(lost, fail=fail)
            start = min(first, end)
        if end > last and end > start:
            report(Gap(one.partition, max(start, last), end, f"the log ends at {last}"), fail=fail)
            end = max(start, last)
        return Range(one.partition, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self._cluster, self._settings, partition)


class PenstockFilteringReader(PenstockReader):
    """The same, asked by Spark which filters it can do without reading."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds, left = push(filters)
        return left
