"""Waiting for less than a millisecond, which event loops round to none or to a whole one."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import struct
import time
from collections.abc import Callable
from typing import Any, Final

_NON_BLOCKING_CLOSED_ON_EXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK, TFD_CLOEXEC
_ITIMERSPEC: Final = struct.Struct("llll")  # interval and value, each in seconds and nanoseconds


class ShortTimer:
    """Calls back on the event loop. One timer of the kernel's, made when it is first needed: Linux only."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._libc: Any = None
        self._fd = -1

    def call_later(self, seconds: float, callback: Callable[[], None]) -> bool:
        """Call back then; False if nobody can, here."""
        if self._fd < 0 and not self._open():
            return False
        due_s = time.monotonic() + seconds
        heapq.heappush(self._due, (due_s, next(self._numbers), callback))
        if self._due[0][0] == due_s:
            self._set(seconds)
        return True

    def _open(self) -> bool:
        import ctypes  # most brokers never need it

        libc = ctypes.CDLL(None)
        if not hasattr(libc, "timerfd_create"):
            return False
        fd = libc.timerfd_create(time.CLOCK_MONOTONIC, _NON_BLOCKING_CLOSED_ON_EXEC)
        if fd < 0:
            return False  # no file descriptor left
        self._libc, self._fd = libc, fd
        asyncio.get_running_loop().add_reader(fd, self._on_due)
        return True

    def _set(self, seconds: float) -> None:
        whole = int(seconds)
        nanoseconds = max(1, int((seconds - whole) * 1e9))
        self._libc.timerfd_settime(self._fd, 0, _ITIMERSPEC.pack(0, 0, whole, nanoseconds), None)

    def _on_due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set anew meanwhile
        now_s = time.monotonic()
        try:
            while self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2]()
        finally:
            if self._due:
                self._set(max(0.0, self._due[0][0] - now_s))

    def close(self) -> None:
        """Call nobody back any more."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._due.clear()
