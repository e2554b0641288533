"""A disk that syncs when a test says so, or fails to: executors in the place of the sync threads."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class HeldExecutor(Executor):
    """Keeps what it is given until the test lets it go, in order."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        """Do the oldest piece of work, on the real disk."""
        future, work = self.waiting.pop(0)
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def fail(self) -> None:
        """Let the oldest piece of work fail as a broken disk does, with nothing done."""
        future, _ = self.waiting.pop(0)
        future.set_exception(OSError(errno.EIO, os.strerror(errno.EIO)))
