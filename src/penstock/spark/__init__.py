"""The PySpark data source: topics as DataFrames, batch and streaming, without jars.

    from penstock.spark import register

    register(spark)
    orders = spark.read.format("penstock").option("kafka.bootstrap.servers", "localhost:9092")
    orders.option("subscribe", "orders").load().show()

What it can do and every option: docs/SPARK.md. `penstock.spark.java` finds a Java for Spark.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to this session, classic or Spark Connect.

    Penstock must be installed where the executors run. The application's name is taken along: it begins
    the names of the consumer groups in which streams show their progress. Filters are pushed down to
    Python sources from now on (`spark.sql.python.filterPushdown.enabled`), which Spark does not by itself;
    in a declarative pipeline, where code may not change the session, its spec must say so.
    """
    from pyspark.errors import PySparkException

    from penstock.spark.source import PenstockDataSource

    name = str(spark.conf.get("spark.app.name", "") or "")
    # A class made here travels by value, with what it knows; those it is made of travel by name.
    source = type("PenstockDataSource", (PenstockDataSource,), {"app_name": name})
    source.__module__ = "__main__"
    spark.dataSource.register(source)
    with contextlib.suppress(PySparkException):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
