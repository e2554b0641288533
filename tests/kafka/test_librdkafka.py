"""What clients built upon librdkafka get at once, and when; and that nobody else is treated so."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from penstock.kafka import librdkafka
from penstock.kafka.fetch_codec import FetchPartition, Part
from penstock.kafka.librdkafka import Pace, is_librdkafka
from penstock.kafka.short_timer import ShortTimer
from penstock.testing import ThreadBroker, broker
from tests.kafka.batches import make_batch
from tests.kafka.wire import Wire, fetch, produce, request

MIB = 1024 * 1024
SHARE_BYTES = 600_000  # of each partition: two do not fit into a MiB
PARTITIONS = 4
BY_NAME = 12


def introduce(wire: Wire, name: str, version: str = "2.16.0") -> None:
    asked = request("api_versions", 3, client_software_name=name, client_software_version=version)
    assert wire.ask(asked).error_code.value == 0


def filled_topic(running: ThreadBroker, wire: Wire, value_bytes: int) -> str:
    topic = running.create_topic(partitions=PARTITIONS)
    batch = make_batch(*[bytes(value_bytes)] * (SHARE_BYTES // value_bytes))
    for _ in range(2):
        wire.ask(produce(9, topic, dict.fromkeys(range(PARTITIONS), batch)))
    return topic


def partitions_with_records(wire: Wire, topic: str, **more: Any) -> int:
    """In one answer, which must mention all that were asked for."""
    asked = fetch(BY_NAME, {topic: dict.fromkeys(range(PARTITIONS), 0)}, **more)
    [found] = wire.ask(asked).responses
    assert sorted(item.partition_index for item in found.partitions) == [*range(PARTITIONS)]
    return sum(1 for item in found.partitions if item.records)


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("librdkafka", "2.16.0", True),
        ("confluent-kafka-python", "2.16.0-librdkafka-2.16.0", True),
        ("apache-kafka-java", "4.1.0", False),
        ("penstock", "0.1.0", False),
    ],
)
def test_a_client_is_known_by_what_it_says_of_itself(
    shared: ThreadBroker, name: str, version: str, expected: bool
) -> None:
    assert is_librdkafka(name, version) is expected
    with Wire(shared.bootstrap) as wire:
        introduce(wire, name, version)
        topic = filled_topic(shared, wire, value_bytes=100)
        assert partitions_with_records(wire, topic) == (1 if expected else PARTITIONS)


def test_who_has_not_said_what_it_is_gets_all(shared: ThreadBroker) -> None:
    with Wire(shared.bootstrap) as wire:
        topic = filled_topic(shared, wire, value_bytes=100)
        assert partitions_with_records(wire, topic) == PARTITIONS


def test_large_messages_are_so_few_that_more_are_given_at_once(shared: ThreadBroker) -> None:
    with Wire(shared.bootstrap) as wire:
        introduce(wire, "librdkafka")
        topic = filled_topic(shared, wire, value_bytes=10_000)
        assert partitions_with_records(wire, topic) == 1  # nothing is known of them yet
        assert partitions_with_records(wire, topic) == PARTITIONS


def test_who_waits_for_more_gets_more(shared: ThreadBroker) -> None:
    with Wire(shared.bootstrap) as wire:
        introduce(wire, "librdkafka")
        topic = filled_topic(shared, wire, value_bytes=100)
        assert partitions_with_records(wire, topic, min_bytes=4 * MIB) == PARTITIONS


def test_it_can_be_turned_off() -> None:
    with broker(pace_librdkafka=False) as running, Wire(running.bootstrap) as wire:
        introduce(wire, "librdkafka")
        topic = filled_topic(running, wire, value_bytes=100)
        assert partitions_with_records(wire, topic) == PARTITIONS


def test_every_record_comes_to_a_client_that_reads_on(shared: ThreadBroker) -> None:
    with Wire(shared.bootstrap) as wire:
        introduce(wire, "librdkafka")
        topic = shared.create_topic()
        batch = make_batch(*[bytes(10)] * 10_000)
        for _ in range(20):
            wire.ask(produce(9, topic, {0: batch}))
        offset = 0
        while offset < 200_000:
            [found] = wire.ask(fetch(BY_NAME, {topic: {0: offset}})).responses
            assert found.partitions[0].records
            offset += 10_000 * (len(found.partitions[0].records) // len(batch))
        assert offset == 200_000


# Far away, and near


class FarSocket(socket.socket):
    """A connection that takes 50 ms there and back; not one can be had here."""

    def getsockopt(self, *_: int) -> bytes:  # type: ignore[override]
        return struct.pack("148xI", 50_000)


def test_who_is_far_away_gets_enough_to_keep_the_network_busy() -> None:
    with FarSocket() as far, socket.socket() as near:
        assert Pace(far).answer_bytes_max(MIB) == 50_000_000
        assert Pace(near).answer_bytes_max(MIB) == MIB


def test_a_partitions_share_is_what_the_client_asks_of_one() -> None:
    with socket.socket() as near:
        assert Pace(near).answer_bytes_max(8 * MIB) == 8 * MIB
        assert Pace(near).answer_bytes_max(1000) == MIB


# Rest

ANSWER: list[Part] = [b"records"]


class Resting:
    """One client that reads partition 0 of a topic."""

    def __init__(self, sock: socket.socket) -> None:
        self.pace = Pace(sock)
        self.timer = ShortTimer()

    def ask(self, offset: int, partition: int = 0) -> Any:
        asked = FetchPartition(partition, -1, offset, -1, -1, MIB)
        return self.pace.rested(self.timer, "topic", asked, ANSWER)


@pytest.fixture
def resting() -> Any:
    with socket.socket() as sock:
        yield Resting(sock)


async def test_after_many_messages_the_next_come_when_those_are_freed(resting: Resting) -> None:
    assert resting.ask(0) is ANSWER
    promise = resting.ask(10_000)
    assert isinstance(promise, asyncio.Future)
    assert await promise is ANSWER
    resting.timer.close()


async def test_after_few_messages_the_next_come_at_once(resting: Resting) -> None:
    for offset in range(0, 10_000, 1_000):
        assert resting.ask(offset) is ANSWER


async def test_who_turns_to_another_place_does_not_wait(resting: Resting) -> None:
    assert resting.ask(50_000) is ANSWER
    assert resting.ask(10_000) is ANSWER  # back
    assert resting.ask(90_000, partition=1) is ANSWER


async def test_a_client_that_is_gone_gets_nothing(resting: Resting) -> None:
    resting.ask(0)
    promise = resting.ask(10_000)
    promise.cancel()
    assert await resting.ask(20_000) is ANSWER  # its timer rang after the first one's
    resting.timer.close()


async def test_a_rest_is_short_however_far_a_client_jumps(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_s: list[float] = []

    def call_later(seconds: float, _callback: object) -> bool:
        asked_s.append(seconds)
        return True

    monkeypatch.setattr(resting.timer, "call_later", call_later)
    resting.ask(0)
    resting.ask(10**12)
    assert asked_s == [librdkafka._REST_S_MAX]


async def test_without_a_timer_there_is_no_rest(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting.timer, "call_later", lambda *_: False)
    resting.ask(0)
    assert resting.ask(10_000) is ANSWER
