"""What commands have to know of signals."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Final

_SAME_SIGNAL_S: Final = 0.5


class SignalTimes:
    """Tells one signal from the next."""

    def __init__(self) -> None:
        self._again_s = 0.0  # from when on it is another one

    def is_another(self) -> bool:
        """Whether the signal that has just come is a new one.

        Programs that run others pass on signals that went to all of them: what follows soon is the same.
        """
        now_s = time.monotonic()
        if now_s < self._again_s:
            return False
        self._again_s = now_s + _SAME_SIGNAL_S
        return True


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, which should come soon. Main thread only.

    For calls of librdkafka: its callbacks are Python, and an exception in one of them is lost or garbled.
    """
    held: list[int] = []

    def hold(number: int, _frame: object) -> None:
        held.append(number)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
