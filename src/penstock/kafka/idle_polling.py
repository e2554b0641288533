"""Staying awake for a request that is about to come.

A client that waits for each answer before it sends the next request is back within microseconds, while
falling asleep and being woken takes a thread longer than the request itself. So while requests follow
each other closely, the event loop looks for the next one for a moment instead of waiting for it. Every
look gives way to others first; if one of them took the core, it is needed more elsewhere, and we sleep.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

_RUN_LENGTH: Final = 8
_give_way: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class IdlePolling:
    """Looks for up to `limit_us` after an answer, once a few in a row have come close to each other.

    A look that was in vain ends the run, so requests that come more seldom cost one look in many. While
    asleep, twice the limit counts as close: being woken is part of the distance then. A limit of 0 turns
    it off.
    """

    __slots__ = (
        "_answered_s",
        "_call_soon",
        "_clock",
        "_give_way",
        "_is_looking",
        "_limit_s",
        "_run",
    )

    def __init__(
        self,
        limit_us: int,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
        give_way: Callable[[], None] = _give_way,
    ) -> None:
        self._limit_s = limit_us / 1e6
        self._call_soon = call_soon
        self._clock = clock
        self._give_way = give_way
        self._answered_s = clock()
        self._run = 0  # answers in a row that left close behind the one before
        self._is_looking = False

    def on_answered(self) -> None:
        """A client has all of its answers, and nothing of another request is there yet."""
        now_s = self._clock()
        self._run = self._run + 1 if now_s - self._answered_s < 2 * self._limit_s else 0
        self._answered_s = now_s
        if self._run >= _RUN_LENGTH and not self._is_looking:
            self._is_looking = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Runs once in every turn of the loop, which does not sleep while this is to come."""
        began_s = self._clock()
        is_over = began_s - self._answered_s >= self._limit_s
        if not is_over:
            self._give_way()
            is_over = self._clock() - began_s >= self._limit_s / 2
        if is_over:
            self._is_looking = False
            self._run = 0
        else:
            self._call_soon(self._look)
