"""The engines that the contract suite runs on. A new engine is one more class and one more name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from penstock.metadata.embedded import EmbeddedStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Event, MetadataStore, Watch

HISTORY_EVENTS = 50


class Backend(Protocol):
    """One empty store, and the powers over its world that a test needs."""

    @property
    def store(self) -> MetadataStore: ...

    async def start(self) -> None: ...

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


BACKENDS: dict[str, type[MemoryBackend | SqliteBackend]] = {
    "memory": MemoryBackend,
    "sqlite": SqliteBackend,
}


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    backend = BACKENDS[request.param](tmp_path)
    await backend.start()
    yield backend
    await backend.store.close()


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
