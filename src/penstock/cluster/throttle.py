"""A bound on bytes per second."""

from __future__ import annotations

from typing import Final

_BURST_S: Final = 0.25  # how much of what was not used may be used at once


class Throttle:
    """Fills with time, up to a quarter of a second's worth. What is taken may exceed what is there: then
    it takes so much longer to fill. A rate of 0 is no bound."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._rate = bytes_per_s
        self._left = bytes_per_s * _BURST_S
        self._filled_s = now_s

    def __bool__(self) -> bool:
        """Whether there is a bound."""
        return self._rate > 0

    def left(self, now_s: float) -> int:
        """The bytes that may be asked for now; 0 if it is to be waited."""
        self._fill(now_s)
        return max(0, int(self._left))

    def take(self, size: int, now_s: float) -> None:
        self._fill(now_s)
        self._left -= size

    def wait_s(self) -> float:
        """How long until half of a burst may be asked for."""
        return max(0.0, (self._rate * _BURST_S / 2 - self._left) / self._rate)

    def _fill(self, now_s: float) -> None:
        gained = (now_s - self._filled_s) * self._rate
        self._left = min(self._rate * _BURST_S, self._left + gained)
        self._filled_s = now_s
