"""A task's read: fetch, decode, hand Arrow batches to Spark. Runs in an executor's Python worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.client.errors import LogEndsEarly, OffsetOutOfRange, UnknownTopic
from penstock.model import TopicPartition
from penstock.spark.connecting import ClusterSettings
from penstock.spark.loss import Gap, report
from penstock.spark.options import Options
from penstock.spark.planning import Range
from penstock.spark.worker import keep_memory, settle

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.fetching import Isolation, RangeReader
    from penstock.records.arrow.decoding import Collector, Decoded


_GONE: Final = (OffsetOutOfRange, UnknownTopic, LogEndsEarly)


class Split(InputPartition):
    """What one task reads. None: nothing."""

    def __init__(self, range_: Range | None) -> None:
        super().__init__(range_)
        self.range = range_


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What all tasks of a query share; it travels with them."""

    schema: StructType
    fetch_bytes: int
    reads_files: bool
    isolation: Isolation
    check_crc: bool
    fail_on_data_loss: bool

    @classmethod
    def from_options(cls, options: Options, schema: StructType) -> ReadSettings:
        return cls(
            schema=schema,
            fetch_bytes=options["fetchBytes"],
            reads_files=options["readFiles"],
            isolation=options["kafka.isolation.level"],
            check_crc=options["kafka.check.crcs"],
            fail_on_data_loss=options["failOnDataLoss"],
        )

    @property
    def committed(self) -> bool:
        return self.isolation == "read_committed"


def read_split(
    where: ClusterSettings, settings: ReadSettings, split: Split
) -> Iterator[pa.RecordBatch]:
    """The records of the split's range as Arrow batches with the schema's columns, in its order.

    Records that are gone by now are reported as data loss, by this task and for its own range.
    """
    if split.range is None:
        return
    partition, position, end = split.range.partition, split.range.start, split.range.end
    table = _Table(settings.schema, partition)
    while position < end:
        try:
            left = Range(partition, position, end)
            for next_position, batch in _read(where, settings, table, left):
                position = next_position
                if batch.num_rows:
                    yield batch
            return
        except _GONE as error:
            gap = _gap(Range(partition, position, end), error)
            report(gap, fail=settings.fail_on_data_loss)
            assert gap.end is not None
            position = gap.end


def _read(
    where: ClusterSettings, settings: ReadSettings, table: _Table, wanted: Range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches, each with the offset at which to go on behind it."""
    # Not above: kernels take their time to load, and who plans a query never runs them.
    from penstock.client.fetching import RangeReader
    from penstock.records.arrow.decoding import Collector

    keep_memory()
    reader = RangeReader(
        where.shared(),
        wanted.partition,
        wanted.start,
        wanted.end,
        fetch_bytes=settings.fetch_bytes,
        isolation=settings.isolation,
        reads_files=settings.reads_files,
    )
    collector = Collector(
        table.decoded_columns,
        wanted.start,
        wanted.end,
        batch_bytes=settings.fetch_bytes,
        check_crc=settings.check_crc,
    )
    position = wanted.start
    for decoded in _decoded(reader, collector):
        if position == wanted.start:
            settle()
        position = decoded.next_offset
        yield position, table.batch(decoded.rows, decoded.columns)


def _decoded(reader: RangeReader, collector: Collector) -> Iterator[Decoded]:
    gone: Exception | None = None
    try:
        for fetched in reader:
            yield from collector.add(fetched.data, fetched.aborted)
    except _GONE as error:
        gone = error
    yield from collector.rest()  # what came before is there, however it goes on
    if gone is not None:
        raise gone


def _gap(left: Range, error: Exception) -> Gap:
    """What of the rest of a range can not be read."""
    if isinstance(error, OffsetOutOfRange) and error.asked < error.log_start:
        lost_to = min(error.log_start, left.end)
        return Gap(left.partition, left.start, lost_to, f"the log begins at {error.log_start} now")
    if isinstance(error, OffsetOutOfRange):
        reason = f"the log ends at {error.high_watermark} now"
        return Gap(left.partition, left.start, left.end, reason)
    return Gap(left.partition, left.start, left.end, str(error))


class _Table:
    """Puts columns in the schema's order, and adds those that are the same in every row."""

    def __init__(self, schema: StructType, partition: TopicPartition) -> None:
        self._names = schema.fieldNames()
        self._schema = arrow_schema(schema)
        self._constants: dict[str, tuple[Any, Any]] = {
            "topic": (partition.topic, _arrow_types()["topic"]),
            "partition": (partition.partition, _arrow_types()["partition"]),
        }
        self._repeated: dict[str, pa.Array] = {}
        self.decoded_columns = [name for name in self._names if name not in self._constants]

    def batch(self, rows: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [
            columns[name] if name in columns else self._constant(name, rows) for name in self._names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, rows: int) -> pa.Array:
        """`rows` times the same value: a slice of an array that is only ever made longer."""
        import pyarrow as pa

        array = self._repeated.get(name)
        if array is None or len(array) < rows:
            value, kind = self._constants[name]
            array = self._repeated[name] = pa.repeat(pa.scalar(value, kind), rows)
        return array.slice(0, rows)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for one of ours."""
    import pyarrow as pa

    kinds = _arrow_types()
    return pa.schema([pa.field(one.name, kinds[one.name], one.nullable) for one in schema.fields])


def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    from penstock.records.arrow.decoding import TYPES

    return {**TYPES, "topic": pa.string(), "partition": pa.int32()}
