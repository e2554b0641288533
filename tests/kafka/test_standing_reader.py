"""Fetches without a session, again and again on one connection: as if each were the first."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.topics import Partition
from penstock.kafka import standing_reader
from penstock.kafka.server import KafkaServer
from penstock.testing import ThreadBroker
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Topic, Wire, fetch, produce, request, topic_id, wait_until

PARTITIONS = 6
BY_NAME, BY_ID = 12, 13
LONG_MS = 60_000


@pytest.fixture
def wide(shared: ThreadBroker) -> str:
    return shared.create_topic(partitions=PARTITIONS)


def told(answer: Any) -> dict[tuple[Any, int], tuple[Any, ...]]:
    """What an answer says of each partition, which it may mention once."""
    found = {}
    for topic in answer.responses:
        for item in topic.partitions:
            key = (getattr(topic, "topic_id", None) or topic.topic, item.partition_index)
            assert key not in found
            found[key] = (
                item.error_code,
                item.high_watermark,
                getattr(item, "log_start_offset", None),
                item.aborted_transactions,
                records_in(item.records),
            )
    return found


def values(answer: Any) -> dict[int, list[bytes]]:
    return {index: [value for _, value in item[-1]] for (_, index), item in told(answer).items()}


@pytest.mark.parametrize("version", [4, 5, 9, 11, BY_NAME, BY_ID, 18])
def test_an_answer_mentions_all_that_were_asked_for_and_only_new_records(
    wire: Wire, other: Wire, wide: str, version: int
) -> None:
    topic = topic_id(other, wide) if version >= BY_ID else wide
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    for value in (b"first", b"second"):
        assert values(wire.ask(fetch(version, {topic: offsets}))) == {key: [] for key in offsets}
        other.ask(produce(9, wide, {4: make_batch(value)}))
        found = values(wire.ask(fetch(version, {topic: offsets})))
        assert found == {**{key: [] for key in offsets}, 4: [value]}
        offsets[4] += 1


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_what_a_connection_of_its_own_would_get(
    shared: ThreadBroker, wire: Wire, other: Wire, wide: str, seed: int
) -> None:
    chance = random.Random(seed)
    second = shared.create_topic(partitions=PARTITIONS)
    ids = {name: topic_id(other, name) for name in (wide, second)}
    ends = {(name, index): 0 for name in ids for index in range(PARTITIONS)}
    last: dict[tuple[str, int], int] = {}
    starts = dict.fromkeys(ends, 0)
    version, isolation = BY_NAME, 0
    for _ in range(60):
        for _ in range(chance.randrange(3)):
            name, index = place = chance.choice(list(ends))
            if chance.random() < 0.8:
                other.ask(produce(9, name, {index: make_batch(b"x" * chance.randrange(50))}))
                ends[place] += 1
            else:
                starts[place] = chance.randint(starts[place], ends[place])
                partition = {"partition_index": index, "offset": starts[place]}
                topics = [{"name": name, "partitions": [partition]}]
                other.ask(request("delete_records", 2, topics=topics, timeout=30_000))
        if chance.random() < 0.1:
            version, isolation = chance.choice([5, 9, BY_NAME, BY_ID, 16]), chance.randrange(2)
        asked: dict[Any, dict[int, int]] = {}
        for name, index in chance.sample(list(ends), chance.randint(1, len(ends))):
            place = name, index
            if chance.random() < 0.3:  # mostly within the log, now and then before or behind it
                last[place] = max(0, chance.randint(starts[place] - 1, ends[place] + 1))
            topic = ids[name] if version >= BY_ID else name
            asked.setdefault(topic, {})[index] = last.setdefault(place, ends[place])
        if chance.random() < 0.1:
            asked.setdefault("nobody's" if version < BY_ID else ids[wide], {})[99] = 0
        this = fetch(version, asked, isolation_level=isolation)
        with Wire(shared.bootstrap) as fresh:
            assert told(wire.ask(this)) == told(fresh.ask(this))


def test_every_partition_has_its_turn_when_an_answer_is_full(wire: Wire, wide: str) -> None:
    batch = make_batch(bytes(1000))
    for _ in range(5):
        wire.ask(produce(9, wide, dict.fromkeys(range(PARTITIONS), batch)))
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    served = []
    for _ in range(5 * PARTITIONS):
        found = values(wire.ask(fetch(BY_NAME, {wide: offsets}, max_bytes=1500)))
        assert sorted(found) == [*range(PARTITIONS)]
        [index] = [index for index, records in found.items() if records]
        offsets[index] += 1
        served.append(index)
    assert set(offsets.values()) == {5}
    assert set(served[:PARTITIONS]) == set(offsets), "nobody twice before all once"


def test_of_what_did_not_fit_the_ends_are_told(wire: Wire, wide: str) -> None:
    wire.ask(produce(9, wide, dict.fromkeys(range(PARTITIONS), make_batch(bytes(1000)))))
    asked = fetch(BY_NAME, {wide: dict.fromkeys(range(PARTITIONS), 0)}, max_bytes=1500)
    assert {item[1] for item in told(wire.ask(asked)).values()} == {1}


def test_a_partition_named_twice_does_no_harm(wire: Wire, wide: str) -> None:
    wire.ask(produce(9, wide, {0: make_batch(b"a")}))
    once = fetch(BY_NAME, {wide: {0: 0, 1: 0}})
    [topic] = once.topics
    doubled = dataclasses.replace(topic, partitions=topic.partitions * 2)
    twice = dataclasses.replace(once, topics=(doubled,))
    for asked in (once, twice, once):
        [found] = wire.ask(asked).responses
        assert {item.partition_index for item in found.partitions} == {0, 1}
    assert values(wire.ask(once)) == {0: [b"a"], 1: []}


def test_a_topic_named_twice_does_no_harm(wire: Wire, wide: str) -> None:
    wire.ask(produce(9, wide, {0: make_batch(b"a")}))
    once = fetch(BY_NAME, {wide: {0: 0, 1: 0}})
    twice = dataclasses.replace(once, topics=once.topics * 2)
    for asked in (once, twice, once):
        assert values(wire.ask(asked)) == {0: [b"a"], 1: []}


def test_the_same_offset_named_twice_does_no_harm(wire: Wire, wide: str) -> None:
    wire.ask(produce(9, wide, {0: make_batch(b"a"), 1: make_batch(b"b")}))
    both = fetch(BY_NAME, {wide: {0: 0, 1: 0}})
    wire.ask(both)
    for offsets in ((0, 0), (0, 1), (1, 0)):
        doubled = [fetch(BY_NAME, {wide: {0: offset}}).topics[0] for offset in offsets]
        partitions = tuple(item for topic in doubled for item in topic.partitions)
        topics = (dataclasses.replace(doubled[0], partitions=partitions),)
        assert set(values(wire.ask(dataclasses.replace(both, topics=topics)))) == {0}
        assert values(wire.ask(both)) == {0: [b"a"], 1: [b"b"]}


def test_a_topic_that_is_come_back_to_is_answered_whole(
    shared: ThreadBroker, wire: Wire, other: Wire, wide: str
) -> None:
    """librdkafka goes round its partitions, and begins at another each time."""
    names = [wide, shared.create_topic(), shared.create_topic()]
    for name in names:
        wire.ask(produce(9, name, {0: make_batch(name.encode())}))
    wire.ask(produce(9, wide, {1: make_batch(b"one")}))
    first, second, third = names
    wire.ask(fetch(BY_NAME, {first: {0: 0, 1: 0}, second: {0: 0}, third: {0: 0}}))

    def asked(offset: int) -> Any:
        places = ((first, 1), (second, 0), (first, 0))
        parts = [
            fetch(BY_NAME, {name: {index: offset}}, max_wait_ms=LONG_MS) for name, index in places
        ]
        return dataclasses.replace(parts[0], topics=tuple(part.topics[0] for part in parts))

    for _ in range(2):
        found = told(wire.ask(asked(0)))
        assert {key: [value for _, value in item[-1]] for key, item in found.items()} == {
            (first, 0): [first.encode()],
            (first, 1): [b"one"],
            (second, 0): [second.encode()],
        }
    wire.send(asked(1))
    assert wire.is_silent(0.05), "the third topic has records, but is asked for no more"
    other.ask(produce(9, second, {0: make_batch(b"more")}))
    assert told(wire.receive())[second, 0][-1] == [(1, b"more")]


def test_what_does_not_fit_counts_towards_what_is_waited_for(
    wire: Wire, other: Wire, wide: str
) -> None:
    small, large = make_batch(b"x"), make_batch(bytes(100_000))
    asked: dict[Topic, dict[int, int]] = {wide: {0: 0, 1: 0}}
    other.ask(produce(9, wide, {1: large}))
    wire.ask(fetch(BY_NAME, asked))
    other.ask(produce(9, wide, {0: small}))
    for _ in range(3):
        wanted = fetch(BY_NAME, asked, max_bytes=50_000, min_bytes=10_000, max_wait_ms=LONG_MS)
        found = values(wire.ask(wanted))
        assert sum(map(len, found.values())) == 1


async def test_a_partition_that_fails_is_not_told_as_sound_for_ever(server: KafkaServer) -> None:
    topic = await server.broker.topics.create("t", 2)
    asked = fetch(BY_NAME, {"t": {0: 0, 1: 0}})
    with Wire("{}:{}".format(*server.address)) as wire:
        for _ in range(2):
            await asyncio.to_thread(wire.ask, asked)
        topic.partitions[0].log.fail("its disk is gone")
        await asyncio.to_thread(
            wait_until,
            lambda: told(wire.ask(asked))["t", 0][0] is ErrorCode.kafka_storage_error,
            "the failure is told",
        )


def test_what_waits_is_answered_by_any_of_its_partitions(
    wire: Wire, other: Wire, wide: str
) -> None:
    asked: dict[Topic, dict[int, int]] = {wide: dict.fromkeys(range(PARTITIONS), 0)}
    wire.ask(fetch(BY_NAME, asked))
    wire.send(fetch(BY_NAME, asked, max_wait_ms=LONG_MS))
    assert wire.is_silent(0.05)
    other.ask(produce(9, wide, {5: make_batch(b"here")}))
    assert values(wire.receive()) == {**{key: [] for key in range(PARTITIONS)}, 5: [b"here"]}


def test_what_waits_and_is_asked_for_no_more_is_not_answered(
    wire: Wire, other: Wire, wide: str
) -> None:
    wire.ask(fetch(BY_NAME, {wide: {0: 0, 1: 0}}))
    wire.send(fetch(BY_NAME, {wide: {0: 0}}, max_wait_ms=LONG_MS))
    other.ask(produce(9, wide, {1: make_batch(b"unwanted")}))
    assert wire.is_silent(0.05)
    other.ask(produce(9, wide, {0: make_batch(b"wanted")}))
    assert values(wire.receive()) == {0: [b"wanted"]}


def test_an_error_is_told_every_time_and_no_longer_when_it_is_over(
    shared: ThreadBroker, wire: Wire, wide: str
) -> None:
    name = f"{wide}-later"
    asked = fetch(BY_NAME, {wide: {0: 0}, name: {0: 0}})
    for _ in range(3):
        found = told(wire.ask(asked))
        assert found[name, 0][0] is ErrorCode.unknown_topic_or_partition
        assert found[wide, 0][0] is ErrorCode.none
    wire.ask(produce(9, wide, {0: make_batch(bytes(1000))}))
    shared.create_topic(name)
    full = fetch(BY_NAME, {wide: {0: 0}, name: {0: 0}}, max_bytes=1)
    assert told(wire.ask(full))[name, 0][:2] == (ErrorCode.none, 0)
    assert told(wire.ask(asked))[name, 0][:2] == (ErrorCode.none, 0)


def test_a_topic_made_anew_is_not_taken_for_the_old_one(
    shared: ThreadBroker, wire: Wire, wide: str
) -> None:
    wire.ask(produce(9, wide, {0: make_batch(b"old", b"old")}))
    asked = fetch(BY_NAME, {wide: {0: 2, 1: 0}})
    assert told(wire.ask(asked))[wide, 0][1] == 2
    wire.ask(request("delete_topics", 5, topic_names=[wide], timeout=30_000))
    assert {item[0] for item in told(wire.ask(asked)).values()} == {
        ErrorCode.unknown_topic_or_partition
    }
    shared.create_topic(wide, partitions=2)
    found = told(wire.ask(asked))
    assert found[wide, 1][:2] == (ErrorCode.none, 0)
    assert found[wide, 0][0] is ErrorCode.offset_out_of_range


async def test_quiet_partitions_are_not_looked_at_again(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await server.broker.topics.create("t", 50)
    looked: list[int] = []
    whole = Partition.check_leader_epoch

    def counted(self: Partition, epoch: int) -> None:
        looked.append(self.index)
        whole(self, epoch)

    monkeypatch.setattr(Partition, "check_leader_epoch", counted)
    asked = fetch(BY_NAME, {"t": dict.fromkeys(range(50), 0)})
    with Wire("{}:{}".format(*server.address)) as wire:
        await asyncio.to_thread(wire.ask, asked)
        assert sorted(looked) == [*range(50)]
        await asyncio.to_thread(wire.ask, asked)  # once more, for the first had news of all
        assert sorted(looked[50:]) == [*range(50)]
        looked.clear()
        topic.partitions[7].log.append(memoryview(bytearray(make_batch(b"x"))))
        found = values(await asyncio.to_thread(wire.ask, asked))
        assert len(found) == 50
        assert found[7] == [b"x"]
        assert looked == [7]


async def test_a_connection_that_ends_leaves_nothing_behind(server: KafkaServer) -> None:
    topic = await server.broker.topics.create("t", 50)
    counted = server._door.standing_positions
    with Wire("{}:{}".format(*server.address)) as wire:
        for count in (50, 20, 30):
            await asyncio.to_thread(wire.ask, fetch(BY_NAME, {"t": dict.fromkeys(range(count), 0)}))
            assert counted.count == count
        await server.broker.topics.create("u", 10)
        await asyncio.to_thread(wire.ask, fetch(BY_NAME, {"u": dict.fromkeys(range(10), 0)}))
        assert counted.count == 10
        assert not any(partition.log.subscribers for partition in topic.partitions)
        await asyncio.to_thread(wire.ask, fetch(BY_NAME, {"t": dict.fromkeys(range(10), 0)}))
        assert any(partition.log.subscribers for partition in topic.partitions)
    await server._all_closed.wait()
    assert counted.count == 0
    assert not any(partition.log.subscribers for partition in topic.partitions)


async def test_without_room_for_positions_every_request_is_read_anew(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_reader, "POSITIONS_MAX", 4)
    topic = await server.broker.topics.create("t", 5)
    asked = fetch(BY_NAME, {"t": dict.fromkeys(range(5), 0)})
    with Wire("{}:{}".format(*server.address)) as wire:
        assert len(values(await asyncio.to_thread(wire.ask, asked))) == 5
        assert server._door.standing_positions.count == 0
        topic.partitions[3].log.append(memoryview(bytearray(make_batch(b"x"))))
        assert values(await asyncio.to_thread(wire.ask, asked))[3] == [b"x"]
