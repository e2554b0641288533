"""Producer ids are given out once, whatever happens."""

from __future__ import annotations

import asyncio

from penstock.broker.producer_ids import BLOCK_SIZE, KEY, ProducerIds
from penstock.metadata.memory import MemoryStore


async def test_ids_ascend_from_zero() -> None:
    ids = ProducerIds(MemoryStore())
    assert [await ids.allocate() for _ in range(3)] == [0, 1, 2]


async def test_many_that_ask_at_once_get_different_ids() -> None:
    ids = ProducerIds(MemoryStore())
    given = await asyncio.gather(*(ids.allocate() for _ in range(2 * BLOCK_SIZE + 5)))
    assert len(set(given)) == 2 * BLOCK_SIZE + 5


async def test_a_block_is_one_write() -> None:
    store = MemoryStore()
    ids = ProducerIds(store)
    for _ in range(BLOCK_SIZE):
        await ids.allocate()
    entry = await store.get(KEY)
    assert entry is not None
    assert entry.mod_revision == entry.create_revision


async def test_after_a_crash_no_id_comes_again() -> None:
    store = MemoryStore()
    before = [await ProducerIds(store).allocate() for _ in range(3)]
    assert len(set(before)) == 3
    assert await ProducerIds(store).allocate() > max(before)


async def test_brokers_on_one_store_give_different_ids() -> None:
    store = MemoryStore()
    brokers = [ProducerIds(store) for _ in range(5)]
    given = await asyncio.gather(*(broker.allocate() for broker in brokers for _ in range(10)))
    assert len(set(given)) == 50
