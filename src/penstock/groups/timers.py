"""One structure for all deadlines of a coordinator, cheap to push back."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

KeyT = TypeVar("KeyT", bound=Hashable)

_SLACK_ENTRIES = 64


class Deadlines(Generic[KeyT]):
    """At most one deadline per key. Moving one later (a heartbeat) is one dict write.

    The heap is corrected lazily: an entry that comes up before its key's deadline is pushed back to it,
    so a member that heartbeats ten times a session costs one heap operation a session, not ten. Hence
    `next_wake` may be early, never late.
    """

    def __init__(self) -> None:
        self._deadlines: dict[KeyT, float] = {}
        self._heap: list[tuple[float, int, KeyT]] = []  # the number breaks ties: keys need no order
        # Invariant: every key of _deadlines is armed, at a time <= its deadline, by a heap entry.
        self._armed: dict[KeyT, float] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: KeyT, deadline: float) -> None:
        self._deadlines[key] = deadline
        armed = self._armed.get(key)
        if armed is None or armed > deadline:
            self._push(key, deadline)

    def cancel(self, key: KeyT) -> None:
        """Forget the key's deadline, if it has one. Its heap entry falls out when it comes up."""
        self._deadlines.pop(key, None)

    def next_wake(self) -> float | None:
        """When to look for the due next; None: never."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Iterator[KeyT]:
        """Remove and yield the keys whose deadline is `now` or earlier, one at a time, earliest first.

        Whoever gets one may move or cancel the others. No more come than there are at the beginning.
        """
        left = len(self._deadlines)
        while (key := self._next_due(now)) is not None:
            yield key
            left -= 1
            if left <= 0:
                return

    def _next_due(self, now: float) -> KeyT | None:
        """The first that is due. What is found to lead nowhere on the way there is dropped."""
        while self._heap and self._heap[0][0] <= now:
            time, _, key = heapq.heappop(self._heap)
            if self._armed.get(key) != time:
                continue  # an earlier entry took its place
            del self._armed[key]
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= time:
                del self._deadlines[key]
                return key
            self._push(key, deadline)
        return None

    def _push(self, key: KeyT, time: float) -> None:
        self._armed[key] = time
        heapq.heappush(self._heap, (time, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK_ENTRIES:
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop the entries that lead nowhere: the heap is never more than twice what it must be."""
        self._armed = dict(self._deadlines)
        self._heap = [(time, next(self._numbers), key) for key, time in self._deadlines.items()]
        heapq.heapify(self._heap)
