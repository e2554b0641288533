"""Leases of the embedded stores when nobody looks after them in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.metadata.errors import LeaseLost
from penstock.metadata.memory import MemoryStore

if TYPE_CHECKING:
    from tests.metadata.conftest import Reader


async def test_a_lease_is_over_at_its_time_even_if_nobody_looked() -> None:
    time = 0.0
    async with MemoryStore(now=lambda: time) as store:
        lease = await store.lease(2)
        await store.put("k", b"", lease=lease)
        time = 2.0
        with pytest.raises(LeaseLost):
            await lease.keep_alive()
        with pytest.raises(LeaseLost):
            await store.put("l", b"", lease=lease)
        assert await store.get("k") is None


async def test_the_timer_wakes_for_the_lease_that_ends_first(read: Reader) -> None:
    async with MemoryStore() as store:
        last = 0
        for ttl_s in (30, 2, 1):
            last = await store.put(f"ttl/{ttl_s}", b"", lease=await store.lease(ttl_s))
        events = await read(store.watch("", last + 1), 2)
        assert [event.key for event in events] == ["ttl/1", "ttl/2"]
