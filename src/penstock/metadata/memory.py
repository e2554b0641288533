"""The metadata store for tests and throw-away brokers: everything is gone with the process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.metadata.embedded import Command, EmbeddedStore
from penstock.metadata.errors import MetadataError
from penstock.metadata.history import HISTORY_EVENTS_MAX, History
from penstock.metadata.keyspace import Draft, KeySpace
from penstock.metadata.store import CommitResult

__all__ = ["MemoryStore"]


class MemoryStore(EmbeddedStore):
    """A `MetadataStore` in memory. "Durable" means: as long as the object lives."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        history_events_max: int = HISTORY_EVENTS_MAX,
    ) -> None:
        space = KeySpace()
        super().__init__(space, now=now, history=History(space.revision, history_events_max))

    def _submit(self, command: Command) -> asyncio.Future[CommitResult]:
        done: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
        draft = Draft(self._space)
        try:
            result = self._decide(draft, command)
        except MetadataError as error:
            done.set_exception(error)
        else:
            self._history.publish(self._space.apply(draft))
            done.set_result(result)
        return done

    async def _shut_down(self) -> None:
        pass
