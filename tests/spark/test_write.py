"""Writes: where records go, what is refused before the first byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.harness import Topic, finish

pytestmark = pytest.mark.spark


def write(frame: DataFrame, to: Topic, **options: Any) -> None:
    """Append to the topic; `topic=None` leaves the option out."""
    writer = frame.write.format("penstock").mode("append")
    writer = writer.option("kafka.bootstrap.servers", to.broker.bootstrap)
    options = {"topic": to.name, **options}
    for name, value in options.items():
        if value is not None:
            writer = writer.option(name.replace("__", "."), value)
    writer.save()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_come_out_as_records(spark: SparkSession, topic: Topic, codec: str) -> None:
    frame = spark.sql(
        "select cast(id as string) as key, cast(concat('v', id) as binary) as value, "
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers from range(500)"
    )
    write(frame, topic, kafka__compression__type=codec)
    records = topic.read(500)
    assert {r.key(): r.value() for r in records} == {
        str(i).encode(): f"v{i}".encode() for i in range(500)
    }
    assert all(r.headers() == [("h", b"x")] for r in records)


def test_keys_go_where_java_clients_put_them(spark: SparkSession, topic: Topic) -> None:
    write(spark.sql("select 'a' as value, explode(array('21', 'foobar')) as key"), topic)
    by_key = {r.key(): r.partition() for r in topic.read(2)}
    # The Java client's own test vectors: murmur2("21") = -973932308, murmur2("foobar") = -790332482.
    assert by_key == {
        b"21": (-973932308 & 0x7FFFFFFF) % 2,
        b"foobar": (-790332482 & 0x7FFFFFFF) % 2,
    }


def test_columns_name_topic_and_partition_row_by_row(spark: SparkSession, topic: Topic) -> None:
    other = Topic(topic.broker, topic.broker.create_topic(partitions=3))
    frame = spark.sql(
        f"select cast(id as string) as value, if(id % 2 = 0, '{topic}', '{other}') as topic, "
        "1 as partition from range(20)"
    )
    write(frame, topic, topic=None)
    assert [r.partition() for r in topic.read(10)] == [1] * 10
    odd = other.read(10, partitions=[0, 1, 2])
    assert {int(r.value()) for r in odd} == set(range(1, 20, 2))
    assert {r.partition() for r in odd} == {1}


def test_the_order_of_a_tasks_rows_is_kept_in_a_partition(
    spark: SparkSession, topic: Topic
) -> None:
    frame = spark.range(0, 30_000, numPartitions=1).selectExpr(
        "cast(id as string) as value", "cast(id % 2 as int) as partition"
    )
    write(frame, topic)
    values = [int(r.value()) for r in topic.read(30_000)]
    assert values == [*range(0, 30_000, 2), *range(1, 30_000, 2)]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("'a' as key", {}, "there is no column 'value'"),
        ("1 as value", {}, "column value is of type int, it must be string or binary"),
        ("'a' as value", {"topic": None}, "no topic: set the option `topic`"),
        ("'a' as value, 'b' as colour", {}, "a record has no 'colour'"),
        ("'a' as value, '1' as partition", {}, "column partition is of type string"),
        ("'a' as value, map('a','b') as headers", {}, "column headers is of type map"),
        ("'a' as value", {"topic": "nowhere"}, "there is no topic nowhere"),
        ("'a' as value, 'nowhere' as topic", {"topic": None}, "there is no topic 'nowhere'"),
        ("'a' as value, cast(null as string) as topic", {"topic": None}, "a row has no topic"),
        ("'a' as value, 7 as partition", {}, "asks for partition 7"),
        ("repeat('a', 2000000) as value", {}, "more than kafka.max.request.size"),
        ("'a' as value", {"subscribe": "x"}, "subscribe is for reading"),
        ("'a' as value", {"kafka__acks": "0"}, "kafka.acks = '0': must be all or -1 or 1"),
        ("'a' as value", {"kafka__transactional__id": "x"}, "transactions are not there yet"),
    ],
)
def test_what_can_not_be_written_is_refused_in_plain_words(
    spark: SparkSession, topic: Topic, columns: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PySparkException, match=None) as failure:
        write(spark.sql(f"select {columns}"), topic, **options)
    assert words in str(failure.value)
    assert topic.read(0) == []


def test_a_log_can_not_be_overwritten(spark: SparkSession, topic: Topic) -> None:
    writer = spark.sql("select 'a' as value").write.format("penstock").mode("overwrite")
    writer = writer.option("kafka.bootstrap.servers", topic.broker.bootstrap)
    with pytest.raises(PySparkException, match="can not be overwritten"):
        writer.option("topic", topic.name).save()


def test_a_stream_writes_what_it_reads(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    target = Topic(topic.broker, topic.broker.create_topic(partitions=2))
    topic.write(range(100), keys=lambda value: str(value).encode(), headers=[("h", b"1")])
    query = (
        topic.stream(spark, startingOffsets="earliest", includeHeaders="true")
        .drop("topic", "partition")
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", topic.broker.bootstrap)
        .option("topic", target.name)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    records = target.read(100)
    assert {(r.key(), r.value()) for r in records} == {(str(i).encode(),) * 2 for i in range(100)}
    assert all(r.headers() == [("h", b"1")] for r in records)


def test_aggregates_are_written_whole_in_complete_mode(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    target = Topic(topic.broker, topic.broker.create_topic(partitions=1))
    topic.write(["a", "b", "a"])
    counts = topic.stream(spark, startingOffsets="earliest").groupBy("value").count()
    query = (
        counts.selectExpr("value as key", "cast(count as string) as value")
        .writeStream.format("penstock")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", topic.broker.bootstrap)
        .option("topic", target.name)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    records = target.read(2, partitions=[0])
    assert {r.key(): r.value() for r in records} == {b"a": b"2", b"b": b"1"}
