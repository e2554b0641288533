"""The most that any source in Python can reach: one that only sends the same Arrow batch again and again.

No broker, no network and no decoding: what is left is what Spark itself does with a row that comes from
Python. How near our source comes to it shows what there is still to gain.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.reading import arrow_schema
from penstock.spark.schema import read_schema

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 8 << 20  # as our source's: what it fetches at once


class CeilingDataSource(DataSource):
    """Options: `rows` in all, `size` of a value in bytes, and `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return read_schema(headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        rows, size, tasks = (int(self.options[name]) for name in ("rows", "size", "tasks"))
        return _Resender(schema, rows, size, tasks)


class _Resender(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, size: int, tasks: int) -> None:
        self._schema = schema
        self._rows = rows
        self._size = size
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(index) for index in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = self._batch(max(1, _BATCH_BYTES // self._size))
        first, end = (self._rows * (partition.value + part) // self._tasks for part in (0, 1))
        for at in range(first, end, batch.num_rows):
            yield batch.slice(0, end - at)

    def _batch(self, rows: int) -> pa.RecordBatch:
        """As what the topics of this benchmark hold: no keys, and the same value in every row."""
        import pyarrow as pa

        schema = arrow_schema(self._schema)
        same = {"key": None, "value": os.urandom(self._size), "topic": "ceiling"}
        arrays = [
            pa.repeat(pa.scalar(same.get(field.name, 0), field.type), rows) for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
