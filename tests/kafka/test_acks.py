"""What an acknowledgement promises: acks=1 the death of the process, acks=all that of the machine."""

from __future__ import annotations

import asyncio
import errno
import os
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.kafka.server import KafkaServer
from penstock.log.group_commit import GroupCommit
from penstock.testing import ProcessBroker
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Wire, fetch, frame, only_partition, produce

GOOD = make_batch(b"x")


class HeldDisk(Executor):
    """Where syncs run, but none does before it is let through, or made to fail."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.error: OSError | None = None
        self.is_held = True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        if not self.is_held:
            self.let_through()
        return future

    def let_through(self) -> None:
        held, self.held = self.held, []
        for future, run in held:
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(run())


@pytest.fixture
async def disk(server: KafkaServer) -> AsyncIterator[HeldDisk]:
    held = HeldDisk()
    server.broker.logs.group_commit = GroupCommit(held)
    yield held
    held.is_held = False
    held.let_through()


@pytest.fixture
async def client(server: KafkaServer) -> AsyncIterator[AsyncWire]:
    await server.broker.topics.create("t", 2)
    await server.broker.topics.create("flushed", 1, {"flush.messages": "1"})
    host, port = server.address
    wire = await asyncio.to_thread(Wire, f"{host}:{port}")
    yield AsyncWire(wire)
    wire.close()


class AsyncWire:
    """A wire used from the broker's own event loop: it waits in a thread."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def send(self, *requests: Any) -> None:
        self.wire.send(*requests)

    async def receive(self) -> Any:
        return await asyncio.to_thread(self.wire.receive)

    async def ask(self, request: Any) -> Any:
        self.send(request)
        return await self.receive()

    async def is_silent(self) -> bool:
        return await asyncio.to_thread(self.wire.is_silent, 0.1)


async def test_acks_all_is_answered_after_the_sync_and_acks_1_before(
    client: AsyncWire, disk: HeldDisk
) -> None:
    answer = only_partition(await client.ask(produce(9, "t", {0: GOOD}, acks=1)))
    assert answer.base_offset == 0
    assert disk.held == []
    client.send(produce(9, "t", {0: GOOD}, acks=-1))
    assert await client.is_silent()
    disk.let_through()
    assert only_partition(await client.receive()).base_offset == 1


async def test_acks_all_waits_for_every_partition_written_to(
    client: AsyncWire, disk: HeldDisk
) -> None:
    client.send(produce(9, "t", {0: GOOD, 1: GOOD}, acks=-1))
    assert await client.is_silent()
    second = disk.held.pop()
    disk.let_through()
    assert await client.is_silent()
    disk.held.append(second)
    disk.let_through()
    (found,) = (await client.receive()).responses
    assert [item.error_code for item in found.partition_responses] == [ErrorCode.none] * 2


async def test_many_who_wait_share_a_sync(client: AsyncWire, server: KafkaServer) -> None:
    client.send(*(produce(9, "t", {0: GOOD}, acks=-1) for _ in range(60)))
    answers = [only_partition(await client.receive()) for _ in range(60)]
    assert [answer.base_offset for answer in answers] == list(range(60))
    assert 1 <= server.broker.logs.group_commit.sync_count < 20


async def test_a_sync_begun_before_a_write_does_not_count_for_it(
    client: AsyncWire, disk: HeldDisk
) -> None:
    client.send(produce(9, "t", {0: GOOD}, acks=-1))
    assert await client.is_silent()
    client.send(produce(9, "t", {0: GOOD}, acks=-1))
    assert await client.is_silent()
    assert len(disk.held) == 1
    disk.let_through()
    assert only_partition(await client.receive()).base_offset == 0
    assert await client.is_silent()
    disk.let_through()
    assert only_partition(await client.receive()).base_offset == 1


async def test_flush_messages_makes_acks_1_wait_for_the_disk_too(
    client: AsyncWire, disk: HeldDisk
) -> None:
    client.send(produce(9, "flushed", {0: GOOD}, acks=1))
    assert await client.is_silent()
    disk.let_through()
    assert only_partition(await client.receive()).error_code is ErrorCode.none


