"""The memory of a request is its connection's until the handler returns, and nobody's after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.errors import ProtocolError
from penstock.kafka.buffers import BUFFER_BYTES, POOLED_BYTES_MAX, BufferPool
from penstock.kafka.handlers import REGISTRY
from penstock.kafka.server import KafkaServer
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Wire, fetch, frame, only_partition, produce, request, sized

MIB = 1 << 20


@pytest.fixture
async def wire(server: KafkaServer) -> AsyncIterator[Wire]:
    await server.broker.topics.create("t", 1)
    host, port = server.address
    with await asyncio.to_thread(Wire, f"{host}:{port}") as connection:
        yield connection


async def ask(wire: Wire, asked: Any) -> Any:
    return await asyncio.to_thread(wire.ask, asked)


def check_unseen(server: KafkaServer, count: int = 1) -> None:
    """That nobody looks at a pooled buffer: one that is looked at cannot be resized."""
    buffers = [buffer for free in server._pool._free.values() for buffer in free]
    assert len(buffers) >= count
    for buffer in buffers:
        buffer.append(0)
        del buffer[-1]


async def test_no_handler_holds_on_to_its_request(server: KafkaServer, wire: Wire) -> None:
    for api in REGISTRY.values():
        for version in (api.versions[0], api.versions[-1]):
            await ask(wire, request(api.name, version, acks=1))
            check_unseen(server)


async def test_a_produce_that_waits_for_the_disk_holds_nothing(
    server: KafkaServer, wire: Wire
) -> None:
    for acks in (1, -1):
        for records in (make_batch(b"x" * 200_000), b"bad", None):
            wire.send(produce(9, "t", {0: records}, acks=acks))
            await asyncio.to_thread(wire.receive)
            check_unseen(server)


async def test_a_refused_request_holds_nothing(server: KafkaServer, wire: Wire) -> None:
    wire.send_bytes(sized(frame(produce(9, "t", {0: make_batch(b"x")}))[4:-9]))
    assert await asyncio.to_thread(wire.is_closed_by_broker)
    check_unseen(server)


async def test_an_idle_connection_holds_no_buffer(server: KafkaServer, wire: Wire) -> None:
    await ask(wire, produce(9, "t", {0: make_batch(b"x" * 900_000)}))
    (connection,) = server._connections
    assert connection._buffer is None
    assert server._pool.lent_bytes == 0


async def test_records_stay_what_they_were_while_buffers_are_used_again(
    server: KafkaServer, wire: Wire
) -> None:
    """Many connections at once, each writing its own bytes through the same few buffers."""
    host, port = server.address
    await server.broker.topics.create("many", 20)

    def run(partition: int) -> None:
        with Wire(f"{host}:{port}") as own:
            for number in range(20):
                value = bytes([partition, number]) * (1 + (number * 7919) % 70_000)
                batch = make_batch(value)
                own.ask(produce(9, "many", {partition: batch}, acks=-1 if number % 2 else 1))

    await asyncio.gather(*(asyncio.to_thread(run, partition) for partition in range(20)))
    for partition in range(20):
        asked = fetch(12, {"many": {partition: 0}}, partition_bytes=50 * MIB)
        found = records_in(only_partition(await ask(wire, asked)).records)
        assert [value[:2] for _, value in found] == [bytes([partition, n]) for n in range(20)]
        assert all(value == value[:2] * (len(value) // 2) for _, value in found)


def test_a_buffer_given_back_is_lent_again() -> None:
    pool = BufferPool()
    first = pool.take(1)
    pool.give(first)
    assert pool.take(BUFFER_BYTES) is first
    assert pool.take(1) is not first


def test_large_buffers_are_counted_and_huge_ones_not_kept() -> None:
    pool = BufferPool()
    small, large = pool.take(1), pool.take(POOLED_BYTES_MAX)
    huge = pool.grow(small, 10 * MIB)
    assert (len(small), len(large), len(huge)) == (BUFFER_BYTES, POOLED_BYTES_MAX, 16 * MIB)
    assert pool.lent_bytes == len(large) + len(huge)
    for buffer in (small, large, huge):
        pool.give(buffer)
    assert pool.lent_bytes == 0
    assert pool.grow(small, 10 * MIB) is not huge


def test_when_much_is_lent_there_are_small_buffers_and_in_the_end_none() -> None:
    pool = BufferPool(lent_bytes_easy=4 * MIB, lent_bytes_max=16 * MIB)
    assert [len(pool.take(2 * MIB)) for _ in range(3)] == [2 * MIB, 2 * MIB, BUFFER_BYTES]
    held = pool.take(1)
    assert len(pool.grow(held, 8 * MIB)) == 8 * MIB
    with pytest.raises(ProtocolError, match="no memory"):
        pool.grow(held, 8 * MIB)
    assert pool.lent_bytes == 12 * MIB
    assert len(pool.take(1)) == BUFFER_BYTES, "small requests are served whatever happens"


async def test_a_request_for_which_there_is_no_memory_closes_its_connection(
    server: KafkaServer, wire: Wire
) -> None:
    server._pool._lent_bytes_max = 1 * MIB
    with await asyncio.to_thread(Wire, "{}:{}".format(*server.address)) as other:
        await ask(other, produce(9, "t", {0: make_batch(b"x" * 400_000)}))
        wire.send_bytes((50 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
        assert await asyncio.to_thread(wire.is_closed_by_broker)
        await ask(other, produce(9, "t", {0: make_batch(b"x" * 400_000)}))
    assert server._pool.lent_bytes == 0
