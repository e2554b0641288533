"""Data loss: each gap is reported once, with its range, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Where
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from penstock.cli.adminapi import AdminClient, NewPartitions
from penstock.client.cluster import LATEST, Cluster
from penstock.log.scan import scan
from penstock.model import TopicPartition
from penstock.spark.batch import PenstockReader
from penstock.spark.connecting import ClusterSettings
from penstock.spark.errors import DataLossError
from penstock.spark.offsets import Ago
from penstock.spark.options import Options
from penstock.spark.progress import Progress
from penstock.spark.reading import Split
from penstock.spark.schema import read_schema
from penstock.spark.stream import PenstockStreamReader
from penstock.spark.subscription import Resolver
from penstock.testing import ThreadBroker
from penstock.testing import broker as broker_of_its_own
from tests.spark.harness import Topic, wait_until

ALL = ReadAllAvailable()


@pytest.fixture
def broker(penstock_shared: ThreadBroker) -> ThreadBroker:
    return penstock_shared


class Query:
    """Asks a reader what Spark would ask it, batch by batch."""

    def __init__(self, topic: Topic, **options: str) -> None:
        given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
        given |= {"startingOffsets": "earliest", "retryTimeout": "2s", **options}
        given = {name: text for name, text in given.items() if text}
        self.reader = PenstockStreamReader(
            Options(given, "stream"), read_schema(headers=False), "loss"
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


def make_anew(topic: Topic, *values: str) -> None:
    delete_topic(topic)
    topic.broker.create_topic(topic.name, partitions=2)
    topic.write(values)


def test_even_if_it_has_grown_beyond_the_old_one(topic: Topic) -> None:
    topic.write(range(2))
    query = Query(topic).begin()
    query.batch()
    make_anew(topic, "a", "b", "c")
    assert query.batch() == ["a", "b", "c"]
    assert query.batch() == []


def test_or_to_the_very_same_size(topic: Topic) -> None:
    topic.write(range(2))
    query = Query(topic).begin()
    query.batch()
    make_anew(topic, "a", "b")
    assert query.batch() == ["a", "b"]
    assert query.batch() == []


@pytest.mark.parametrize("new", [("a",), ("a", "b", "c")])
def test_even_if_that_happened_while_the_query_did_not_run(
    topic: Topic, new: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can tell what was left of the old one then: that is a gap without an end."""
    topic.write(range(2))
    before = Query(topic).begin()
    before.batch()
    make_anew(topic, *new)
    after = Query(topic, failOnDataLoss="false")
    after.at = before.at
    assert after.batch() == list(new)
    assert len(warnings(caplog)) == 2  # there are two partitions
    strict = Query(topic)
    strict.at = before.at
    with pytest.raises(DataLossError, match=r"offsets 2 on are gone: the topic was deleted and ma"):
        strict.batch()


def test_a_batch_of_a_topic_made_anew_can_be_repeated(topic: Topic) -> None:
    topic.write(range(2))
    query = Query(topic).begin()
    query.batch()
    make_anew(topic, "a")
    end = through_json(query.reader.latestOffset(query.at, ALL))
    again = Query(topic)
    (one,) = again.reader.partitions(query.at, end)
    assert list(again.values(one)) == ["a"]


