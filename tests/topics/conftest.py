"""A catalog on a real store and real logs, that a test can stop and start again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from penstock.broker import Broker
from penstock.broker.topics import TopicCatalog
from penstock.clock import ManualClock
from penstock.groups import GroupCoordinator
from penstock.log import LogStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import MetadataStore
from penstock.model import BrokerInfo
from penstock.settings import BrokerConfig

BROKER_ID = 7


class World:
    """One broker's topics. `restart` is a clean stop and a new start on the same disk."""

    store: MetadataStore
    logs: LogStore
    catalog: TopicCatalog
    broker: Broker

    def __init__(self, directory: Path, engine: str) -> None:
        self.directory = directory
        self.engine = engine
        self.config = BrokerConfig(data_dir=str(directory), broker_id=BROKER_ID)
        self.clock = ManualClock()
        self.open_logs: Callable[[BrokerConfig], LogStore] = lambda c: LogStore(c, self.clock)
        self._memory = MemoryStore()

    async def start(self) -> None:
        self.logs = self.open_logs(self.config)
        if self.engine == "sqlite":
            self.store = await SqliteStore.open(os.path.join(self.logs.own_directory, "db"))
        else:
            self.store = self._memory
        info = BrokerInfo(id=BROKER_ID, host="broker.example", port=9092, rack="r1")
        self.catalog = TopicCatalog(self.store, self.logs, self.config, BROKER_ID)
        self.broker = Broker(
            self.config,
            info,
            "cluster",
            self.store,
            self.logs,
            self.clock,
            self.catalog,
            GroupCoordinator(self.store, self.config, self.clock),
        )
        await self.catalog.load()

    async def stop(self) -> None:
        await self.catalog.close()
        await self.logs.close()
        if self.engine == "sqlite":
            await self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def append(self, topic: str, partition: int, *timestamps_ms: int, **batch: Any) -> None:
        """Append one batch with a record for each timestamp."""
        self.catalog.partition(topic, partition).log.append(make_batch(*timestamps_ms, **batch))


def make_batch(
    *timestamps_ms: int, producer_id: int = -1, epoch: int = -1, sequence: int = -1
) -> memoryview:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for offset, timestamp in enumerate(timestamps_ms):
        builder.append(offset, timestamp=timestamp, key=None, value=b"value", headers=[])
    return memoryview(bytearray(builder.build()))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A catalog on the memory store."""
    world = World(tmp_path, "memory")
    await world.start()
    yield world
    await world.stop()


@pytest.fixture(params=["memory", "sqlite"])
async def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A catalog on each of the stores."""
    world = World(tmp_path, request.param)
    await world.start()
    yield world
    await world.stop()
