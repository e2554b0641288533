"""A task's write: rows are grouped by partition, encoded by kernels and sent. Runs in a worker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.cluster import Cluster
from penstock.client.producing import IdempotentProducer
from penstock.errors import PenstockError
from penstock.model import TopicPartition
from penstock.records.arrow.encoding import encode
from penstock.records.arrow.partitioning import partition_of_keys
from penstock.spark.errors import MissingTopicError
from penstock.spark.writing import WriteSettings

# Rows are taken together up to this size, so that each partition's share makes batches worth sending.
_GATHERED_BYTES: Final = 4 << 20


class UnwritableRowError(PenstockError):
    """A row has no topic, a partition that is not there, or is too large. What it is stands in the text."""


def write_batches(
    settings: WriteSettings, batches: Iterator[pa.RecordBatch]
) -> tuple[int, dict[TopicPartition, int]]:
    """Write all rows. When all are acknowledged: how many, and the last offset in each partition."""
    cluster = settings.where.shared()
    producer = IdempotentProducer(
        cluster,
        acks=settings.acks,
        request_timeout_ms=settings.request_timeout_ms,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        in_flight_bytes_max=settings.in_flight_bytes_max,
    )
    try:
        task = _Task(settings, cluster, producer)
        for table in _gathered(batches):
            task.write(table)
        return task.records, producer.flush()
    finally:
        producer.close()


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches, small ones put together."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _GATHERED_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


class _Task:
    """The state of one task: how many partitions topics have, and whose turn it is."""

    def __init__(
        self, settings: WriteSettings, cluster: Cluster, producer: IdempotentProducer
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._producer = producer
        self._counts: dict[str, int] = {}
        self._turn = random.randrange(1 << 16)  # tasks begin at different partitions
        self.records = 0

    def write(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        columns = {name: _one_array(table.column(name)) for name in table.column_names}
        now = int(time.time() * 1000)
        for topic, rows in self._by_topic(columns, table.num_rows):
            placed = self._partitions(topic, columns, rows, table.num_rows)
            for partition, chosen in _grouped(placed, rows):
                self._send(TopicPartition(topic, partition), columns, chosen, now)
        self.records += table.num_rows

    def _send(
        self, partition: TopicPartition, columns: dict[str, Any], rows: Any, now: int
    ) -> None:
        for batch in encode(
            keys=columns.get("key"),
            values=columns["value"],
            headers=columns.get("headers"),
            timestamps=now,
            rows=rows,
            codec=self._settings.codec,
            bytes_max=self._settings.batch_bytes,
        ):
            if batch.records == 1 and len(batch.data) > self._settings.record_bytes_max:
                raise UnwritableRowError(
                    f"a record for {partition} has {len(batch.data)} bytes, more than "
                    f"kafka.max.request.size = {self._settings.record_bytes_max}; raise that, and the "
                    "topic's max.message.bytes"
                )
            data: Any = batch.data
            self._producer.send(partition, data, batch.records)

    def _by_topic(self, columns: dict[str, Any], count: int) -> Iterator[tuple[str, Any]]:
        """Each topic with its rows, None for all of them."""
        if self._settings.topic is not None:
            yield self._settings.topic, None
            return
        topics = columns["topic"]
        if topics.null_count:
            row = pc.index(topics.is_null(), True).as_py()
            raise UnwritableRowError(
                f"a row has no topic (row {row} of {count} in its batch): fill the column `topic`, or "
                "set the option `topic`"
            )
        encoded = topics.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        for name in names:
            self._count(name)  # all of them are there, or nothing is sent
        if len(names) == 1:
            yield names[0], None
            return
        for index, rows in _grouped(encoded.indices.to_numpy(), None):
            yield names[index], rows

    def _count(self, topic: str) -> int:
        """How many partitions the topic has, as it was when the task first met it."""
        if topic not in self._counts:
            count = self._cluster.partitions([topic]).get(topic)
            if count is None:
                raise MissingTopicError(f"there is no topic {topic!r}; create it first")
            self._counts[topic] = count
        return self._counts[topic]

    def _partitions(self, topic: str, columns: dict[str, Any], rows: Any, total: int) -> Any:
        """The partition of each row: the column's, or that of the key, or the next in turn."""
        count = self._count(topic)
        placed = np.full(total if rows is None else len(rows), -1, np.int32)
        if "partition" in columns:
            column = columns["partition"] if rows is None else columns["partition"].take(rows)
            placed = _given_partitions(topic, column, count)
        if "key" in columns and (placed < 0).any():
            keys = columns["key"] if rows is None else columns["key"].take(rows)
            if keys.null_count < len(keys):
                hashed = partition_of_keys(keys, count, self._settings.partitioner)  # type: ignore[arg-type]
                placed = np.where(placed < 0, hashed, placed)
        free = np.flatnonzero(placed < 0)
        if len(free):
            placed[free] = self._in_turn(len(free), count, columns, total)
        return placed

    def _in_turn(self, free: int, count: int, columns: dict[str, Any], total: int) -> Any:
        """Rows that may go anywhere fill one batch, then one for the next partition, and so on."""
        row_bytes = max(sum(column.nbytes for column in columns.values()) // total, 1)
        run = max(self._settings.batch_bytes // row_bytes, 1)
        turns = self._turn + np.arange(free) // run
        self._turn = int(turns[-1]) + 1
        return turns % count


def _given_partitions(topic: str, column: Any, count: int) -> Any:
    placed = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    is_given = column.is_valid().to_numpy(zero_copy_only=False)
    wrong = is_given & ((placed < 0) | (placed >= count))
    if wrong.any():
        number = placed[wrong][0]
        raise UnwritableRowError(f"a row asks for partition {number} of {topic}, which has {count}")
    return placed


def _grouped(codes: Any, rows: Any) -> Iterator[tuple[int, Any]]:
    """Each code with its rows, in their order. `rows` are those that the codes are for; None: all."""
    if len(codes) and (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    # Small integers are sorted by radix, in linear time; stable keeps the order within a partition.
    narrow = codes.astype(np.int16) if codes.max(initial=0) < 2**15 else codes
    order = np.argsort(narrow, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    for group in np.split(order, edges):
        if len(group):
            yield int(codes[group[0]]), group if rows is None else rows[group]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
