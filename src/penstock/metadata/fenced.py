"""A `MetadataStore` for a writer that somebody else may take the place of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from penstock.metadata.base import BaseStore
from penstock.metadata.errors import Fenced, StoreError, StoreUnavailable
from penstock.metadata.store import (
    CommitResult,
    Compare,
    Entry,
    Lease,
    MetadataStore,
    Rejected,
    Snapshot,
    Transaction,
    Watch,
)

__all__ = ["FencedStore"]


class FencedStore(BaseStore):
    """Writes to `store` while `fence` holds: every commit compares it, so it has room for one less.

    If it does not hold, the commit raises `Fenced`, and so does every later one.

    A commit whose outcome is unknown may still be applied, even after later ones. So after it no other is
    sent: they raise `StoreUnavailable`. The way on is to move the fence (write its key anew, which
    shuts the lost commit out for good), to read what is there, and to take a new `FencedStore`.

    `on_failure` is told of the first of either, before the writer hears of it. Closing this one leaves
    `store` open.
    """

    def __init__(
        self,
        store: MetadataStore,
        fence: Compare,
        on_failure: Callable[[StoreError], None] | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._fence = fence
        self._on_failure = on_failure
        self._failure: StoreError | None = None

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        return await self._store.get(key)

    async def get_prefix(self, prefix: str) -> Snapshot:
        self._check_open()
        return await self._store.get_prefix(prefix)

    async def commit(self, transaction: Transaction) -> CommitResult:
        self._check_open()
        if isinstance(self._failure, Fenced):
            raise Fenced(self._fence.key)
        if self._failure is not None:
            raise StoreUnavailable(f"not sent after a write that may be lost: {self._failure}")
        fenced = replace(transaction, compares=(*transaction.compares, self._fence))
        try:
            result = await self._store.commit(fenced)
        except StoreError as error:
            self._fail(error)
            raise
        except asyncio.CancelledError:
            self._fail(StoreUnavailable("a write was given up while it was under way"))
            raise
        if isinstance(result, Rejected) and any(
            mismatch.compare == self._fence for mismatch in result.mismatches
        ):
            failure = Fenced(self._fence.key)
            self._fail(failure)
            raise failure
        return result

    def watch(self, prefix: str, from_revision: int) -> Watch:
        self._check_open()
        return self._store.watch(prefix, from_revision)

    async def lease(self, ttl_s: int) -> Lease:
        self._check_open()
        return await self._store.lease(ttl_s)

    def _fail(self, failure: StoreError) -> None:
        is_first = self._failure is None
        if is_first or isinstance(failure, Fenced):
            self._failure = failure
        if is_first and self._on_failure is not None:
            self._on_failure(failure)

    async def _close(self) -> None:
        pass