def test_a_batch_whose_topic_was_made_anew_meanwhile_reads_nothing_of_the_new_one(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(range(5))
    query = Query(topic, failOnDataLoss="false").begin()
    end = through_json(query.reader.latestOffset(query.at, ALL))
    make_anew(topic, *"abcdefg")
    assert query.reader.partitions(query.at, end) == []
    (warning,) = warnings(caplog)
    assert "offsets 0 to 5 (exclusive) are gone: the topic was deleted and made anew" in warning
    query.at = end
    assert query.batch() == list("abcdefg")


class TestALogThatWasCutBack:
    """As by a power cut, where records were acknowledged before they were on disk."""

    @pytest.fixture
    def cut(self) -> Iterator[Topic]:
        with broker_of_its_own() as running:
            yield Topic(running, running.create_topic(partitions=1))

    def cut_back(self, topic: Topic) -> None:
        """Take the last batch off the log."""
        topic.broker.stop()
        directory = Path(topic.broker.data_dir) / topic.name / "0"
        (directory / "checkpoint").unlink()
        path = directory / f"{0:020d}.log"
        *_, last = [one.position for one in scan(str(path))]
        os.truncate(path, last)
        topic.broker.start()

    def test_fails_the_query(self, cut: Topic) -> None:
        for values in (range(9), range(1)):
            cut.write(values)
        query = Query(cut).begin()
        assert len(query.batch()) == 10
        self.cut_back(cut)
        with pytest.raises(
            DataLossError, match=r"offsets 9 to 10 \(exclusive\) are gone: the log e"
        ):
            query.batch()

    def test_or_is_gone_on_with_at_its_end(
        self, cut: Topic, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nothing is read again that was read before."""
        for values in (range(9), range(1)):
            cut.write(values)
        query = Query(cut, failOnDataLoss="false").begin()
        query.batch()
        self.cut_back(cut)
        assert query.batch() == []
        cut.write(["new"])
        assert query.batch() == ["new"]
        (warning,) = warnings(caplog)
        assert "offsets 9 to 10 (exclusive) are gone" in warning


class Meddled(Cluster):
    """Somebody does something between the first look at offsets and the next."""

    def __init__(self, bootstrap: str, meddle: Callable[[], None]) -> None:
        super().__init__(bootstrap, retry_timeout_ms=2_000)
        self._meddle: Callable[[], None] | None = meddle

    def offsets(self, *given: Any, **more: Any) -> Any:
        found = super().offsets(*given, **more)
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()
        return found


class Misled(Cluster):
    """The brokers it talks to are behind the others for a moment."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, retry_timeout_ms=2_000)
        self.offsets_short_by = 0  # in the next answer that tells where logs end
        self.committed_short_by = 0  # in every one that tells where committed records end
        self.topics_unknown = 0  # in so many answers, none is there
        self.old_ids: dict[str, uuid.UUID] = {}  # in the next answer

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, int | None]:
        found = super().offsets(wanted, committed=committed)
        if LATEST not in wanted.values():
            return found
        short_by = self.offsets_short_by + (self.committed_short_by if committed else 0)
        self.offsets_short_by = 0
        return {one: max((offset or 0) - short_by, 0) for one, offset in found.items()}

    def partitions(self, topics: Collection[str]) -> dict[str, int | None]:
        if self.topics_unknown:
            self.topics_unknown -= 1
            return dict.fromkeys(topics)
        return super().partitions(topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, uuid.UUID]:
        old_ids, self.old_ids = self.old_ids, {}
        return {**super().topic_ids(topics), **old_ids}


class TestABrokerThatIsBehind:
    """It is asked again before anything is believed to be lost."""

    @pytest.fixture
    def misled(self, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Misled:
        cluster = Misled(topic.broker.bootstrap)
        monkeypatch.setattr(ClusterSettings, "connect", lambda _: cluster)
        return cluster

    @pytest.fixture
    def query(self, topic: Topic, misled: Misled) -> Query:
        """One that has read all ten records."""
        topic.write(range(10))
        query = Query(topic).begin()
        assert len(query.batch()) == 10
        return query

    def stays(self, query: Query) -> bool:
        return query.reader.latestOffset(query.at, ALL) is query.at

    def test_in_its_ends(self, query: Query, misled: Misled) -> None:
        misled.offsets_short_by = 4
        assert self.stays(query)

    def test_in_its_topics(self, query: Query, misled: Misled) -> None:
        misled.topics_unknown = 1
        assert self.stays(query)

    def test_in_its_ids(self, query: Query, topic: Topic, misled: Misled) -> None:
        misled.old_ids = {topic.name: uuid.uuid4()}
        assert self.stays(query)

    def test_when_an_available_now_query_begins(self, query: Query, misled: Misled) -> None:
        misled.offsets_short_by = 4
        query.reader.prepareForTriggerAvailableNow()
        assert self.stays(query)

    def test_then_in_its_topics(self, query: Query, misled: Misled) -> None:
        misled.topics_unknown = 1
        query.reader.prepareForTriggerAvailableNow()
        assert self.stays(query)

    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_transaction_that_is_open_before_our_place_is_no_loss(
        self, query: Query, topic: Topic, misled: Misled, available_now: bool
    ) -> None:
        """The query read uncommitted records until now."""
        misled.committed_short_by = 4
        now = Query(topic, **{"kafka.isolation.level": "read_committed"})
        now.at = query.at
        if available_now:
            now.reader.prepareForTriggerAvailableNow()
        assert self.stays(now)


def test_what_vanishes_while_a_batch_waits_for_more_is_judged_as_it_was_seen_last(
    topic: Topic,
) -> None:
    waiting = {"minOffsetsPerTrigger": "100", "maxTriggerDelay": "1h"}
    topic.write(range(2))
    query = Query(topic, **waiting).begin()
    assert len(query.batch(ReadMinRows(100))) == 2  # the first batch does not wait
    make_anew(topic, "a", "b", "c")
    for _ in range(2):
        assert query.batch(ReadMinRows(100)) == []
    delete_topic(topic)
    for _ in range(2):
        assert query.batch(ReadMinRows(100)) == []


@pytest.mark.parametrize("was_idle", [False, True])
def test_a_topic_made_anew_is_read_from_its_start_if_the_checkpoint_has_no_id(
    topic: Topic, was_idle: bool
) -> None:
    """As one of the connector has none. A reader that has seen the old topic knows."""
    topic.write(range(5))
    query = Query(topic, failOnDataLoss="true" if was_idle else "false")
    query.at = {topic.name: {"0": 5, "1": 0}}
    if was_idle:
        assert query.batch() == []
    make_anew(topic, "a", "b")
    assert query.batch() == ["a", "b"]
    assert query.batch() == []


def test_the_partitions_that_it_has_more_owe_us_nothing(topic: Topic) -> None:
    topic.write(range(5))
    query = Query(topic).begin()
    query.batch()
    delete_topic(topic)
    topic.broker.create_topic(topic.name, partitions=3)
    topic.write(["a", "b"], partition=2)
    delete_before(topic, 1, partition=2)
    assert query.batch() == ["b"]


@pytest.mark.parametrize("of", ["stream", "batch"])
def test_earliest_is_no_loss_whatever_retention_does_meanwhile(
    topic: Topic, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.write(range(10))
    meddled = Meddled(topic.broker.bootstrap, lambda: delete_before(topic, 4))
    monkeypatch.setattr(ClusterSettings, "connect", lambda _: meddled)
    if of == "stream":
        query = Query(topic).begin()
        assert query.batch() == [str(n) for n in range(4, 10)]
    else:
        given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
        reader = PenstockReader(Options(given, "batch"), read_schema(headers=False))
        (one,) = reader.partitions()
        assert isinstance(one, Split)
        assert one.range is not None
        assert (one.range.start, one.range.end) == (4, 10)


def test_a_topic_of_a_pattern_that_vanishes_while_we_look_does_not_end_the_query(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Topic(topic.broker, topic.broker.create_topic(f"{topic}-other"))
    for one in (topic, other):
        one.write(["x"])
    query = Query(
        topic, subscribe="", subscribePattern=f"{topic}.*", failOnDataLoss="false"
    ).begin()
    meddled = Meddled(topic.broker.bootstrap, lambda: delete_topic(other))
    monkeypatch.setattr(ClusterSettings, "connect", lambda _: meddled)
    query.reader.stop()
    query.reader._connected = None
    assert query.batch() == ["x"]


def test_a_record_that_comes_while_a_time_is_looked_up_is_not_skipped(topic: Topic) -> None:
    """Before, no record was late enough."""
    topic.write(range(5), timestamp=1_000)
    now_ms = int(time.time() * 1000)
    meddled = Meddled(topic.broker.bootstrap, lambda: topic.write(["new"], timestamp=now_ms))
    partition = TopicPartition(topic.name, 0)
    found = Resolver(meddled, committed=False).resolve(Ago(60_000), [partition], "starting")
    assert found[partition] <= 5


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


def test_even_if_it_was_empty(topic: Topic) -> None:
    """Spark writes an empty first batch down, too: of a join, say, whose other side has records."""
    topic.write(range(5))
    first = Query(topic, startingOffsets="latest").begin()
    end = through_json(first.reader.latestOffset(first.at, ALL))
    topic.write(range(5, 8))
    again = Query(topic, startingOffsets="latest").begin()
    assert again.reader.partitions(again.at, end) == []
    again.at = end
    assert again.batch() == ["5", "6", "7"]


def test_an_available_now_query_that_starts_at_the_end_of_a_growing_topic_reads_nothing_old(
    topic: Topic,
) -> None:
    topic.write(range(5))
    query = Query(topic, startingOffsets="latest")
    query.reader.prepareForTriggerAvailableNow()  # Spark asks for this first
    topic.write(range(5, 8))
    query.begin()
    assert query.batch() == []
    assert query.at[topic.name]["0"] == 8


def test_nothing_new_is_the_same_offset_to_the_letter(topic: Topic) -> None:
    topic.write(range(5))
    query = Query(topic).begin()
    query.batch()
    assert query.reader.latestOffset(query.at, ALL) is query.at


def test_progress_that_cannot_be_shown_holds_up_a_batch_a_minute_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    with socket.create_server(("127.0.0.1", 0)) as server:  # which never answers
        server.settimeout(0.1)
        where = ClusterSettings(
            bootstrap=f"127.0.0.1:{server.getsockname()[1]}",
            client_id="c",
            request_timeout_ms=50,
            retry_timeout_ms=50,
        )
        progress = Progress("g", where, lambda: now_s)

        def is_tried(offset: int) -> bool:
            progress.commit({TopicPartition("t", 0): offset})
            connections = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    server.accept()[0].close()
                    connections += 1
            return connections > 0

        assert is_tried(1)
        assert not is_tried(2)
        now_s = 59.0
        assert not is_tried(3)
        now_s = 61.0
        assert is_tried(4)
        progress.close()
    (warning,) = warnings(caplog)
    assert "the progress of group g is not shown" in warning


def test_two_queries_in_one_group_are_told(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    one, two = (Query(topic).begin() for _ in range(2))
    for query in (one, two, one):
        topic.write(["x"])
        query.batch()
        query.batch()
    (warning,) = warnings(caplog)
    assert f"somebody else commits to group spark-loss-{topic}" in warning
