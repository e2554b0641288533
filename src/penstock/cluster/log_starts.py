"""Where the logs of a partition's followers begin, as their fetches say, and who waits for them to move.

A follower moves the start of its log when the leader's answer says that the leader's has moved, and
names it with its next fetch. Plain bookkeeping: no rule of replication rests on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from penstock.errors import ApiError, ErrorCode

__all__ = ["LogStarts"]


class LogStarts:
    """Of one partition, while one broker leads it. Lives on one event loop."""

    __slots__ = ("_said", "_waiting")

    def __init__(self) -> None:
        self._said: dict[int, int] = {}  # follower -> where its log begins
        self._waiting: dict[asyncio.Future[None], int] = {}  # -> where all are to begin

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def said(self, follower: int, start: int) -> None:
        self._said[follower] = start

    def until(self, start: int, followers: Collection[int]) -> asyncio.Future[None]:
        """Done when all of the followers that count begin at `start` or above."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = start
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        self.look(followers)
        return future

    def look(self, followers: Collection[int]) -> None:
        """Something was said, or others count by now."""
        lowest = min((self._said.get(follower, -1) for follower in followers), default=None)
        for future, start in self._waiting.items():
            if not future.done() and (lowest is None or lowest >= start):
                future.set_result(None)

    def end(self) -> None:
        """The leadership is over, and what was said in it is forgotten."""
        self._said.clear()
        for future in self._waiting:
            if not future.done():
                future.set_exception(
                    ApiError(ErrorCode.not_leader_or_follower, "another broker leads by now")
                )
