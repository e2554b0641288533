"""Trying again, with pauses that grow, until the time is up."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from penstock.client.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    RetriesExhausted,
    UnknownTopic,
    advice_on,
    is_passing,
)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
# A topic that was just made may not be known to every broker; one that is not there never will be.
_UNKNOWN_TOPIC_PATIENCE_S: Final = 2.0


class Retry:
    """A streak of failures. `pause` waits before the next try, or raises what ends the trying."""

    def __init__(self, doing: str, timeout_ms: int, stop: threading.Event | None = None) -> None:
        self._doing = doing  # for example "reading orders-0"
        self._timeout_s = timeout_ms / 1000
        self._stop = stop
        self._began = 0.0  # of the streak
        self._pause_s = 0.0

    def succeeded(self) -> None:
        self._pause_s = 0.0

    def pause(self, error: ClientError) -> None:
        """Wait before the next try. Raises what does not pass, and what did not pass in time."""
        if not passes(error):
            raise error
        now = time.monotonic()
        if not self._pause_s:
            self._began, self._pause_s = now, _FIRST_PAUSE_S
        patience = self._timeout_s
        if isinstance(error, UnknownTopic):
            patience = min(patience, _UNKNOWN_TOPIC_PATIENCE_S)
        if now - self._began >= patience:
            if isinstance(error, UnknownTopic):
                raise error
            advice = "" if isinstance(error, BrokerError) else advice_on(error.code)
            raise RetriesExhausted(
                f"gave up {self._doing} after {patience:g} s of trying: {error.message}{advice}"
                + _unreachable_advice(error),
                code=error.code,
            ) from error
        self._sleep(self._pause_s * random.uniform(0.8, 1.2))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def _sleep(self, seconds: float) -> None:
        if self._stop is None:
            time.sleep(seconds)
        else:
            self._stop.wait(seconds)


def passes(error: ClientError) -> bool:
    """Whether it is worth trying again."""
    if isinstance(error, BrokerUnreachable):
        return True
    return isinstance(error, BrokerError) and is_passing(error.code)


def _unreachable_advice(error: ClientError) -> str:
    if not isinstance(error, BrokerUnreachable):
        return ""
    return "; check that the broker is up and that its advertised address can be reached from here"
