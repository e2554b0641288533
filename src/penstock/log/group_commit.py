"""Group commit: many who wait for durability share one sync.

While a log is being synced in a thread, those who come wait for the next sync of that log; it begins
as soon as the first is done and covers them all. The event loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.log.partition_log import PartitionLog
from penstock.log.plans import SyncPlan

logger = logging.getLogger(__name__)


class _Waiter(NamedTuple):
    offset: int  # to be durable
    cuts: int  # how often the log had been cut when it was asked for
    future: asyncio.Future[None]


_Queue = deque[_Waiter]


class GroupCommit:
    """Makes logs durable on request. Lives on one event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waiting: dict[PartitionLog, _Queue] = {}  # the logs that are being synced
        self.sync_count = 0  # syncs done: far fewer than requests, under load

    def until_durable(self, log: PartitionLog, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is on disk; `StorageError` if the disk failed.

        `ApiError` (not_leader_or_follower) if the log is cut below `offset` before that.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if log.failure is not None:
            future.set_exception(log.failure_again())
        elif log.durable_offset >= offset:
            future.set_result(None)
        else:
            waiter = _Waiter(offset, len(log.cut_offsets), future)
            queue = self._waiting.get(log)
            if queue is None:
                self._waiting[log] = deque([waiter])
                self._start(loop, log)
            else:
                queue.append(waiter)
        return future

    def _start(self, loop: asyncio.AbstractEventLoop, log: PartitionLog) -> None:
        plan = log.begin_sync()
        running = loop.run_in_executor(self._executor, plan.run)
        running.add_done_callback(lambda done: self._finish(loop, log, plan, done))

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        log: PartitionLog,
        plan: SyncPlan,
        done: asyncio.Future[None],
    ) -> None:
        queue = self._waiting[log]
        self.sync_count += 1
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            self._fail(log, queue, error or "the broker is stopping")
            return
        log.finish_sync(plan)
        if plan.cuts != len(log.cut_offsets):
            _fail_those_cut_off(log, queue)
        while queue and queue[0].offset <= log.durable_offset:
            future = queue.popleft().future
            if not future.done():
                future.set_result(None)
        if not queue:
            del self._waiting[log]
        elif log.failure is not None:  # deleted meanwhile
            self._fail(log, queue, log.failure)
        else:
            self._start(loop, log)

    def _fail(self, log: PartitionLog, queue: _Queue, error: object) -> None:
        """After a failed sync nobody knows what the disk holds: stop here, recover at the start."""
        del self._waiting[log]
        if log.failure is None:
            logger.error("sync failed directory=%s error=%s", log.directory, error)
            plan = log.sync_failed(error)
            if plan is not None:
                with contextlib.suppress(RuntimeError):  # the executor is shut down
                    self._executor.submit(plan.run)
        for waiter in queue:
            if not waiter.future.done():
                waiter.future.set_exception(log.failure_again())

    async def drained(self) -> None:
        """Wait until nobody waits for a sync."""
        waiting = [waiter.future for queue in self._waiting.values() for waiter in queue]
        await asyncio.gather(*waiting, return_exceptions=True)


def _fail_those_cut_off(log: PartitionLog, queue: _Queue) -> None:
    """What they wait for is gone; other records may be in its place, and are not what they mean."""
    for waiter in list(queue):
        if log.was_cut_below(waiter.offset, waiter.cuts):
            queue.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(
                    ApiError(ErrorCode.not_leader_or_follower, "the records were cut off")
                )
