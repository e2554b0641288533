"""Spark's own Kafka connector works against Penstock, and its jobs can move to `penstock` and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.harness import Topic, finish, run_available

pytestmark = [pytest.mark.spark, pytest.mark.java]


@pytest.fixture(scope="module")
def kafka(spark: SparkSession, connector_jars: list[str]) -> SparkSession:
    """The session, if it has the connector."""
    if not connector_jars:
        pytest.skip("Spark's Kafka connector of this version is not to be had by Maven")
    return spark


def options(at: Topic, /, **more: str) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": at.broker.bootstrap, **more}
    return {name.replace("__", "."): text for name, text in given.items()}


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(bytes(row.value).decode()) for row in rows)


def stream(spark: SparkSession, form: str, topic: Topic) -> DataFrame:
    given = options(topic, subscribe=topic.name, startingOffsets="earliest")
    return spark.readStream.format(form).options(**given).load()


def test_the_connector_reads_a_batch(kafka: SparkSession, topic: Topic) -> None:
    topic.write(
        range(100), keys=lambda value: b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000
    )
    given = options(topic, subscribe=topic.name, includeHeaders="true")
    theirs = kafka.read.format("kafka").options(**given).load()
    ours = kafka.read.format("penstock").options(**given).load()
    assert theirs.schema.simpleString() == ours.schema.simpleString()
    assert sorted(map(str, theirs.collect())) == sorted(map(str, ours.collect()))
    assert theirs.count() == 100


def test_the_connector_writes_a_batch(kafka: SparkSession, topic: Topic) -> None:
    frame = kafka.sql(
        "select cast(id as string) as key, cast(id as string) as value from range(200)"
    )
    frame.write.format("kafka").options(**options(topic, topic=topic.name)).save()
    theirs = {record.key(): record.partition() for record in topic.read(200)}
    other = Topic(topic.broker, topic.broker.create_topic(partitions=2))
    frame.write.format("penstock").mode("append").options(**options(other, topic=other.name)).save()
    assert {record.key(): record.partition() for record in other.read(200)} == theirs


def test_the_connector_reads_and_writes_a_stream(
    kafka: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    target = Topic(topic.broker, topic.broker.create_topic(partitions=2))
    topic.write(range(100))
    given = options(topic, topic=target.name, checkpointLocation=str(tmp_path))
    writer = stream(kafka, "kafka", topic).select("value").writeStream.format("kafka")
    finish(writer.options(**given).trigger(availableNow=True).start())
    assert sorted(int(record.value()) for record in target.read(100)) == list(range(100))


def test_a_stream_moves_from_the_connector_with_its_checkpoint_and_back(
    kafka: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(range(50))
    assert numbers(run_available(stream(kafka, "kafka", topic), str(tmp_path))) == list(range(50))
    topic.write(range(50, 80))
    moved = run_available(stream(kafka, "penstock", topic), str(tmp_path))
    assert numbers(moved) == list(range(50, 80))
    topic.write(range(80, 90))
    back = run_available(stream(kafka, "kafka", topic), str(tmp_path))
    assert numbers(back) == list(range(80, 90))
