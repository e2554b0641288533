"""Produce requests that wait for the high watermark."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count

__all__ = ["ProduceWaits"]


class ProduceWaits:
    """Waits by the offset they wait for and by their deadline. Pure data; each ends exactly once."""

    def __init__(self) -> None:
        self._order = count()  # those that wait for one offset are answered in the order they came
        self._by_offset: list[tuple[float, int, Hashable]] = []
        self._by_deadline: list[tuple[float, int, Hashable]] = []
        self._waiting: set[int] = set()  # numbers of those that are in both heaps and not done

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, token: Hashable, end_offset: int, deadline: float) -> None:
        number = next(self._order)
        heappush(self._by_offset, (end_offset, number, token))
        heappush(self._by_deadline, (deadline, number, token))
        self._waiting.add(number)

    def pop_reached(self, high_watermark: int) -> list[Hashable]:
        """Those whose records are all below the high watermark."""
        return self._pop(self._by_offset, high_watermark)

    def pop_expired(self, now: float) -> list[Hashable]:
        return self._pop(self._by_deadline, now)

    def pop_all(self) -> list[Hashable]:
        return self._pop(self._by_offset, float("inf"))

    def _pop(self, heap: list[tuple[float, int, Hashable]], limit: float) -> list[Hashable]:
        done = []
        while heap and heap[0][0] <= limit:
            _, number, token = heappop(heap)
            if number in self._waiting:
                self._waiting.discard(number)
                done.append(token)
        return done
