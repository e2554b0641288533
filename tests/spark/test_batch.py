"""Batch reads: columns, positions, splits and filters."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark.harness import Topic, values_of

pytestmark = pytest.mark.xdist_group("spark")


def test_all_columns_are_those_of_the_kafka_connector(spark: SparkSession, topic: Topic) -> None:
    topic.write(["a"], timestamp=1_700_000_000_123, keys=lambda value: b"k", headers=[("h", b"1")])
    topic.write([None], partition=1, timestamp=1_700_000_000_456)
    frame = topic.batch(spark, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = sorted(frame.collect(), key=lambda row: row.partition)
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"a", topic.name)
    assert (first.partition, first.offset, first.timestampType) == (0, 0, 0)
    assert first.timestamp.timestamp() == 1_700_000_000.123
    assert [(one.key, bytes(one.value)) for one in first.headers] == [("h", b"1")]
    assert (second.key, second.value, second.headers) == (None, None, None)


def test_every_record_is_read_once_whatever_the_splits(spark: SparkSession, topic: Topic) -> None:
    topic.write(range(5_000))
    topic.write(range(5_000, 5_100), partition=1)
    frame = topic.batch(spark, minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert sorted(int(value) for value in values_of(frame)) == list(range(5_100))
