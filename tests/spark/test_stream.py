"""Streams: progress, admission, AvailableNow, new partitions, restarts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.client.cluster import Cluster
from penstock.model import TopicPartition
from penstock.testing import broker_process
from tests.spark.harness import Topic, run_available, wait_until

pytestmark = pytest.mark.spark


def numbers(rows: Sequence[Any]) -> list[int]:
    return sorted(int(bytes(row.value).decode()) for row in rows)


def test_a_stream_reads_each_record_once_over_restarts(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(range(100))
    topic.write(range(100, 150), partition=1)
    frame = topic.stream(spark, startingOffsets="earliest")
    assert numbers(run_available(frame, str(tmp_path))) == list(range(150))
    assert run_available(frame, str(tmp_path)) == []
    topic.write(range(150, 170))
    assert numbers(run_available(frame, str(tmp_path))) == list(range(150, 170))
    offsets = json.loads((tmp_path / "offsets" / "1").read_text().splitlines()[-1])
    assert offsets.pop(topic.name) == {"0": 120, "1": 50}
    (topic_id,) = offsets
    assert topic_id.startswith(f"@id:{topic.name}:")


def test_max_offsets_per_trigger_bounds_each_batch(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(range(90))
    topic.write(range(90, 120), partition=1)
    sizes: list[int] = []
    query = (
        topic.stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sizes == [40, 40, 40]


def test_progress_is_committed_as_a_group_named_for_the_query(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(range(10))
    query = (
        topic.stream(spark, startingOffsets="earliest")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    group = f"spark-penstock-tests-{topic}"
    wanted = TopicPartition(topic.name, 0)
    with Cluster(topic.broker.bootstrap) as cluster:

        def committed() -> int | None:
            return cluster.committed_offsets(group, [wanted]).get(wanted)

        try:
            wait_until(lambda: committed() == 10, "the first batch is committed")
            topic.write(range(5))
            wait_until(lambda: committed() == 15, "the second batch is committed")
            progress = query.lastProgress
            assert progress is not None
            source = progress["sources"][0]
            assert source["latestOffset"], source
        finally:
            query.stop()


def test_new_partitions_and_topics_of_a_pattern_are_read_from_their_start(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(range(3))
    frame = topic.stream(spark, subscribePattern=f"{topic}.*", startingOffsets="latest")
    seen: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: seen.extend(numbers(batch.collect())))
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress, "the query runs")
        later = Topic(topic.broker, topic.broker.create_topic(f"{topic}-later"))
        later.write(range(10, 13))
        wait_until(lambda: sorted(seen) == [10, 11, 12], "the new topic is read")
    finally:
        query.stop()


def test_a_query_lives_through_a_restart_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    with broker_process() as broker:
        topic = Topic(broker, broker.create_topic("restarted", partitions=2))
        topic.write(range(50))
        seen: list[int] = []
        query = (
            topic.stream(spark, startingOffsets="earliest")
            .writeStream.foreachBatch(lambda batch, _: seen.extend(numbers(batch.collect())))
            .option("checkpointLocation", str(tmp_path))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        try:
            wait_until(lambda: len(seen) == 50, "what was there is read")
            broker.kill()
            broker.start()
            topic.write(range(50, 80), partition=1)
            wait_until(lambda: len(seen) >= 80, "what came after the restart is read")
            assert sorted(seen) == list(range(80))
            assert query.isActive
        finally:
            query.stop()
