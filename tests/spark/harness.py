"""What the Spark tests share: a session, topics with known records, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.testing import TestBroker

WAIT_S = 60.0


def session_builder(name: str, cores: int = 2) -> Any:
    """A local session that is quick to start: no web interface, few shuffles, little memory."""
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
    )


class Topic:
    """A topic of a test, written and read by a client that is not ours."""

    def __init__(self, broker: TestBroker, name: str) -> None:
        self.broker = broker
        self.name = name

    def __str__(self) -> str:
        return self.name

    def write(
        self,
        values: Iterable[Any],
        *,
        partition: int = 0,
        timestamp: int = 0,
        step_ms: int = 0,
        headers: Any = None,
        keys: Callable[[Any], bytes | None] = lambda value: None,
    ) -> None:
        """One record for each value, as text; all are acknowledged when this returns."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 20})
        for index, value in enumerate(values):
            producer.produce(
                self.name,
                value if isinstance(value, bytes) or value is None else str(value).encode(),
                keys(value),
                partition=partition,
                timestamp=timestamp + index * step_ms,
                headers=headers,
            )
            if index % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(30) == 0

    def read(self, count: int, *, partitions: Iterable[int] = (0, 1)) -> list[Any]:
        """This many records from the start, in order of partition and offset."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "nobody"})
        consumer.assign([TopicPartition(self.name, number, 0) for number in partitions])
        deadline = time.monotonic() + WAIT_S
        found: list[Any] = []
        while len(found) < count and time.monotonic() < deadline:
            found += [message for message in consumer.consume(1000, 0.2) if not message.error()]
        found += consumer.consume(1000, 0.3)  # there must not be more
        consumer.close()
        assert len(found) == count
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def batch(self, spark: SparkSession, **options: Any) -> DataFrame:
        """A batch read of this topic."""
        return self._load(spark.read.format("penstock"), options)

    def stream(self, spark: SparkSession, **options: Any) -> DataFrame:
        return self._load(spark.readStream.format("penstock"), options)

    def _load(self, reader: Any, options: dict[str, Any]) -> DataFrame:
        reader = reader.option("kafka.bootstrap.servers", self.broker.bootstrap)
        if not options.keys() & {"subscribe", "subscribePattern", "assign"}:
            reader = reader.option("subscribe", self.name)
        schema = options.pop("schema", None)
        reader = reader.options(**{name.replace("__", "."): text for name, text in options.items()})
        frame: DataFrame = (reader.schema(schema) if schema else reader).load()
        return frame


def values_of(frame: DataFrame) -> list[str]:
    """The values as text, sorted: tasks come back in any order."""
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def wait_until(is_so: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Look until it is so; fail with these words if it is not in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = is_so()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {timeout_s:g} s")


def run_available(frame: DataFrame, checkpoint: str, **options: Any) -> list[Any]:
    """Run a stream until all that is there now is read; the rows of all its batches."""
    rows: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    return rows


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(int(WAIT_S)), "the query did not end"
