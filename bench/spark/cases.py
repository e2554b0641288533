"""What is measured: each case as one Spark action, the same for every way to read or write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.wire import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, CONNECTOR, CONNECTOR_KAFKA = "penstock", "connector", "connector, Kafka"
OURS_SENT = "penstock, sent"  # as if the broker were on another machine
CEILING = "ceiling"  # not a way to read a topic: what bounds ours
_FORMATS = {
    OURS: "penstock",
    OURS_SENT: "penstock",
    CONNECTOR: "kafka",
    CONNECTOR_KAFKA: "kafka",
    CEILING: "ceiling",
}
WRITING_CASES = ("parquet", "sink")
_TRIGGERS = 4
PARTITIONS = 4
_RECORD_OVERHEAD_BYTES = 20  # with a key


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Records of one size, in a topic of the same name on both brokers."""

    topic: str
    records: int
    size: int

    @property
    def log_bytes(self) -> int:
        """What it takes on disk, about: the most that a turn writes, or holds in memory."""
        return self.records * (self.size + _RECORD_OVERHEAD_BYTES)


class WrongCountError(Exception):
    """A query did not see what is in the topic, or a sink did not write what it was given."""


class Runner:
    """Runs cases in one session. `bootstraps` says which broker a variant talks to."""

    def __init__(self, spark: SparkSession, bootstraps: dict[str, str], directory: Path) -> None:
        self._spark = spark
        self._bootstraps = bootstraps
        self._directory = directory
        self._names = 0

    def run(self, case: str, variant: str, load: Workload) -> float:
        """Rows per second of one case done in one way."""
        cases: dict[str, Callable[[str, Workload], float]] = {
            "scan": self.scan,
            "parquet": self.parquet,
            "stream": self.stream,
            "sink": self.sink,
        }
        return cases[case](variant, load)

    def scan(self, variant: str, load: Workload) -> float:
        """A batch query over the whole topic that counts every column: `count` of key, value, topic,
        partition, offset, timestamp and timestampType."""
        began = time.perf_counter()
        found = _counted(self._read(variant, load)).collect()[0]
        seconds = time.perf_counter() - began
        if found["value"] != load.records or found["timestampType"] != load.records:
            raise WrongCountError(f"{variant} counted {found} of {load.records} records")
        return load.records / seconds

    def parquet(self, variant: str, load: Workload) -> float:
        """The whole topic, all columns, to a Parquet table (Spark's default codec) on the same
        disk; the table's rows are counted afterwards."""
        path = str(self._directory / "table")
        began = time.perf_counter()
        self._read(variant, load).write.mode("overwrite").parquet(path)
        seconds = time.perf_counter() - began
        rows = self._spark.read.parquet(path).count()
        if rows != load.records:
            raise WrongCountError(f"{variant} wrote {rows} of {load.records} records")
        return load.records / seconds

    def stream(self, variant: str, load: Workload) -> float:
        """A streaming query from the earliest offset (availableNow, a quarter of the topic for each
        trigger) that counts every column as the scan does, into Spark's `noop` sink. The rate is
        that of all triggers but the first, by the durations that Spark reports."""
        self._names += 1
        source = (
            self._spark.readStream.format(_FORMATS[variant])
            .options(**self._options(variant, load))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", load.records // _TRIGGERS)
            .load()
        )
        query = (
            _counted(source).writeStream.format("noop").outputMode("complete")
            .option("checkpointLocation", str(self._directory / f"checkpoint-{self._names}"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        rows = sum(one["numInputRows"] for one in progress)
        if rows != load.records:
            raise WrongCountError(f"{variant} streamed {rows} of {load.records} records")
        later = progress[1:]
        seconds = sum(one["durationMs"]["triggerExecution"] for one in later) / 1000
        return float(sum(one["numInputRows"] for one in later) / seconds)

    def sink(self, variant: str, load: Workload) -> float:
        """As many rows as the topic has, made by Spark (the number of a row as its key, a
        constant value), written to a fresh topic with 4 partitions; the default settings of both
        sinks, which are acks=all and idempotent."""
        self._names += 1
        topic = f"sink-{load.topic}-{self._names}"
        with self._connect(variant) as connection:
            connection.create_topic(topic, partitions=PARTITIONS)
        rows = self._spark.range(0, load.records, 1, PARTITIONS).selectExpr(
            "cast(id as string) as key", f"repeat('x', {load.size}) as value"
        )
        began = time.perf_counter()
        (
            rows.write.format(_FORMATS[variant])
            .option("kafka.bootstrap.servers", self._bootstraps[variant])
            .option("topic", topic).mode("append").save()
        )  # fmt: skip
        seconds = time.perf_counter() - began
        with self._connect(variant) as connection:
            written = connection.record_count(topic, PARTITIONS)
            connection.delete_topic(topic)
        if written != load.records:
            raise WrongCountError(f"{variant} wrote {written} of {load.records} records")
        return load.records / seconds

    def _read(self, variant: str, load: Workload) -> DataFrame:
        return (
            self._spark.read.format(_FORMATS[variant])
            .options(**self._options(variant, load))
            .load()
        )

    def _options(self, variant: str, load: Workload) -> dict[str, Any]:
        if variant == CEILING:
            return {"rows": load.records, "size": load.size, "tasks": PARTITIONS}
        options = {"kafka.bootstrap.servers": self._bootstraps[variant], "subscribe": load.topic}
        return {**options, "readFiles": "false"} if variant == OURS_SENT else options

    def _connect(self, variant: str) -> Connection:
        return Connection(int(self._bootstraps[variant].rpartition(":")[2]))


def _counted(frame: DataFrame) -> DataFrame:
    columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    return frame.selectExpr(*(f"count({name}) as {name}" for name in columns))
