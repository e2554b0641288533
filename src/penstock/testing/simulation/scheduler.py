"""Virtual time: what is to happen, in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

__all__ = ["Scheduler"]


class Scheduler:
    """Runs calls at their time; those of one moment in the order they were made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._calls: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = count()

    def after(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        heappush(self._calls, (self.now + delay, next(self._order), call, args))

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Run up to a time, or until `done`, which is asked now and then."""
        while self._calls and self._calls[0][0] <= until:
            self.now, _, call, args = heappop(self._calls)
            call(*args)
            self.steps += 1
            if done is not None and self.steps % 200 == 0 and done():
                return
        self.now = max(self.now, until)
