"""What a watch was given and its reader has not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from penstock.metadata.errors import MetadataError
from penstock.metadata.store import Event

__all__ = ["Unread"]


class Unread:
    """Events for one reader, in order; an error may come behind the last. Belongs to the event loop."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._error: MetadataError | None = None  # raised once there are no more events
        self._closed = False
        self._wakeup: asyncio.Future[None] | None = None  # while a reader waits

    def __len__(self) -> int:
        return len(self._events)

    @property
    def has_ended(self) -> bool:
        """Whether nothing that is put here will be read."""
        return self._closed or self._error is not None

    async def take(self) -> Event:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            if self._wakeup is not None:
                raise RuntimeError("two tasks read one watch")
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
        return self._events.popleft()

    def put(self, events: Iterable[Event]) -> None:
        if not self.has_ended:
            self._events.extend(events)
            self._wake()

    def fail(self, error: MetadataError, *, drop_unread: bool = False) -> None:
        """End with `error`, after what is unread unless that is dropped. The first error stays."""
        if self._error is None:
            self._error = error
            if drop_unread:
                self._events.clear()
            self._wake()

    def close(self) -> None:
        """Nobody reads any more: the iteration ends at once."""
        self._closed = True
        self._events.clear()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
