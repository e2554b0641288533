"""Incremental fetch sessions, rule by rule as in KIP-227 and Kafka's own broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker import Broker
from penstock.broker.fetching import Reader
from penstock.broker.topics import Partition
from penstock.clock import ManualClock
from penstock.errors import ApiError
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.server import KafkaServer
from penstock.log import ColdRead
from penstock.settings import BrokerConfig
from penstock.testing import ThreadBroker, broker
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Topic, Wire, fetch, produce, request, topic_id

LONG_MS = 60_000
BY_NAME, BY_ID = 12, 13


class Session:
    """A client's side of one session: it keeps id and epoch as Kafka's own client does."""

    def __init__(self, wire: Wire, version: int = BY_NAME) -> None:
        self.wire = wire
        self.version = version
        self.id = 0
        self.epoch = 0

    def ask(
        self, topics: dict[Any, dict[int, int]] | None = None, **more: Any
    ) -> dict[tuple[Any, int], Any]:
        """The partitions that the answer mentions."""
        return self.read(self.wire.ask(self.request(topics, **more)))

    def request(self, topics: dict[Any, dict[int, int]] | None = None, **more: Any) -> Any:
        asked = fetch(self.version, topics or {}, session=(self.id, self.epoch), **more)
        self.epoch += 1
        return asked

    def read(self, answer: Any) -> dict[tuple[Any, int], Any]:
        assert answer.error_code is ErrorCode.none, answer.error_code
        if self.epoch == 1:
            self.id = answer.session_id
        assert answer.session_id == self.id
        return {
            (topic.topic_id if self.version >= BY_ID else topic.topic, item.partition_index): item
            for topic in answer.responses
            for item in topic.partitions
        }


@pytest.fixture
def wide(shared: ThreadBroker) -> str:
    """A topic of three partitions."""
    return shared.create_topic(partitions=3)


def values(found: dict[tuple[Any, int], Any]) -> dict[int, list[bytes]]:
    return {
        index: [value for _, value in records_in(item.records)]
        for (_, index), item in found.items()
    }


def error_of(wire: Wire, asked: Any) -> ErrorCode:
    answer = wire.ask(asked)
    assert answer.session_id == 0
    assert answer.responses == ()
    code: ErrorCode = answer.error_code
    return code


# What an answer mentions


@pytest.mark.parametrize("version", [7, 11, BY_NAME, BY_ID, 18])
def test_the_first_answer_has_everything_and_the_next_only_what_is_new(
    wire: Wire, other: Wire, wide: str, version: int
) -> None:
    name: Topic = topic_id(wire, wide) if version >= BY_ID else wide
    session = Session(wire, version)
    assert values(session.ask({name: {0: 0, 1: 0, 2: 0}})) == {0: [], 1: [], 2: []}
    assert session.id > 0
    assert session.ask() == {}
    other.ask(produce(9, wide, {1: make_batch(b"x")}))
    assert values(session.ask()) == {1: [b"x"]}
    assert values(session.ask({name: {1: 1}})) == {}
    other.ask(produce(9, wide, {0: make_batch(b"y"), 1: make_batch(b"z")}))
    assert values(session.ask()) == {0: [b"y"], 1: [b"z"]}


def test_records_come_again_until_the_client_moves_on(wire: Wire, topic: str) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    session = Session(wire)
    for asked in ({topic: {0: 0}}, {}, {}):
        assert values(session.ask(asked)) == {0: [b"x"]}
    assert session.ask({topic: {0: 1}}) == {}


def test_partitions_join_and_leave_a_session(wire: Wire, other: Wire, wide: str) -> None:
    session = Session(wire)
    session.ask({wide: {0: 0}})
    assert values(session.ask({wide: {1: 0}})) == {1: []}, "what is new to the session is told"
    session.ask(forget={wide: [0]})
    other.ask(produce(9, wide, {0: make_batch(b"x"), 1: make_batch(b"y")}))
    assert values(session.ask()) == {1: [b"y"]}


def test_a_partition_named_and_forgotten_at_once_is_forgotten(wire: Wire, wide: str) -> None:
    wire.ask(produce(9, wide, {0: make_batch(b"x")}))
    session = Session(wire)
    session.ask({wide: {1: 0}})
    assert session.ask({wide: {0: 0}}, forget={wide: [0]}) == {}
    assert session.ask() == {}


def test_who_forgets_everything_has_no_session_any_more(wire: Wire, wide: str) -> None:
    session = Session(wire)
    session.ask({wide: {0: 0, 1: 0}})
    answer = wire.ask(session.request(forget={wide: [0, 1]}))
    assert (answer.error_code, answer.session_id, answer.responses) == (ErrorCode.none, 0, ())
    assert error_of(wire, session.request()) is ErrorCode.fetch_session_id_not_found


def test_an_error_is_told_every_time_and_its_end_is_news(
    shared: ThreadBroker, wire: Wire, topic: str
) -> None:
    session = Session(wire)
    session.ask({topic: {0: 0}})
    for _ in range(2):
        found = session.ask({topic: {0: 99}})
        assert found[topic, 0].error_code is ErrorCode.offset_out_of_range
    assert session.ask()[topic, 0].error_code is ErrorCode.offset_out_of_range
    assert session.ask({topic: {0: 0}})[topic, 0].error_code is ErrorCode.none
    assert session.ask() == {}


def test_a_busy_partition_does_not_starve_the_rest(wire: Wire, wide: str) -> None:
    batch = make_batch(b"x" * 1000)
    for _ in range(3):
        wire.ask(produce(9, wide, {0: batch, 1: batch, 2: batch}))
    session = Session(wire)
    session.ask({wide: {0: 0, 1: 0, 2: 0}}, max_bytes=1)
    seen = [
        index
        for _ in range(6)
        for (_, index), item in session.ask(max_bytes=1).items()
        if item.records
    ]
    assert sorted(seen) == [0, 0, 1, 1, 2, 2]


def test_a_full_answer_leaves_the_other_partitions_for_the_next(wire: Wire, wide: str) -> None:
    """They are not even looked at: a small answer does not cost what a thousand partitions do."""
    session = Session(wire)
    session.ask({wide: {0: 0, 1: 0, 2: 0}})
    batch = make_batch(b"x" * 1000)
    wire.ask(produce(9, wide, {0: batch, 1: batch, 2: batch}))
    answers = [[index for _, index in session.ask(max_bytes=1)] for _ in range(3)]
    assert sorted(answers) == [[0], [1], [2]]


def test_an_incremental_fetch_waits_for_records_of_any_partition(
    wire: Wire, other: Wire, wide: str
) -> None:
    session = Session(wire)
    session.ask({wide: {0: 0, 1: 0, 2: 0}})
    for index in (2, 0, 1, 1):
        wire.send(session.request(max_wait_ms=LONG_MS))
        assert wire.is_silent(0.02)
        other.ask(produce(9, wide, {index: make_batch(b"x")}))
        found = session.read(wire.receive())
        assert list(values(found)) == [index]
        end = found[wide, index].high_watermark
        assert session.ask({wide: {index: end}}) == {}


# Ids and epochs


def test_an_unknown_session_is_not_found(wire: Wire) -> None:
    asked = fetch(BY_NAME, {}, session=(123_456, 1))
    assert error_of(wire, asked) is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("epoch", [-2, 2, 5, 2**31 - 1])
def test_a_wrong_epoch_is_refused_and_does_no_harm(wire: Wire, topic: str, epoch: int) -> None:
    session = Session(wire)
    session.ask({topic: {0: 0}})
    wrong = fetch(BY_NAME, {topic: {0: 7}}, session=(session.id, epoch))
    assert error_of(wire, wrong) is ErrorCode.invalid_fetch_session_epoch
    assert session.ask() == {}


def test_names_and_ids_do_not_mix_in_a_session(wire: Wire, topic: str) -> None:
    by_name, by_id = Session(wire, BY_NAME), Session(wire, BY_ID)
    by_name.ask({topic: {0: 0}})
    by_id.ask({topic_id(wire, topic): {0: 0}})
    for session, version in ((by_name, BY_ID), (by_id, BY_NAME)):
        asked = fetch(version, {}, session=(session.id, session.epoch))
        assert error_of(wire, asked) is ErrorCode.fetch_session_topic_id_error
        assert session.ask() == {}


def test_a_full_fetch_that_names_a_session_ends_it_and_begins_another(
    wire: Wire, topic: str
) -> None:
    first = Session(wire)
    first.ask({topic: {0: 0}})
    second = Session(wire)
    second.epoch = 1
    second.read(wire.ask(fetch(BY_NAME, {topic: {0: 0}}, session=(first.id, 0))))
    assert error_of(wire, first.request()) is ErrorCode.fetch_session_id_not_found
    assert second.ask() == {}


@pytest.mark.parametrize("reads", [False, True])
def test_the_final_epoch_ends_a_session(wire: Wire, topic: str, reads: bool) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    session = Session(wire)
    session.ask({topic: {0: 0}})
    last: dict[Topic, dict[int, int]] = {topic: {0: 0}} if reads else {}
    answer = wire.ask(fetch(BY_NAME, last, session=(session.id, -1)))
    assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)
    assert error_of(wire, session.request()) is ErrorCode.fetch_session_id_not_found


def test_a_session_is_not_bound_to_a_connection(wire: Wire, other: Wire, topic: str) -> None:
    session = Session(wire)
    session.ask({topic: {0: 0}})
    session.wire = other
    assert session.ask() == {}


def test_a_request_that_waits_is_overtaken_by_the_next_of_its_session(
    wire: Wire, other: Wire, topic: str
) -> None:
    session = Session(wire)
    session.ask({topic: {0: 0}})
    wire.send(session.request(max_wait_ms=LONG_MS))
    assert wire.is_silent(0.05)
    other.send(session.request(max_wait_ms=LONG_MS))
    assert wire.receive().error_code is ErrorCode.invalid_fetch_session_epoch
    wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    assert values(session.read(other.receive())) == {0: [b"x"]}


def test_a_request_that_waits_hears_that_its_session_was_closed(
    wire: Wire, other: Wire, topic: str
) -> None:
    session = Session(wire)
    session.ask({topic: {0: 0}})
    wire.send(session.request(max_wait_ms=LONG_MS))
    assert wire.is_silent(0.05)
    other.ask(fetch(BY_NAME, {}, session=(session.id, -1)))
    assert wire.receive().error_code is ErrorCode.fetch_session_id_not_found


# Topics that come and go


def delete(wire: Wire, topic: str) -> None:
    answer = wire.ask(request("delete_topics", 5, topic_names=[topic], timeout=10_000))
    assert answer.responses[0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_quiet_topic_that_is_deleted_is_told(
    shared: ThreadBroker, wire: Wire, other: Wire, topic: str, version: int
) -> None:
    kept = shared.create_topic()
    names: list[Any] = [kept, topic]
    if version >= BY_ID:
        names = [topic_id(wire, name) for name in names]
    session = Session(wire, version)
    session.ask({name: {0: 0} for name in names})
    assert session.ask() == {}
    delete(other, topic)
    found = session.ask()
    expected = (
        ErrorCode.unknown_topic_id if version >= BY_ID else ErrorCode.unknown_topic_or_partition
    )
    assert {key: item.error_code for key, item in found.items()} == {(names[1], 0): expected}
    other.ask(produce(9, kept, {0: make_batch(b"x")}))
    assert values({key: item for key, item in session.ask().items() if key[0] == names[0]}) == {
        0: [b"x"]
    }


def test_by_name_a_session_goes_on_with_the_topic_that_has_the_name_now(
    shared: ThreadBroker, wire: Wire, other: Wire, topic: str
) -> None:
    session = Session(wire)
    session.ask({topic: {0: 0}})
    assert session.ask() == {}
    delete(other, topic)
    shared.create_topic(topic)
    other.ask(produce(9, topic, {0: make_batch(b"new")}))
    assert values(session.ask(max_wait_ms=5_000)) == {0: [b"new"]}


def test_by_id_a_session_does_not_take_a_new_topic_for_the_old(
    shared: ThreadBroker, wire: Wire, other: Wire, topic: str
) -> None:
    old = topic_id(wire, topic)
    session = Session(wire, BY_ID)
    session.ask({old: {0: 0}})
    delete(other, topic)
    shared.create_topic(topic)
    other.ask(produce(9, topic, {0: make_batch(b"new")}))
    assert session.ask()[old, 0].error_code is ErrorCode.unknown_topic_id


def test_a_partition_that_comes_to_be_is_read(
    shared: ThreadBroker, wire: Wire, other: Wire, topic: str
) -> None:
    session = Session(wire)
    for found in (session.ask({topic: {0: 0, 1: 0}}), session.ask(), session.ask()):
        assert found[topic, 1].error_code is ErrorCode.unknown_topic_or_partition
    grown = {"name": topic, "count": 2, "assignments": None}
    other.ask(request("create_partitions", 2, topics=[grown], timeout=10_000))
    other.ask(produce(9, topic, {1: make_batch(b"x")}))
    assert values(session.ask()) == {1: [b"x"]}


# How many there are


@contextlib.contextmanager
def small_broker(sessions_max: int) -> Iterator[tuple[Wire, str]]:
    with (
        broker(fetch_sessions_max=sessions_max) as running,
        Wire(running.bootstrap) as wire,
    ):
        yield wire, running.create_topic()


def test_without_room_a_fetch_is_answered_without_a_session() -> None:
    with small_broker(0) as (wire, topic):
        wire.ask(produce(9, topic, {0: make_batch(b"x")}))
        answer = wire.ask(fetch(BY_NAME, {topic: {0: 0}}, session=(0, 0)))
        assert answer.session_id == 0
        assert len(answer.responses) == 1


def test_a_session_in_use_is_not_taken_away() -> None:
    with small_broker(1) as (wire, topic):
        session = Session(wire)
        session.ask({topic: {0: 0}})
        assert wire.ask(fetch(BY_NAME, {topic: {0: 0}}, session=(0, 0))).session_id == 0
        assert session.ask() == {}


class Nothing:
    """A directory without partitions."""

    deletions = 0

    def resolve(self, key: Any) -> Partition | ApiError:
        return ApiError(ErrorCode.unknown_topic_or_partition)


def test_the_longest_unused_session_makes_room_after_two_minutes() -> None:
    clock = ManualClock()
    sessions = FetchSessions(2, clock)
    first, second = (sessions.open(Reader(Nothing()), True) for _ in range(2))
    assert first is not None
    assert second is not None
    clock.advance(119)
    sessions.advance(first)
    assert sessions.open(Reader(Nothing()), True) is None
    clock.advance(2)
    third = sessions.open(Reader(Nothing()), True)
    assert third is not None
    assert len(sessions) == 2
    with pytest.raises(ApiError, match="not_found"):
        sessions.find(second.id, 1, True)
    assert sessions.find(first.id, 2, True) is first
    assert sessions.open(Reader(Nothing()), True) is None


def test_epochs_wrap_from_the_largest_to_one() -> None:
    sessions = FetchSessions(1, ManualClock())
    session = sessions.open(Reader(Nothing()), False)
    assert session is not None
    session.epoch = 2**31 - 1
    assert sessions.find(session.id, 2**31 - 1, False) is session
    sessions.advance(session)
    assert sessions.find(session.id, 1, False) is session


async def test_what_comes_while_the_first_answer_waits_for_a_disk_is_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(addr="127.0.0.1:0", data_dir=str(tmp_path))
    server = await KafkaServer.start(config)
    topic = await server.broker.topics.create("t", 2)
    topic.partitions[0].append(memoryview(bytearray(make_batch(b"old"))), 1)
    await server.stop()
    server = await KafkaServer.start(config)  # which has not looked at the old record yet
    loop, reads, goes_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    run = ColdRead.run

    def run_slowly(cold: ColdRead) -> Any:
        loop.call_soon_threadsafe(reads.set)
        assert goes_on.wait(10)
        return run(cold)

    monkeypatch.setattr(ColdRead, "run", run_slowly)
    with Wire("{}:{}".format(*server.address)) as wire:
        session = Session(wire)
        first = asyncio.create_task(asyncio.to_thread(session.ask, {"t": {0: 0, 1: 0}}))
        await reads.wait()
        server.broker.topics.partition("t", 1).append(memoryview(bytearray(make_batch(b"new"))), 1)
        goes_on.set()
        assert records_in((await first)["t", 0].records) == [(0, b"old")]
        second = await asyncio.to_thread(session.ask, {"t": {0: 1}})
        assert [key for key, item in second.items() if item.records] == [("t", 1)]
    await server.stop()


# What a session costs


async def test_a_session_whose_client_is_gone_costs_one_note_and_then_nothing(
    server: KafkaServer,
) -> None:
    log, reader = await a_followed_log(server.broker, server)
    assert len(log.subscribers) == 1
    log.append(memoryview(bytearray(make_batch(b"x"))))
    assert not log.subscribers
    log.append(memoryview(bytearray(make_batch(b"y"))))
    (found,) = reader.collect(1 << 20, everything=False)
    assert found.high_watermark == 2


async def test_a_reader_that_has_read_all_is_told_again(server: KafkaServer) -> None:
    log, reader = await a_followed_log(server.broker, server)
    for end in range(1, 4):
        log.append(memoryview(bytearray(make_batch(b"x"))))
        assert len(reader.collect(1 << 20, everything=False)) == 1
        reader.position(("t", 0)).offset = end
        reader.collect(1 << 20, everything=False)
        assert len(log.subscribers) == 1


async def a_followed_log(broker: Broker, server: KafkaServer) -> tuple[Any, Reader]:
    topic = await broker.topics.create("t", 1)
    reader = Reader(server._door)
    reader.position(("t", 0)).bytes_max = 1 << 20
    reader.collect(1 << 20, everything=True)
    reader.follow()
    return topic.partitions[0].log, reader


async def test_quiet_partitions_are_not_looked_at(server: KafkaServer) -> None:
    """A thousand of them cost nothing: only the one that grew is looked up and read."""
    broker = server.broker
    topic = await broker.topics.create("t", 50)
    reader = Reader(server._door)
    for index in range(50):
        reader.position(("t", index)).bytes_max = 1 << 20
    reader.collect(1 << 20, everything=True)
    reader.follow()
    topic.partitions[7].log.append(memoryview(bytearray(make_batch(b"x"))))
    assert [position.key for position in reader._ready] == [("t", 7)]


def test_ids_are_positive_and_all_different() -> None:
    sessions = FetchSessions(500, ManualClock())
    opened = [sessions.open(Reader(Nothing()), True) for _ in range(500)]
    ids = {session.id for session in opened if session is not None}
    assert len(ids) == 500
    assert min(ids) > 0
