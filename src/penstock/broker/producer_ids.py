"""Ids for idempotent producers, never given out twice by any broker, restart or crash."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from penstock.errors import StorageError
from penstock.metadata.errors import RevisionMismatch, StoreCorrupt, StoreError
from penstock.metadata.store import MetadataStore

KEY: Final = "producers/next"  # the first id that no broker has claimed
BLOCK_SIZE: Final = 1_000


class ProducerIds:
    """Claims ids in blocks, each by one compare-and-swap that is durable before its first id is used.

    What is left of a block when the broker stops is never used.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0  # ids in [_next, _end) are ours to give
        self._claiming = asyncio.Lock()

    async def allocate(self) -> int:
        """A new producer id. `StorageError` if the metadata store can not be written."""
        while self._next == self._end:
            async with self._claiming:
                if self._next == self._end:
                    await self._claim()
        self._next += 1
        return self._next - 1

    async def _claim(self) -> None:
        while True:
            try:
                entry = await self._store.get(KEY)
                start = 0 if entry is None else _decode(entry.value)
                await self._store.put(
                    KEY,
                    json.dumps({"next": start + BLOCK_SIZE}).encode(),
                    expected_revision=0 if entry is None else entry.mod_revision,
                )
            except RevisionMismatch:
                continue  # another broker took this block
            except StoreError as error:
                raise StorageError(f"the metadata store can not write: {error}") from error
            self._next, self._end = start, start + BLOCK_SIZE
            return


def _decode(value: bytes) -> int:
    try:
        return int(json.loads(value)["next"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(f"{KEY} in the metadata store is no producer id: {error!r}") from error
