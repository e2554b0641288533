"""Requests of one connection are handled, and answered, in the order they were sent."""

from __future__ import annotations

import asyncio
import random
import select
import socket
import uuid
from threading import Thread
from typing import Any

import kio.index
import pytest
from kio.schema.errors import ErrorCode

from penstock.kafka.server import KafkaServer
from penstock.testing import ThreadBroker
from tests.kafka.batches import make_batch
from tests.kafka.wire import Wire, fetch, frame, only_partition, produce, request, topic_id


def new_topic(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1}


def test_slow_and_fast_requests_sent_at_once_are_answered_in_order(
    shared: ThreadBroker, wire: Wire, topic: str
) -> None:
    requests: list[Any] = [
        produce(8, topic, {0: make_batch(b"a")}, acks=-1),
        request("metadata", 9, topics=[{"name": topic}]),
        fetch(11, {topic: {0: 1}}, max_wait_ms=300),
        request("find_coordinator", 3, key="g", key_type=0),
        produce(8, topic, {0: make_batch(b"b")}, acks=-1),
        produce(8, topic, {0: make_batch(b"c")}, acks=1),
        request("init_producer_id", 4),
        fetch(11, {topic: {0: 3}}, max_wait_ms=100),
        request("create_topics", 5, topics=[new_topic(f"{topic}-2")]),
        request("api_versions", 0),
        produce(8, f"{topic}-2", {0: make_batch(b"d")}, acks=-1),
    ]
    wire.send(*requests)
    answers = [wire.receive() for _ in requests]
    offsets = [only_partition(answers[i]).base_offset for i in (0, 4, 5, 10)]
    assert offsets == [0, 1, 2, 0], "each sees what those before it did"


def test_a_burst_of_produces_keeps_its_order_with_any_acks(wire: Wire, topic: str) -> None:
    """What keeps an idempotent producer with several requests in flight from stumbling."""
    choose = random.Random(7)
    acks = [choose.choice([-1, 1]) for _ in range(200)]
    wire.send(*(produce(9, topic, {0: make_batch(b"x")}, acks=each) for each in acks))
    answers = [only_partition(wire.receive()) for _ in acks]
    assert [answer.base_offset for answer in answers] == list(range(200))


def test_an_offset_fetch_sees_the_commit_sent_just_before_it(wire: Wire, topic: str) -> None:
    for offset in range(20):
        commit = request(
            "offset_commit",
            8,
            group_id=topic,
            generation_id_or_member_epoch=-1,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                        }
                    ],
                }
            ],
        )
        look = request(
            "offset_fetch", 7, group_id=topic, topics=[{"name": topic, "partition_indexes": [0]}]
        )
        wire.send(commit, look)
        wire.receive()
        seen = wire.receive()
        assert seen.topics[0].partitions[0].committed_offset == offset


def test_a_fetch_sees_what_was_produced_just_before_it(wire: Wire, topic: str) -> None:
    wire.send(produce(9, topic, {0: make_batch(b"x")}, acks=-1), fetch(12, {topic: {0: 0}}))
    wire.receive()
    assert only_partition(wire.receive()).high_watermark == 1


def test_acks_0_has_no_answer_and_keeps_its_place(wire: Wire, topic: str) -> None:
    wire.send_bytes(frame(produce(9, topic, {0: make_batch(b"a")}, acks=0)) * 3)
    answer = wire.ask(produce(9, topic, {0: make_batch(b"b")}, acks=1))
    assert only_partition(answer).base_offset == 3


def test_what_a_client_sent_before_it_hung_up_is_done(
    shared: ThreadBroker, wire: Wire, topic: str
) -> None:
    """As by Kafka: with acks=0 a producer does not wait to see it."""
    batch = make_batch(b"x")
    for offset in range(0, 15, 3):
        with Wire(shared.bootstrap) as leaving:
            name = f"made-{uuid.uuid4().hex}"  # which takes a while
            leaving.send(
                request("metadata", 4, topics=[{"name": name}], allow_auto_topic_creation=True),
                *(produce(9, topic, {0: batch}, acks=0) for _ in range(3)),
            )
        asked = fetch(12, {topic: {0: offset}}, max_wait_ms=5_000, min_bytes=3 * len(batch))
        assert only_partition(wire.ask(asked)).high_watermark == offset + 3


def test_a_waiting_fetch_holds_up_its_own_connection_only(
    shared: ThreadBroker, wire: Wire, topic: str
) -> None:
    wire.send(fetch(12, {topic: {0: 0}}, max_wait_ms=30_000), request("api_versions", 0))
    with Wire(shared.bootstrap) as other:
        other.ask(request("api_versions", 0))
        other.ask(produce(9, topic, {0: make_batch(b"x")}))
    assert only_partition(wire.receive()).high_watermark == 1
    assert wire.receive().error_code is ErrorCode.none