async def test_a_failed_sync_is_a_storage_error_and_takes_its_partition_out_of_service(
    client: AsyncWire, disk: HeldDisk
) -> None:
    """After it, nobody knows what the disk holds. Other partitions go on."""
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    client.send(produce(9, "t", {0: GOOD}, acks=-1))
    assert await client.is_silent()
    disk.let_through()
    assert only_partition(await client.receive()).error_code is ErrorCode.kafka_storage_error
    for asked in (
        produce(9, "t", {0: GOOD}, acks=1),
        produce(9, "t", {0: GOOD}, acks=-1),
        fetch(12, {"t": {0: 0}}, max_wait_ms=60_000),
    ):
        answer = only_partition(await client.ask(asked))
        assert answer.error_code is ErrorCode.kafka_storage_error
    assert only_partition(await client.ask(produce(9, "t", {1: GOOD}))).base_offset == 0


async def test_the_error_of_a_failed_log_collects_nothing(
    client: AsyncWire, server: KafkaServer
) -> None:
    """An exception raised again and again keeps every traceback, and the memory of every request."""
    log = server.broker.topics.partition("t", 0).log
    failure = log.fail("the disk is gone")
    for _ in range(30):
        for asked in (produce(9, "t", {0: GOOD}), fetch(12, {"t": {0: 0}})):
            answer = only_partition(await client.ask(asked))
            assert answer.error_code is ErrorCode.kafka_storage_error
    assert len(list(traceback.walk_tb(failure.__traceback__))) < 5


async def test_who_waits_for_a_sync_and_leaves_leaves_nothing_behind(
    client: AsyncWire, disk: HeldDisk, server: KafkaServer
) -> None:
    host, port = server.address
    leaving = await asyncio.to_thread(Wire, f"{host}:{port}")
    leaving.send(produce(9, "t", {0: GOOD}, acks=-1))
    client.send(produce(9, "t", {0: GOOD}, acks=-1))
    assert await client.is_silent()
    leaving.close()
    assert await client.is_silent()
    assert server.connection_count == 1
    disk.let_through()
    assert await client.is_silent(), "the second write needs a sync of its own"
    disk.let_through()
    assert only_partition(await client.receive()).error_code is ErrorCode.none


async def test_answers_behind_a_write_that_waits_are_bounded(
    client: AsyncWire, disk: HeldDisk, server: KafkaServer
) -> None:
    """They wait in memory for their turn: when they are a megabyte, no further request begins."""
    await server.broker.topics.create("wide", 50)
    await client.ask(produce(9, "wide", {i: make_batch(b"x" * 10_000) for i in range(50)}))
    everything = fetch(12, {"wide": dict.fromkeys(range(50), 0)})
    client.send(produce(9, "t", {0: GOOD}, acks=-1), *[everything] * 50)
    assert await client.is_silent()
    (connection,) = server._connections
    assert connection._is_held_up
    assert connection._unsent_bytes < 2 << 20
    disk.let_through()
    assert only_partition(await client.receive()).error_code is ErrorCode.none
    for _ in range(50):
        assert len((await client.receive()).responses[0].partitions) == 50


@pytest.mark.parametrize("acks", [1, -1])
def test_what_was_acknowledged_survives_kill_9(process: ProcessBroker, acks: int) -> None:
    topic = process.create_topic()
    for life in range(3):
        with Wire(process.bootstrap) as wire:
            for number in range(5):
                answer = wire.ask(produce(9, topic, {0: make_batch(b"%d" % number)}, acks=acks))
                assert only_partition(answer).base_offset == 5 * life + number
            process.kill()
        process.start()
    with Wire(process.bootstrap) as wire:
        found = only_partition(wire.ask(fetch(12, {topic: {0: 0}})))
    expected = [(life * 5 + number, b"%d" % number) for life in range(3) for number in range(5)]
    assert records_in(found.records) == expected


def test_acks_0_promises_nothing_but_order(process: ProcessBroker) -> None:
    topic = process.create_topic()
    with Wire(process.bootstrap) as wire:
        for number in range(50):
            wire.send_bytes(frame(produce(9, topic, {0: make_batch(b"%d" % number)}, acks=0)))
        found = only_partition(wire.ask(fetch(12, {topic: {0: 0}})))
        assert records_in(found.records) == [(n, b"%d" % n) for n in range(50)]
