"""The engines that the contract suite runs on. A new engine is one more class and one more name."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from penstock.metadata.embedded import EmbeddedStore
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.etcd_client import EtcdClient
from penstock.metadata.etcd_messages import LEASE_LEASES, LEASE_REVOKE
from penstock.metadata.memory import MemoryStore
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Event, MetadataStore, Watch
from penstock.testing.etcd import EtcdCluster, etcd
from tests.metadata.support import compact

HISTORY_EVENTS = 50


class Backend(Protocol):
    """One empty store, and the powers over its world that a test needs."""

    @property
    def store(self) -> MetadataStore: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def pass_time(self, seconds: float) -> None:
        """Let time pass for leases. Those that end may need a moment more for their keys."""

    async def forget_history(self) -> None:
        """Make every revision up to now too old to watch from."""

    def now(self) -> float:
        """The clock of `Lease.expires_at`."""


class EmbeddedBackend:
    store: EmbeddedStore

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    async def stop(self) -> None:
        await self.store.close()

    async def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.store.expire_leases()

    async def forget_history(self) -> None:
        for _ in range(HISTORY_EVENTS + 1):
            await self.store.put("filler", b"")


class MemoryBackend(EmbeddedBackend):
    async def start(self) -> None:
        self.store = MemoryStore(now=self.now, history_events_max=HISTORY_EVENTS)


class SqliteBackend(EmbeddedBackend):
    async def start(self) -> None:
        self.store = await SqliteStore.open(
            self.directory / "metadata.db", now=self.now, history_events_max=HISTORY_EVENTS
        )


class SharedEtcd:
    """One etcd for all tests of a worker. Each test has keys of its own, and finds no old leases."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.spoilt = False  # compacted, or otherwise not as a new one

    def fresh_config(self) -> EtcdConfig:
        if self.spoilt:
            self.cluster.restart_empty()
            self.spoilt = False
        return EtcdConfig(endpoints=self.cluster.endpoints, key_prefix=f"{uuid.uuid4().hex}/")

    async def compact(self) -> None:
        """Forget all history up to now."""
        self.spoilt = True
        await compact(self.cluster.endpoints)

    async def end_leases(self) -> None:
        """Else they would end, and raise the revision, in the middle of another test."""
        client = EtcdClient(EtcdConfig(endpoints=self.cluster.endpoints))
        for lease in (await client.call(LEASE_LEASES, LEASE_LEASES.request())).leases:
            await client.call(LEASE_REVOKE, LEASE_REVOKE.request(ID=lease.ID))
        await client.close()


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[SharedEtcd]:
    with etcd() as cluster:
        yield SharedEtcd(cluster)


@pytest.fixture(scope="session")
def trio() -> Iterator[EtcdCluster]:
    """An etcd of three members for all tests of a worker. Whoever hurts it heals it."""
    with etcd(members=3) as cluster:
        yield cluster


class EtcdBackend:
    store: EtcdMetadataStore

    def __init__(self, shared: SharedEtcd) -> None:
        self.shared = shared

    def now(self) -> float:
        return time.monotonic()

    async def start(self) -> None:
        self.store = await EtcdMetadataStore.open(self.shared.fresh_config())

    async def stop(self) -> None:
        await self.store.close()
        await self.shared.end_leases()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def forget_history(self) -> None:
        await self.store.put("filler", b"")
        await self.shared.compact()


EMBEDDED: dict[str, type[MemoryBackend | SqliteBackend]] = {
    "memory": MemoryBackend,
    "sqlite": SqliteBackend,
}


@pytest.fixture(params=[*EMBEDDED, "etcd"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend: Backend
    if request.param in EMBEDDED:
        backend = EMBEDDED[request.param](tmp_path)
    else:
        backend = EtcdBackend(request.getfixturevalue("shared_etcd"))
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
def store(backend: Backend) -> MetadataStore:
    return backend.store


class Reader:
    """Reads a given number of events, and fails instead of waiting for ever."""

    async def __call__(self, watch: Watch, count: int) -> list[Event]:
        async with asyncio.timeout(20):
            return [await anext(watch) for _ in range(count)]


@pytest.fixture
def read() -> Reader:
    return Reader()
