"""Keeping a picture of a part of the metadata store: by snapshot and watch, and by what commits show."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Final

from penstock.metadata.errors import Compacted, StoreClosed, StoreError
from penstock.metadata.store import MetadataStore, Mismatch, Rejected

__all__ = ["Apply", "PrefixWatcher", "apply_mismatch", "apply_refused"]

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2

Apply = Callable[[str, bytes | None, int], None]
"""Takes over one key: its value, or None if it is gone, at a revision. Older news changes nothing."""


def apply_mismatch(apply: Apply, mismatch: Mismatch, revision: int) -> None:
    """A compare failed at `revision`: what the store holds instead is news."""
    actual = mismatch.actual
    if actual is None:
        apply(mismatch.compare.key, None, revision)
    else:
        apply(actual.key, actual.value, actual.mod_revision)


def apply_refused(apply: Apply, result: Rejected) -> None:
    for mismatch in result.mismatches:
        apply_mismatch(apply, mismatch, result.revision)


class PrefixWatcher:
    """Tells `apply` of every key under `prefix` as it is, and as it changes: key, value or None, revision.

    After the history was compacted away under it, it reads everything again, and keys that are `known`,
    by this watch or otherwise, and gone are told of as deleted at the snapshot's revision.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        apply: Apply,
        known: Callable[[str], Collection[str]],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._apply = apply
        self._known = known
        self._next_revision = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what is there, then follow it in the background. `StoreError` if it can not be read."""
        await self._read()
        self._task = asyncio.create_task(self._follow())

    def start_soon(self) -> None:
        """As `start`, but the first reading is done in the background, too, until it succeeds."""
        self._task = asyncio.create_task(self._read_and_follow())

    async def _read_and_follow(self) -> None:
        await self._read_again()
        await self._follow()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        snapshot = await self._store.get_prefix(self._prefix)
        found = {entry.key for entry in snapshot.entries}
        for key in [key for key in self._known(self._prefix) if key not in found]:
            self._apply(key, None, snapshot.revision)
        for entry in snapshot.entries:
            self._apply(entry.key, entry.value, entry.mod_revision)
        self._next_revision = snapshot.revision + 1

    async def _follow(self) -> None:
        while True:
            try:
                await self._watch()
            except Compacted:
                logger.warning("the watch of %s fell behind; reading it anew", self._prefix)
                await self._read_again()
            except StoreClosed:
                return
            except Exception:
                logger.exception("the watch of %s failed; it is begun anew", self._prefix)
                await asyncio.sleep(_RETRY_S)
                await self._read_again()

    async def _read_again(self) -> None:
        """Until it succeeds, or there is no store any more."""
        while True:
            try:
                await self._read()
            except StoreClosed:
                return  # which the watch is told, too
            except StoreError as error:
                logger.warning("the metadata store does not answer: %s", error)
            except Exception:  # nobody else would go on with it
                logger.exception("reading %s failed; it is tried again", self._prefix)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    async def _watch(self) -> None:
        async with aclosing(self._store.watch(self._prefix, self._next_revision)) as events:
            async for event in events:
                self._apply(event.key, event.value, event.mod_revision)
                if event.last_in_revision:
                    self._next_revision = event.mod_revision + 1