@pytest.mark.parametrize("seed", range(3))
def test_requests_are_found_however_they_are_cut_up(wire: Wire, topic: str, seed: int) -> None:
    """Sizes that end in the middle of a buffer, or of a packet, anywhere."""
    choose = random.Random(seed)
    identity = topic_id(wire, topic)
    requests = []
    for _ in range(300):
        kind = choose.randrange(4)
        if kind == 0:
            requests.append(produce(13, identity, {0: make_batch(b"x" * choose.randrange(3000))}))
        elif kind == 1:
            requests.append(produce(9, topic, {0: make_batch(b"x" * choose.randrange(200_000))}))
        elif kind == 2:
            requests.append(fetch(13, {identity: {0: 0}}, partition_bytes=choose.randrange(9999)))
        else:
            requests.append(request("find_coordinator", 3, key="k" * choose.randrange(300)))
    data = b"".join(frame(each, number + 1) for number, each in enumerate(requests))
    wire._waiting += [(number + 1, _response(each)) for number, each in enumerate(requests)]
    answered = 0
    sent = 0
    while sent < len(data):
        size = choose.choice([1, 2, 3, 5, 100, 1448, 65_535, 65_536, 65_537, 400_000])
        wire.send_bytes(data[sent : sent + size])
        sent += size
        while wire._waiting and _is_readable(wire):
            wire.receive()
            answered += 1
    while wire._waiting:
        wire.receive()
        answered += 1
    assert answered == len(requests)


def _response(asked: Any) -> Any:
    return kio.index.load_response_schema(asked.__api_key__, int(asked.__version__))


def _is_readable(wire: Wire) -> bool:
    return bool(select.select([wire.socket], [], [], 0)[0])


def test_ten_thousand_small_requests_at_once_are_all_answered(wire: Wire) -> None:
    """Buffers fill to the last byte with every part of a request at their end."""
    asked = [
        frame(request("heartbeat", 0, group_id="g" * (number % 41)), number)
        for number in range(10_000)
    ]
    sender = Thread(target=wire.send_bytes, args=(b"".join(asked),))
    sender.start()
    for number in range(len(asked)):
        assert wire.receive_frame()[:4] == number.to_bytes(4, "big")
    sender.join()


def test_answers_that_make_room_for_each_other_are_not_nested(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many large ones may leave at once as the client takes: that must not end at Python's stack."""
    monkeypatch.setattr("penstock.kafka.connection._UNSENT_BYTES_MAX", 0)
    count = 1_000
    Thread(target=lambda: wire.send(*[request("api_versions", 0)] * count), daemon=True).start()
    for _ in range(count):
        assert wire.receive().error_code == ErrorCode.none


async def test_others_have_their_turn_beside_a_flood(server: KafkaServer) -> None:
    """A connection with thousands of requests waiting does not keep another from its answer."""
    address = "{}:{}".format(*server.address)
    flood = await asyncio.to_thread(Wire, address)
    other = await asyncio.to_thread(Wire, address)
    with flood, other:
        flood.send_bytes(frame(request("heartbeat", 0)) * 2_000)
        other.send(request("api_versions", 0))
        async with asyncio.timeout(20):
            while not _is_readable(other):  # noqa: ASYNC110 - it is the loop that is watched
                await asyncio.sleep(0)
        flood.socket.setblocking(False)
        answered = len(flood.socket.recv(1 << 20)) // 10
        assert answered < 200, "they are not kept waiting until the flood is over"


async def test_answers_that_leave_in_many_pieces_arrive_whole(server: KafkaServer) -> None:
    """The window is full most of the time, and cuts answers in memory and from files anywhere."""
    await server.broker.topics.create("t", 30)
    wire = await asyncio.to_thread(Wire, "{}:{}".format(*server.address), receive_buffer_bytes=4096)
    sizes = {index: 1 + index * 7_919 for index in range(30)}
    sent = {index: make_batch(bytes([index]) * size) for index, size in sizes.items()}
    await asyncio.to_thread(wire.ask, produce(9, "t", sent))
    (connection,) = server._connections
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    asked: list[Any] = []
    for index in range(30):
        asked.append(request("metadata", 9, topics=[{"name": "t"}]))
        asked.append(fetch(12, {"t": dict.fromkeys(range(index, 30), 0)}, max_bytes=600_000))
    wire.send(*asked)
    for _ in range(30):
        described = await asyncio.to_thread(wire.receive)
        assert len(described.topics[0].partitions) == 30
        (found,) = (await asyncio.to_thread(wire.receive)).responses
        for item in found.partitions:
            assert item.records[16:] in (b"", sent[item.partition_index][16:])
        assert any(item.records for item in found.partitions), "at least one has come"
    wire.close()
