"""Whole brokers whose watches of brokers, topics and partitions are late, each by another time.

They share one metadata store in memory; everything else is as it is with etcd. A topic is deleted and made
anew under its name all the time, so that what a broker knows of a name is often of two topics at once.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker, member
from penstock.errors import ApiError
from penstock.kafka.server import KafkaServer
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import Event
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig
from tests.kafka.batches import make_batch
from tests.log.support import records

TOPIC = "t"
PARTITION = TopicPartition(TOPIC, 0)
BROKERS = (1, 2, 3)
ROUNDS = 12
LATE_S = 0.3
PATIENCE_S = 20.0


class LateStore:
    """The shared store, as one broker sees it: a third of all events come late."""

    def __init__(self, shared: MemoryStore) -> None:
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        async for event in self._shared.watch(prefix, from_revision):
            if random.random() < 0.33:
                await asyncio.sleep(random.uniform(0, LATE_S))
            yield event

    async def close(self) -> None:
        """It is the others', too."""


@asynccontextmanager
async def three_brokers(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Broker]]:
    async with MemoryStore() as shared:

        async def connect(*_: object) -> LateStore:
            return LateStore(shared)

        monkeypatch.setattr(member, "_connect", connect)
        servers = [
            await KafkaServer.start(
                BrokerConfig(
                    broker_id=number,
                    addr=f"127.0.0.{number}:0",
                    data_dir=str(directory / str(number)),
                    etcd="in-memory:1",
                    replica_fetch_wait_ms_max=50,
                )
            )
            for number in BROKERS
        ]
        try:
            yield [server.broker for server in servers]
        finally:
            for server in servers:
                await server.stop()


class Writers:
    """They write to whoever takes it, and remember what was acknowledged, by the topic's id."""

    def __init__(self, brokers: list[Broker]) -> None:
        self._brokers = brokers
        self.acknowledged: defaultdict[uuid.UUID, dict[int, bytes]] = defaultdict(dict)
        self._count = 0

    async def write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 0.01))
            topic = random.choice(self._brokers).topics.get(TOPIC)
            if topic is None:
                continue
            self._count += 1
            value = b"%d" % self._count
            partition = topic.partitions[0]
            try:
                appended = partition.append(memoryview(bytearray(make_batch(value))), -1)
                await partition.until_acknowledged(-1, appended.end_offset, 2.0)
            except ApiError:
                continue
            self.acknowledged[topic.id][appended.base_offset] = value

    async def check(self, topic_id: uuid.UUID) -> None:
        """Whoever leads the topic has all that was acknowledged for it."""
        acknowledged = dict(self.acknowledged[topic_id])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for broker in self._brokers:
                    assert broker.node is not None
                    hosted = broker.node.replicas.get(PARTITION)
                    if (
                        hosted is not None
                        and hosted.topic_id == topic_id
                        and hosted.replica.leadership is not None
                    ):
                        found = {record.offset: record.value for record in records(hosted.log)}
                        missing = acknowledged.items() - found.items()
                        assert not missing, f"acknowledged and lost: {missing}"
                        return
                await asyncio.sleep(0.01)


async def test_what_was_acknowledged_for_a_topic_is_in_that_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_brokers(tmp_path, monkeypatch) as brokers:
        writers = Writers(brokers)
        writing = [asyncio.create_task(writers.write_for_ever()) for _ in range(4)]
        for number in range(ROUNDS):
            broker = random.choice(brokers)
            async with asyncio.timeout(PATIENCE_S):
                while True:  # it may not have heard yet that the one before is gone
                    try:
                        topic = await broker.topics.create(
                            TOPIC, 1, replication_factor=1 + number % 3
                        )
                        break
                    except ApiError:
                        await asyncio.sleep(0.01)
            await asyncio.sleep(random.uniform(0, LATE_S))
            await writers.check(topic.id)
            await broker.topics.delete(topic)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        assert sum(map(len, writers.acknowledged.values())) > ROUNDS, "nobody got anything done"
