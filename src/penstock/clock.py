"""Time, passed in wherever it is used, so that a test can move it."""

from __future__ import annotations

import time
from typing import Final, Protocol

# A lease runs out at the store while its holder sleeps. Linux has a clock of its own that counts that time.
_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time stamps records and retention; monotonic time measures waits."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as in record timestamps."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back, nor stands still while the machine sleeps."""


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(_MONOTONIC)


class ManualClock:
    """A clock that only moves when told to."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = 1_000.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        self._wall_ms += round(seconds * 1000)
        self._monotonic_s += seconds
