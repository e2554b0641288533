"""When a fetch is answered, and with how much."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.kafka.server import KafkaServer
from penstock.log.inspect import repair
from penstock.testing import ThreadBroker, broker
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Topic, Wire, fetch, only_partition, produce, request, topic_id
from tests.log.support import damage

LONG_MS = 60_000  # longer than any test waits: whoever waits so long waits for ever


def partitions(response: Any) -> dict[int, Any]:
    return {item.partition_index: item for topic in response.responses for item in topic.partitions}


def values(response: Any) -> dict[int, list[bytes]]:
    """For each partition answered, the values that came."""
    return {
        index: [value for _, value in records_in(item.records)]
        for index, item in partitions(response).items()
    }


# How long


def test_who_does_not_want_to_wait_does_not(wire: Wire, topic: str) -> None:
    answer = wire.ask(fetch(12, {topic: {0: 0}}, max_wait_ms=0, min_bytes=1000))
    assert values(answer) == {0: []}


def test_who_asks_for_nothing_does_not_wait(wire: Wire, topic: str) -> None:
    wire.ask(fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=0))
    wire.ask(fetch(12, {}, max_wait_ms=LONG_MS))


def test_when_nothing_comes_the_answer_comes_when_the_time_is_up(wire: Wire, topic: str) -> None:
    begun = time.monotonic()
    answer = wire.ask(fetch(12, {topic: {0: 0}}, max_wait_ms=200))
    assert 0.19 <= time.monotonic() - begun < 5
    assert values(answer) == {0: []}


def test_an_append_wakes_a_waiting_fetch_at_once(wire: Wire, other: Wire, topic: str) -> None:
    wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS))
    assert wire.is_silent(0.05)
    other.ask(produce(9, topic, {0: make_batch(b"x")}))
    assert values(wire.receive()) == {0: [b"x"]}


def test_a_waiting_fetch_is_answered_once(wire: Wire, other: Wire, topic: str) -> None:
    for offset in range(10):
        wire.send(fetch(12, {topic: {0: offset}}, max_wait_ms=LONG_MS))
        other.send(*(produce(9, topic, {0: make_batch(b"x")}) for _ in range(3)))
        assert wire.receive().error_code is ErrorCode.none
        for _ in range(3):
            other.receive()
    assert wire.is_silent(0.1)


def test_a_fetch_waits_until_min_bytes_have_come(wire: Wire, other: Wire, topic: str) -> None:
    batch = make_batch(b"x" * 100)
    wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=3 * len(batch)))
    for _ in range(2):
        other.ask(produce(9, topic, {0: batch}))
        assert wire.is_silent(0.05)
    other.ask(produce(9, topic, {0: batch}))
    assert len(values(wire.receive())[0]) == 3


def test_a_fetch_that_finds_too_little_waits_for_the_rest(
    wire: Wire, other: Wire, topic: str
) -> None:
    batch = make_batch(b"x" * 100)
    other.ask(produce(9, topic, {0: batch}))
    wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=2 * len(batch)))
    assert wire.is_silent(0.05)
    other.ask(produce(9, topic, {0: batch}))
    assert len(values(wire.receive())[0]) == 2


def test_bytes_of_all_partitions_count_towards_min_bytes(
    shared: ThreadBroker, wire: Wire, other: Wire
) -> None:
    topic = shared.create_topic(partitions=2)
    batch = make_batch(b"x" * 100)
    other.ask(produce(9, topic, {0: batch}))
    wire.send(fetch(12, {topic: {0: 0, 1: 0}}, max_wait_ms=LONG_MS, min_bytes=2 * len(batch)))
    assert wire.is_silent(0.05)
    other.ask(produce(9, topic, {1: batch}))
    assert values(wire.receive()) == {0: [b"x" * 100], 1: [b"x" * 100]}


def test_more_in_a_partition_that_gives_no_more_is_no_reason_to_answer(
    wire: Wire, other: Wire, topic: str
) -> None:
    """Bytes that would not be in the answer do not count towards min_bytes."""
    batch = make_batch(b"x" * 100)
    wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=400, min_bytes=300, partition_bytes=1))
    for _ in range(5):
        other.ask(produce(9, topic, {0: batch}))
    assert wire.is_silent(0.1)
    assert len(values(wire.receive())[0]) == 1


@pytest.mark.parametrize("limit", ["partition_bytes", "max_bytes"])
def test_a_next_batch_that_does_not_fit_is_no_reason_to_wait(
    wire: Wire, topic: str, limit: str
) -> None:
    """Kafka sends a part of it then, which counts towards min_bytes."""
    batch = make_batch(b"x" * 100)
    for _ in range(3):
        wire.ask(produce(9, topic, {0: batch}))
    bytes_ = 2 * len(batch) + 50
    limits: dict[str, Any] = {limit: bytes_}
    asked = fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=bytes_, **limits)
    assert len(values(wire.ask(asked))[0]) == 2


def test_a_next_partition_whose_batch_does_not_fit_is_no_reason_to_wait(
    shared: ThreadBroker, wire: Wire
) -> None:
    topic = shared.create_topic(partitions=2)
    batch = make_batch(b"x" * 100)
    wire.ask(produce(9, topic, {0: batch, 1: batch}))
    bytes_ = len(batch) + 50
    asked = fetch(
        12, {topic: {0: 0, 1: 0}}, max_wait_ms=LONG_MS, min_bytes=bytes_, max_bytes=bytes_
    )
    assert sorted(map(len, values(wire.ask(asked)).values())) == [0, 1]


def test_a_gap_that_ends_the_log_is_no_reason_to_answer_nor_to_give_others_less(
    own: ThreadBroker,
) -> None:
    """A repair leaves one where it cuts the last batch out: nobody will ever fill it."""
    topic = own.create_topic(partitions=2)
    with Wire(own.bootstrap) as wire:
        for _ in range(3):
            wire.ask(produce(9, topic, dict.fromkeys((0, 1), make_batch(b"x"))))
    own.stop()
    directory = Path(own.data_dir, topic, "0")
    segment = directory / f"{0:020d}.log"
    damage(segment, segment.stat().st_size - 1)
    repair(str(directory))
    own.start()
    with Wire(own.bootstrap) as wire, Wire(own.bootstrap) as other:
        answer = wire.ask(fetch(12, {topic: {0: 0, 1: 0}}))
        assert list(map(len, values(answer).values())) == [2, 3]
        assert partitions(answer)[0].high_watermark == 3
        assert list(map(len, values(wire.ask(fetch(12, {topic: {0: 2, 1: 0}}))).values())) == [0, 3]
        wire.send(fetch(12, {topic: {0: 2}}, max_wait_ms=LONG_MS))
        assert wire.is_silent(0.1)
        other.ask(produce(9, topic, {0: make_batch(b"y")}))
        assert values(wire.receive()) == {0: [b"y"]}


def test_what_the_next_segment_holds_is_no_reason_to_wait(shared: ThreadBroker, wire: Wire) -> None:
    topic = shared.create_topic(settings={"segment.bytes": "1048576"})
    batch = make_batch(b"x" * 700_000)
    for _ in range(2):
        wire.ask(produce(9, topic, {0: batch}))
    asked = fetch(
        12, {topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=1_000_000, max_bytes=5_000_000
    )
    assert len(values(wire.ask(asked))[0]) == 1


def test_min_bytes_above_max_bytes_is_max_bytes(wire: Wire, topic: str) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x" * 100)}))
    asked = fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS, min_bytes=2**31 - 1, max_bytes=50)
    assert len(values(wire.ask(asked))[0]) == 1


def test_an_error_is_answered_at_once(shared: ThreadBroker, wire: Wire) -> None:
    topic = shared.create_topic(partitions=2)
    answer = wire.ask(fetch(12, {topic: {0: 0, 1: 99}}, max_wait_ms=LONG_MS))
    assert partitions(answer)[1].error_code is ErrorCode.offset_out_of_range
    assert partitions(answer)[0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", [12, 13])
def test_that_a_topic_is_missing_is_told_when_the_others_are(
    wire: Wire, other: Wire, topic: str, version: int
) -> None:
    """Else a client with one deleted topic would ask as fast as it can."""
    name: Topic = topic_id(wire, topic) if version >= 13 else topic
    missing: Topic = uuid.uuid4() if version >= 13 else "there-is-no-such-topic"
    wire.send(fetch(version, {name: {0: 0}, missing: {0: 0}}, max_wait_ms=LONG_MS))
    assert wire.is_silent(0.05)
    other.ask(produce(9, topic, {0: make_batch(b"x")}))
    answer = wire.receive()
    codes = [found.partitions[0].error_code for found in answer.responses]
    expected = ErrorCode.unknown_topic_id if version >= 13 else ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.none, expected]


@pytest.mark.parametrize("version", [12, 13])
def test_when_nothing_asked_for_is_there_nobody_waits(wire: Wire, version: int) -> None:
    missing: Topic = uuid.uuid4() if version >= 13 else "there-is-no-such-topic"
    answer = wire.ask(fetch(version, {missing: {0: 0, 1: 0}}, max_wait_ms=LONG_MS))
    expected = ErrorCode.unknown_topic_id if version >= 13 else ErrorCode.unknown_topic_or_partition
    assert {item.error_code for item in partitions(answer).values()} == {expected}


def test_a_stopping_broker_answers_whoever_waits() -> None:
    with broker() as running:
        topic = running.create_topic()
        with Wire(running.bootstrap) as wire:
            wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS))
            assert wire.is_silent(0.05)
            running.stop()
            assert values(wire.receive()) == {0: []}


# How much


def test_the_first_batch_comes_however_large_it_is(wire: Wire, topic: str) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x" * 5000)}))
    wire.ask(produce(9, topic, {0: make_batch(b"y")}))
    small: list[dict[str, Any]] = [{"max_bytes": 100}, {"partition_bytes": 100}, {"max_bytes": 0}]
    for sizes in small:
        assert values(wire.ask(fetch(12, {topic: {0: 0}}, **sizes))) == {0: [b"x" * 5000]}


def test_behind_the_first_batch_max_bytes_is_kept(shared: ThreadBroker, wire: Wire) -> None:
    topic = shared.create_topic(partitions=4)
    batch = make_batch(b"x" * 1000)
    for _ in range(5):
        wire.ask(produce(9, topic, dict.fromkeys(range(4), batch)))
    asked: dict[Topic, dict[int, int]] = {topic: dict.fromkeys(range(4), 0)}
    for budget in range(0, 25 * len(batch), 777):
        answer = wire.ask(fetch(12, asked, max_bytes=budget, partition_bytes=3 * len(batch)))
        sizes = [len(item.records) for item in partitions(answer).values()]
        assert sum(sizes) <= max(budget, len(batch))
        assert all(size <= 3 * len(batch) and size % len(batch) == 0 for size in sizes)
        assert sum(sizes) > min(budget, 12 * len(batch)) - len(batch), "and it is made use of"


def test_the_broker_has_a_limit_of_its_own() -> None:
    with broker(fetch_bytes_max=10_000) as running:
        topic = running.create_topic()
        with Wire(running.bootstrap) as wire:
            for _ in range(30):
                wire.ask(produce(9, topic, {0: make_batch(b"x" * 1000)}))
            answer = wire.ask(fetch(12, {topic: {0: 0}}, max_bytes=2**31 - 1))
            assert 8_000 < len(only_partition(answer).records) <= 10_000


def test_a_large_answer_arrives_as_it_was_produced(shared: ThreadBroker, wire: Wire) -> None:
    """Many partitions, some copied and some sent from their files, sent in many pieces."""
    topic = shared.create_topic(partitions=40)
    expected = {}
    for index in range(40):
        sent = [bytes([index]) * (index * 997 + 1) * (10 if index % 5 == 0 else 1)] * 3
        expected[index] = sent
        wire.ask(produce(9, topic, {index: make_batch(*sent)}))
    asked = fetch(12, {topic: dict.fromkeys(range(40), 0)}, partition_bytes=1 << 25)
    with Wire(shared.bootstrap, receive_buffer_bytes=4096) as slow:
        assert values(slow.ask(asked)) == expected


def test_readers_of_committed_records_hear_of_no_aborted_transactions(
    wire: Wire, topic: str
) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    for version in (4, 11, 12):
        committed = only_partition(wire.ask(fetch(version, {topic: {0: 0}}, isolation_level=1)))
        assert committed.aborted_transactions == ()
        assert committed.last_stable_offset == 1
        others = only_partition(wire.ask(fetch(version, {topic: {0: 0}})))
        assert others.aborted_transactions is None


def test_a_reader_whose_view_of_the_leader_is_another_is_told(wire: Wire, topic: str) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    newer = only_partition(wire.ask(fetch(12, {topic: {0: 0}}, leader_epoch=5)))
    assert newer.error_code is ErrorCode.unknown_leader_epoch


def test_a_reader_is_told_where_the_log_begins(wire: Wire, topic: str) -> None:
    for _ in range(3):
        wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    deleted = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}]
    wire.ask(request("delete_records", 2, topics=deleted, timeout=5000))
    assert only_partition(wire.ask(fetch(12, {topic: {0: 2}}))).log_start_offset == 2


def test_a_reader_that_read_from_an_epoch_unknown_here_begins_anew(wire: Wire, topic: str) -> None:
    wire.ask(produce(9, topic, {0: make_batch(b"x")}))
    found = only_partition(wire.ask(fetch(12, {topic: {0: 1}}, last_fetched_epoch=7)))
    assert found.error_code is ErrorCode.offset_out_of_range


async def test_a_reader_beyond_the_end_of_its_epoch_learns_where_the_logs_part(
    server: KafkaServer,
) -> None:
    """As a follower, or a consumer, that has read what a new leader does not have."""
    log = (await server.broker.topics.create("t", 1)).partitions[0].log
    for epoch in (0, 2):
        log.leader_epoch = epoch
        log.append(memoryview(bytearray(make_batch(b"x", b"y"))))
    host, port = server.address
    with await asyncio.to_thread(Wire, f"{host}:{port}") as wire:
        for last_epoch, offset, parts_at in ((0, 3, (0, 2)), (1, 3, (0, 2))):
            asked = fetch(
                12, {"t": {0: offset}}, last_fetched_epoch=last_epoch, max_wait_ms=LONG_MS
            )
            found = only_partition(await asyncio.to_thread(wire.ask, asked))
            assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == parts_at
            assert found.records == b""
        agreed = fetch(12, {"t": {0: 2}}, last_fetched_epoch=0)
        found = only_partition(await asyncio.to_thread(wire.ask, agreed))
        assert (found.diverging_epoch.epoch, len(records_in(found.records))) == (-1, 2)


# Whoever waits, and leaves


async def test_a_closed_connection_leaves_nothing_behind(server: KafkaServer) -> None:
    topic = await server.broker.topics.create("t", 3)
    logs = [partition.log for partition in topic.partitions]
    host, port = server.address
    wire = await asyncio.to_thread(Wire, f"{host}:{port}")
    wire.send(fetch(12, {"t": dict.fromkeys(range(3), 0)}, max_wait_ms=LONG_MS))
    await until(lambda: all(log.subscribers for log in logs))
    assert len(server._door.waiting_fetches) == 1
    wire.close()
    await until(lambda: not any(log.subscribers for log in logs))
    assert not server._door.waiting_fetches
    assert server.connection_count == 0


async def test_a_connection_closed_behind_further_requests_is_noticed(server: KafkaServer) -> None:
    """Bytes that wait their turn behind a fetch do not keep the broker from seeing the end."""
    await server.broker.topics.create("t", 1)
    host, port = server.address
    wire = await asyncio.to_thread(Wire, f"{host}:{port}")
    wire.send(fetch(12, {"t": {0: 0}}, max_wait_ms=LONG_MS), request("api_versions", 0))
    await until(lambda: len(server._door.waiting_fetches) == 1)
    wire.close()
    await until(lambda: server.connection_count == 0)
    assert not server._door.waiting_fetches


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a state that nobody announces
            await asyncio.sleep(0.001)


def test_a_topic_deleted_under_a_waiting_fetch_is_told_at_once(
    shared: ThreadBroker, wire: Wire
) -> None:
    topic = shared.create_topic()
    with Wire(shared.bootstrap) as other:
        wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=LONG_MS))
        assert wire.is_silent(0.05)
        other.ask(request("delete_topics", 5, topic_names=[topic], timeout=10_000))
    assert only_partition(wire.receive()).error_code is ErrorCode.unknown_topic_or_partition
