"""Batch reads: columns, positions, splits and filters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.harness import Topic, values_of

pytestmark = pytest.mark.spark


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


T0 = 1_700_000_000_000


@pytest.fixture
def dated(topic: Topic) -> Topic:
    """Offsets 0 to 9 in each of two partitions, a second apart, the values 0 to 19."""
    topic.write(range(10), timestamp=T0, step_ms=1_000)
    topic.write(range(10, 20), partition=1, timestamp=T0, step_ms=1_000)
    return topic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(20)),
        ({"startingOffsets": '{"T":{"0":8,"1":-2}}'}, [8, 9, *range(10, 20)]),
        ({"endingOffsets": '{"T":{"0":1,"1":-1}}'}, [0, *range(10, 20)]),
        ({"startingOffsets": "-3"}, [7, 8, 9, 17, 18, 19]),
        ({"endingOffsets": "-9"}, [0, 10]),
        ({"startingOffsets": "-10 minutes"}, []),
        ({"endingOffsets": "-10 minutes"}, range(20)),
        ({"startingTimestamp": str(T0 + 7_500)}, [8, 9, 18, 19]),
        ({"endingTimestamp": str(T0 + 1_000)}, [0, 10]),
        ({"endingTimestamp": str(T0 + 99_000)}, range(20)),
        (
            {"startingOffsetsByTimestamp": f'{{"T":{{"0":{T0 + 9_000},"1":{T0 + 8_000}}}}}'},
            [9, 18, 19],
        ),
        ({"endingOffsetsByTimestamp": f'{{"T":{{"0":{T0},"1":{T0 + 1_000}}}}}'}, [10]),
        (
            {"startingTimestamp": str(T0 + 99_000), "startingOffsetsByTimestampStrategy": "latest"},
            [],
        ),
        ({"assign": '{"T":[1]}'}, range(10, 20)),
        ({"subscribePattern": "T"}, range(20)),
        ({"maxRecordsPerPartition": "3"}, range(20)),
        ({"splitBytes": "100"}, range(20)),
        ({"fetchBytes": "1024"}, range(20)),
        ({"readFiles": "false"}, range(20)),
        ({"kafka__isolation__level": "read_committed"}, range(20)),
        ({"kafka__check__crcs": "false"}, range(20)),
    ],
)
def test_options_say_what_is_read(
    spark: SparkSession, dated: Topic, options: dict[str, str], expected: Sequence[int]
) -> None:
    options = {name: text.replace("T", dated.name) for name, text in options.items()}
    assert sorted(map(int, values_of(dated.batch(spark, **options)))) == list(expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingTimestamp": str(T0 + 99_000)}, "has no record with timestamp"),
        ({"startingOffsets": '{"T":{"0":8}}'}, "T-1 is not in it"),
        ({"startingOffsets": '{"T":{"0":8,"1":8,"2":8}}'}, "names T-2"),
        ({"startingOffsets": '{"T":{"0":99,"1":0}}'}, "the start 99 is after the end 10"),
        ({"endingOffsets": '{"T":{"0":12,"1":0}}'}, "offsets 10 to 12 (exclusive) are gone"),
        ({"subscribe": "T,nowhere"}, "there is no topic nowhere"),
        ({"assign": '{"T":[5]}'}, "there is no partition T-5"),
        ({"startingOffsets": "latest"}, "can not be latest"),
        ({"startingOfsets": "latest"}, "did you mean 'startingOffsets'"),
    ],
)
def test_what_can_not_be_read_is_refused_in_plain_words(
    spark: SparkSession, dated: Topic, options: dict[str, str], words: str
) -> None:
    options = {name: text.replace("T", dated.name) for name, text in options.items()}
    with pytest.raises(PySparkException) as failure:
        dated.batch(spark, **options).collect()
    assert words.replace("T-", f"{dated}-") in str(failure.value)


def test_a_schema_selects_columns_in_any_order(spark: SparkSession, dated: Topic) -> None:
    frame = dated.batch(spark, schema="offset bigint, value binary, topic string")
    rows = sorted(frame.collect())
    assert rows[0] == (0, bytearray(b"0"), dated.name)
    assert frame.columns == ["offset", "value", "topic"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("value string", "column value is of type binary, not string"),
        ("colour string", "there is no column 'colour'"),
        ("value binary not null", "column value can be null"),
    ],
)
def test_a_schema_that_records_do_not_have_is_refused(
    spark: SparkSession, dated: Topic, schema: str, words: str
) -> None:
    with pytest.raises(PySparkException) as failure:
        dated.batch(spark, schema=schema).collect()
    assert words in str(failure.value)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("partition = 1", range(10, 20)),
        ("partition in (1, 7)", range(10, 20)),
        ("offset >= 8", [8, 9, 18, 19]),
        ("offset < 2 and partition = 0", [0, 1]),
        ("offset = 5", [5, 15]),
        ("topic = 'nowhere'", []),
        (f"timestamp >= timestamp_millis({T0 + 8_000})", [8, 9, 18, 19]),
        (f"timestamp < timestamp_millis({T0 + 1_000})", [0, 10]),
        (f"timestamp = timestamp_millis({T0 + 1_000}) and partition = 0", [1]),
        ("cast(value as string) = '3' and offset > 1", [3]),
    ],
)
@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_a_filter_changes_what_is_read_but_not_what_comes_out(
    spark: SparkSession, dated: Topic, condition: str, expected: Sequence[int], pushdown: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = dated.batch(spark).filter(condition)
        assert sorted(map(int, values_of(frame))) == list(expected)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_record_out_of_time_order_is_found_behind_later_ones(
    spark: SparkSession, topic: Topic
) -> None:
    for value, seconds in (("a", 5), ("b", 9), ("c", 1), ("d", 7)):
        topic.write([value], timestamp=T0 + seconds * 1_000)
    late = topic.batch(spark).filter(f"timestamp < timestamp_millis({T0 + 4_000})")
    assert values_of(late) == ["c"]
    early = topic.batch(spark).filter(f"timestamp >= timestamp_millis({T0 + 6_000})")
    assert values_of(early) == ["b", "d"]
