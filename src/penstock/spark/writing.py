"""The writers: Arrow batches in, record batches out, an idempotent producer for each task.

A retry inside a task never doubles a record. A task that Spark runs again writes its rows again: a write is
at-least-once. Each task returns what it wrote to where, and `commit` and `abort` run on the driver, so that
transactions have their places here when the broker has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.model import TopicPartition
from penstock.spark.connecting import ClusterSettings
from penstock.spark.errors import MissingTopicError, OptionError
from penstock.spark.options import Options
from penstock.spark.schema import check_write_schema
from penstock.spark.worker import Travels, keep_memory, settle

if TYPE_CHECKING:
    import pyarrow as pa

log: Final = logging.getLogger("penstock.spark")

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """What all tasks of a write share; it travels with them."""

    where: ClusterSettings
    topic: str | None
    acks: int
    codec: int
    batch_bytes: int
    record_bytes_max: int
    in_flight_bytes_max: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    partitioner: str

    @classmethod
    def from_options(cls, options: Options) -> WriteSettings:
        largest = options["kafka.max.request.size"]
        return cls(
            where=ClusterSettings.from_options(options),
            topic=options["topic"] or None,
            acks=1 if options["kafka.acks"] == "1" else -1,
            codec=CODECS[options["kafka.compression.type"]],
            batch_bytes=min(options["kafka.batch.size"], largest),
            record_bytes_max=largest,
            in_flight_bytes_max=options["kafka.buffer.memory"],
            delivery_timeout_ms=options["kafka.delivery.timeout.ms"],
            request_timeout_ms=options["kafka.request.timeout.ms"],
            partitioner=options["kafka.partitioner"],
        )

    def check(self, schema: StructType) -> None:
        """On the driver, before the first byte: the schema fits, and the topic is there."""
        check_write_schema(schema, self.topic)
        if self.topic is not None:
            with self.where.connect() as cluster:
                if cluster.partitions([self.topic]).get(self.topic) is None:
                    raise MissingTopicError(f"there is no topic {self.topic}; create it first")


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote: how many records, and the last offset in each partition."""

    records: int = 0
    last_offsets: dict[TopicPartition, int] = field(default_factory=dict)


def _write(settings: WriteSettings, batches: Iterator[pa.RecordBatch]) -> Written:
    from penstock.spark.task_writing import write_batches

    keep_memory()
    records, last_offsets = write_batches(settings, batches)
    settle()
    return Written(records, last_offsets)


class PenstockWriter(Travels, DataSourceArrowWriter):
    """Appends the rows of a batch query."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a log can not be overwritten: use mode("append")')
        self._settings = WriteSettings.from_options(options)
        self._settings.check(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._settings, iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _report_abort(messages)


class PenstockStreamWriter(Travels, DataSourceStreamArrowWriter):
    """Appends the rows of each batch of a stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._settings = WriteSettings.from_options(options)
        self._settings.check(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._settings, iterator)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803 - Spark's name
    ) -> None:
        _report_abort(messages)


def _report_abort(messages: list[WriterCommitMessage | None]) -> None:
    """Nothing can be taken back; say what is there, since a repeated write will write it again."""
    records = sum(one.records for one in messages if isinstance(one, Written))
    if records:
        log.warning(
            "the write failed; %d records of its finished tasks stay in their topics", records
        )
