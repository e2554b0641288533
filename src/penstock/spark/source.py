"""The data source `penstock` as Spark sees it: it hands out readers and writers."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.options import Options
from penstock.spark.schema import read_schema
from penstock.spark.worker import drop_idle_accumulators

# Spark plans a read in this program when no filter is pushed. Which one runs is its first argument.
_PLAIN_PLANNER: Final = "plan_data_source_read"


class PenstockDataSource(DataSource):
    """Topics of a Kafka-compatible cluster. Registered by `penstock.spark.register`."""

    app_name = ""  # of the Spark application; a subclass made by `register` knows it

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        drop_idle_accumulators()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        drop_idle_accumulators()

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """All columns. Called when a query gives no schema of its own."""
        # What is wrong with the options should be said by `load()`, not by the first action. It is not
        # known yet whether this is a batch or a stream, so what only one of them has is left for later.
        options = Options(self.options, "batch")
        return read_schema(headers=options["includeHeaders"])

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch import PenstockFilteringReader, PenstockReader

        options = Options(self.options, "batch")
        # A reader that takes filters is refused by Spark if their pushdown is switched off.
        if any(_PLAIN_PLANNER in argument for argument in sys.argv[:2]):
            return PenstockReader(options, schema)
        return PenstockFilteringReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from penstock.spark.stream import PenstockStreamReader

        return PenstockStreamReader(Options(self.options, "stream"), schema, self.app_name)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writing import PenstockWriter

        return PenstockWriter(Options(self.options, "write"), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        from penstock.spark.writing import PenstockStreamWriter

        # In complete mode Spark says overwrite. A log has nothing to overwrite: all rows are appended.
        return PenstockStreamWriter(Options(self.options, "write"), schema)
