"""A writer that somebody else may take the place of, on every store."""

from __future__ import annotations

import asyncio

import pytest

from penstock.metadata.errors import Fenced, StoreError, StoreUnavailable
from penstock.metadata.fenced import FencedStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    CommitResult,
    Committed,
    Compare,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)


async def fenced(store: MetadataStore, failures: list[StoreError] | None = None) -> FencedStore:
    """A store fenced by the key `fence`, as it is after a write to it."""
    revision = await store.put("fence", b"")
    tell = None if failures is None else failures.append
    return FencedStore(store, Compare(key="fence", mod_revision=revision), tell)


async def value(store: MetadataStore, key: str) -> bytes | None:
    entry = await store.get(key)
    return None if entry is None else entry.value


class TestWhileTheFenceHolds:
    async def test_it_writes_and_reads_like_the_store(self, store: MetadataStore) -> None:
        writer = await fenced(store)
        revision = await writer.put("a", b"1")
        assert await value(writer, "a") == await value(store, "a") == b"1"
        assert [e.key for e in (await writer.get_prefix("a")).entries] == ["a"]
        assert (await anext(writer.watch("a", revision))).value == b"1"

    async def test_other_compares_decide_as_ever(self, store: MetadataStore) -> None:
        writer = await fenced(store)
        transaction = Transaction(
            compares=(Compare(key="a", mod_revision=7),), puts=(Put(key="a", value=b""),)
        )
        result = await writer.commit(transaction)
        assert isinstance(result, Rejected)
        assert [mismatch.compare.key for mismatch in result.mismatches] == ["a"]
        assert isinstance(await writer.commit(Transaction()), Committed)

    async def test_there_is_room_for_one_compare_less(self, store: MetadataStore) -> None:
        writer = await fenced(store)
        absent = [Compare(key=f"k{i}", mod_revision=0) for i in range(TRANSACTION_OPERATIONS_MAX)]
        assert isinstance(await writer.commit(Transaction(compares=tuple(absent[1:]))), Committed)
        with pytest.raises(ValueError, match="operations"):
            await writer.commit(Transaction(compares=tuple(absent)))

    async def test_closing_it_leaves_the_store_open(self, store: MetadataStore) -> None:
        writer = await fenced(store)
        await writer.close()
        with pytest.raises(StoreError):
            await writer.get("a")
        assert await store.get("a") is None


class TestWhenTheFenceIsGone:
    @pytest.mark.parametrize("moved", [True, False], ids=["moved", "deleted"])
    async def test_nothing_is_written_ever_again(self, store: MetadataStore, moved: bool) -> None:
        failures: list[StoreError] = []
        writer = await fenced(store, failures)
        if moved:
            await store.put("fence", b"")
        else:
            lease = await store.lease(5)
            await store.put("fence", b"", lease=lease)
            await lease.revoke()
        for _ in range(2):
            with pytest.raises(Fenced):
                await writer.put("a", b"1")
        assert await value(store, "a") is None
        assert len(failures) == 1, "the owner is told once"


class Forgetful(MemoryStore):
    """Does not answer: what was sent is applied when `arrive` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False
        self.under_way: list[Transaction] = []

    async def commit(self, transaction: Transaction) -> CommitResult:
        if self.silent:
            self.under_way.append(transaction)
            raise StoreUnavailable("no answer")
        return await super().commit(transaction)

    async def arrive(self) -> None:
        self.silent = False
        for transaction in self.under_way:
            await self.commit(transaction)


class TestAfterAWriteThatMayBeLost:
    async def test_no_other_is_sent_that_it_could_overtake(self) -> None:
        store = Forgetful()
        failures: list[StoreError] = []
        writer = await fenced(store, failures)
        store.silent = True
        with pytest.raises(StoreUnavailable):
            await writer.put("a", b"lost")
        store.silent = False
        with pytest.raises(StoreUnavailable, match="not sent"):
            await writer.put("a", b"next")
        assert await value(store, "a") is None
        assert len(failures) == 1

    async def test_moving_the_fence_shuts_it_out(self) -> None:
        store = Forgetful()
        writer = await fenced(store)
        store.silent = True
        with pytest.raises(StoreUnavailable):
            await writer.put("a", b"lost")
        store.silent = False
        writer = await fenced(store)
        await writer.put("a", b"next")
        await store.arrive()
        assert await value(store, "a") == b"next"

    async def test_one_that_was_cancelled_counts_as_lost(self) -> None:
        store = MemoryStore()
        writer = await fenced(store)
        writing = asyncio.create_task(writer.put("a", b"1"))
        writing.cancel()
        await asyncio.wait([writing])
        await writer.put("a", b"2")  # cancelled before it began: nothing was sent

        class Slow(MemoryStore):
            async def commit(self, transaction: Transaction) -> CommitResult:
                if any(put.key == "a" for put in transaction.puts):
                    await asyncio.Event().wait()
                return await super().commit(transaction)

        writer = await fenced(Slow())
        writing = asyncio.create_task(writer.put("a", b"1"))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        with pytest.raises(StoreUnavailable, match="not sent"):
            await writer.put("b", b"2")
