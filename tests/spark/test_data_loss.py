"""Data loss: each gap is reported once, with its range, and nothing else is."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Where
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.cli.adminapi import AdminClient, NewPartitions
from penstock.spark.errors import DataLossError
from penstock.spark.options import Options
from penstock.spark.reading import Split
from penstock.spark.schema import read_schema
from penstock.spark.stream import PenstockStreamReader
from penstock.testing import ThreadBroker
from tests.spark.harness import Topic, wait_until

ALL = ReadAllAvailable()


@pytest.fixture
def broker(penstock_shared: ThreadBroker) -> ThreadBroker:
    return penstock_shared


class Query:
    """Asks a reader what Spark would ask it, batch by batch."""

    def __init__(self, topic: Topic, **options: str) -> None:
        given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
        given |= {"startingOffsets": "earliest", "retryTimeout": "2s"}
        self.reader = PenstockStreamReader(
            Options({**given, **options}, "stream"), read_schema(headers=False), "loss"
        )
        self.at: dict[str, Any] = {}

    def begin(self) -> Query:
        self.at = through_json(self.reader.initialOffset())
        return self

    def batch(self, limit: Any = ALL) -> list[str]:
        """The values of the next batch, planned twice, as Spark may."""
        end = through_json(self.reader.latestOffset(self.at, limit))
        self.reader.partitions(self.at, end)
        splits = self.reader.partitions(self.at, end)
        self.at = end
        return sorted(value for one in splits for value in self.values(one))

    def values(self, split: Any) -> Iterator[str]:
        for batch in self.reader.read(split):
            yield from (value.decode() for value in batch.column("value").to_pylist())


def through_json(offsets: dict[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(json.dumps(offsets))
    return table


def delete_before(topic: Topic, offset: int, partition: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": topic.broker.bootstrap})
    futures = admin.delete_records([Where(topic.name, partition, offset)])
    for future in futures.values():
        future.result(10)


def delete_topic(topic: Topic) -> None:
    admin = AdminClient({"bootstrap.servers": topic.broker.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(10)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_records_deleted_before_they_were_read_fail_the_query(topic: Topic) -> None:
    topic.write(range(10))
    query = Query(topic).begin()
    delete_before(topic, 4)
    with pytest.raises(DataLossError) as failure:
        query.batch()
    assert f"data loss in {topic}-0: offsets 0 to 4 (exclusive) are gone" in str(failure.value)


def test_or_cost_one_warning_that_names_the_range(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(10))
    query = Query(topic, failOnDataLoss="false").begin()
    delete_before(topic, 4)
    assert query.batch() == [str(n) for n in range(4, 10)]
    topic.write([10])
    assert query.batch() == ["10"]
    (warning,) = warnings(caplog)
    assert f"{topic}-0: offsets 0 to 4 (exclusive) are gone" in warning


def test_a_gap_wider_than_a_batch_is_still_one_gap(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(100))
    query = Query(topic, failOnDataLoss="false").begin()
    delete_before(topic, 60)
    assert query.batch(ReadMaxRows(10)) == [str(n) for n in range(60, 70)]
    assert len(query.batch(ReadMaxRows(10))) == 10
    (warning,) = warnings(caplog)
    assert "offsets 0 to 60 (exclusive)" in warning


def test_two_gaps_are_two_warnings(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.write(range(10))
    query = Query(topic, failOnDataLoss="false").begin()
    delete_before(topic, 2)
    query.batch()
    topic.write(range(10, 20))
    delete_before(topic, 15)
    assert query.batch() == [str(n) for n in range(15, 20)]
    first, second = warnings(caplog)
    assert "offsets 0 to 2 (exclusive)" in first
    assert "offsets 10 to 15 (exclusive)" in second


def test_records_deleted_after_they_were_read_are_no_loss(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(10))
    query = Query(topic).begin()
    query.batch()
    delete_before(topic, 10)
    assert query.batch() == []
    topic.write([10])
    assert query.batch() == ["10"]
    assert warnings(caplog) == []


def test_a_topic_deleted_with_records_unread_is_a_loss_of_them(topic: Topic) -> None:
    topic.write(range(10))
    query = Query(topic).begin()
    query.batch(ReadMaxRows(4))
    delete_topic(topic)
    with pytest.raises(DataLossError, match=r"-0: offsets 4 to 10 \(exclusive\) are gone"):
        query.batch()


def test_a_topic_deleted_when_all_was_read_is_no_loss(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(10))
    query = Query(topic).begin()
    query.batch()
    delete_topic(topic)
    assert query.batch() == []
    assert query.at == {}
    assert warnings(caplog) == []


def test_a_topic_made_anew_is_read_from_its_start(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(10))
    query = Query(topic, failOnDataLoss="false").begin()
    query.batch(ReadMaxRows(8))
    delete_topic(topic)
    topic.broker.create_topic(topic.name, partitions=2)
    topic.write(["new 1", "new 2"])
    wait_until(lambda: query.batch() == ["new 1", "new 2"], "the new topic is read", 10)
    (warning,) = warnings(caplog)
    assert "offsets 8 to 10 (exclusive) are gone" in warning


def test_a_new_partition_is_no_loss_and_read_from_its_start(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(["old"])
    query = Query(topic, startingOffsets="latest").begin()
    admin = AdminClient({"bootstrap.servers": topic.broker.bootstrap})
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(10)
    topic.write(["first", "second"], partition=2)
    assert query.batch() == ["first", "second"]
    assert warnings(caplog) == []


def test_records_that_vanish_between_planning_and_reading_are_reported_by_their_task(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(10))
    patient, strict = (Query(topic, failOnDataLoss=text).begin() for text in ("false", "true"))
    splits = {}
    for query in (patient, strict):
        end = query.reader.latestOffset(query.at, ALL)
        (splits[query],) = query.reader.partitions(query.at, end)
    delete_before(topic, 7)
    assert list(patient.values(splits[patient])) == ["7", "8", "9"]
    (warning,) = warnings(caplog)
    assert "offsets 0 to 7 (exclusive)" in warning
    with pytest.raises(DataLossError, match=r"offsets 0 to 7 \(exclusive\)"):
        list(strict.values(splits[strict]))


def test_a_topic_that_vanishes_under_a_task_is_reported_with_its_range(topic: Topic) -> None:
    topic.write(range(10))
    query = Query(topic).begin()
    end = query.reader.latestOffset(query.at, ALL)
    (one,) = query.reader.partitions(query.at, end)
    delete_topic(topic)
    assert isinstance(one, Split)
    with pytest.raises(DataLossError, match=r"offsets 0 to 10 \(exclusive\) are gone"):
        list(query.values(one))


def test_the_first_batch_is_repeated_from_where_the_query_began(topic: Topic) -> None:
    """Spark asks a new reader for the initial offset then, which may be another one by now."""
    topic.write(range(5))
    first = Query(topic, startingOffsets="latest").begin()
    topic.write(range(5, 8))
    end = through_json(first.reader.latestOffset(first.at, ALL))
    topic.write(range(8, 10))
    again = Query(topic, startingOffsets="latest").begin()
    (one,) = again.reader.partitions(again.at, end)
    assert list(again.values(one)) == ["5", "6", "7"]
    again.at = end
    assert again.batch() == ["8", "9"]


def test_nothing_new_is_the_same_offset_to_the_letter(topic: Topic) -> None:
    topic.write(range(5))
    query = Query(topic).begin()
    query.batch()
    assert query.reader.latestOffset(query.at, ALL) is query.at


def test_two_queries_in_one_group_are_told(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    one, two = (Query(topic).begin() for _ in range(2))
    for query in (one, two, one):
        topic.write(["x"])
        query.batch()
        query.batch()
    (warning,) = warnings(caplog)
    assert f"somebody else commits to group spark-loss-{topic}" in warning
