"""The last events of an embedded store, and the watches fed from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from weakref import WeakValueDictionary

from penstock.metadata.errors import Compacted, StoreClosed
from penstock.metadata.keyspace import EMPTY_REVISION
from penstock.metadata.store import Event
from penstock.metadata.unread import Unread

__all__ = ["HISTORY_EVENTS_MAX", "History", "HistoryWatch"]

HISTORY_EVENTS_MAX = 10_000
HISTORY_BYTES_MAX = 16 * 1024 * 1024  # of keys and values


class History:
    """A bounded record of what was published, revision by revision, for watches that resume.

    Keeps the newest revisions whole, up to `events_max` events and `bytes_max` bytes in all, and always
    the last one. All methods are synchronous and belong to the event loop's thread; a watch is registered
    and filled in one step, so nothing can be published in between.
    """

    def __init__(
        self,
        revision: int,
        events_max: int = HISTORY_EVENTS_MAX,
        bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        # Invariant: the keys are exactly oldest .. revision, ascending.
        self._changes: dict[int, tuple[Event, ...]] = {}
        self._event_count = 0
        self._bytes = 0
        self._oldest = revision + 1
        self._revision = revision
        if revision == EMPTY_REVISION:  # nothing came before, so nothing is missing
            self._oldest = revision
            self._changes[revision] = ()
        self._watch_ids = count()
        # Weak, so that a watch nobody holds costs nothing; keyed, so that they wake in a fixed order.
        self._watches: WeakValueDictionary[int, HistoryWatch] = WeakValueDictionary()
        self._closed = False

    def publish(self, changes: Iterable[tuple[Event, ...]]) -> None:
        """Record the events of the revisions that come next, and hand them to the watches."""
        new = tuple(changes)
        for events in new:
            self._revision += 1
            assert events[0].mod_revision == self._revision, "a revision was skipped"
            self._changes[self._revision] = events
            self._event_count += len(events)
            self._bytes += _size(events)
        while self._is_over_bounds() and self._oldest < self._revision:
            dropped = self._changes.pop(self._oldest)
            self._event_count -= len(dropped)
            self._bytes -= _size(dropped)
            self._oldest += 1
        for watch in list(self._watches.values()):
            if watch.unread_count > self._events_max:
                watch.fail(Compacted(self._oldest), drop_unread=True)
            for events in new:
                watch.feed(events)

    def _is_over_bounds(self) -> bool:
        return self._event_count > self._events_max or self._bytes > self._bytes_max

    def watch(self, prefix: str, from_revision: int) -> HistoryWatch:
        if from_revision < 1:
            raise ValueError(f"from_revision {from_revision} is less than 1")
        if self._closed:
            raise StoreClosed
        watch = HistoryWatch(prefix, from_revision)
        if from_revision < self._oldest:
            watch.fail(Compacted(self._oldest))
            return watch
        for revision in range(from_revision, self._revision + 1):
            if events := self._changes[revision]:
                watch.feed(events)
        self._watches[next(self._watch_ids)] = watch
        return watch

    def close(self) -> None:
        """End every watch with `StoreClosed`, after the events it already has."""
        self._closed = True
        for watch in list(self._watches.values()):
            watch.fail(StoreClosed())


class HistoryWatch:
    """A `Watch` with a queue of its own, bounded by the history's bound plus one group of commits.

    A reader with more than the bound unread when the next events come is too slow: it loses what it
    has not read and gets `Compacted`. Only events under the prefix count, so a busy neighbour never
    pushes a quiet watch out.
    """

    def __init__(self, prefix: str, from_revision: int) -> None:
        self._prefix = prefix
        self._from_revision = from_revision
        self._unread = Unread()

    def __aiter__(self) -> HistoryWatch:
        return self

    async def __anext__(self) -> Event:
        return await self._unread.take()

    async def aclose(self) -> None:
        self._unread.close()

    @property
    def unread_count(self) -> int:
        return len(self._unread)

    def feed(self, events: tuple[Event, ...]) -> None:
        """Append what matches of one revision; the revisions must come in order."""
        if self._unread.has_ended or events[0].mod_revision < self._from_revision:
            return
        prefix = self._prefix
        matching = [event for event in events if event.key.startswith(prefix)]
        if matching:
            if not matching[-1].last_in_revision:
                matching[-1] = replace(matching[-1], last_in_revision=True)
            self._unread.put(matching)

    def fail(self, error: Compacted | StoreClosed, *, drop_unread: bool = False) -> None:
        """End with `error`, after what is unread unless that is dropped. The first error stays."""
        self._unread.fail(error, drop_unread=drop_unread)


def _size(events: tuple[Event, ...]) -> int:
    return sum(len(event.key) + len(event.value or b"") for event in events)
