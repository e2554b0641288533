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

from penstock.log.partition_log import PartitionLog
from penstock.log.plans import SyncPlan

logger = logging.getLogger(__name__)


_Queue = deque[tuple[int, asyncio.Future[None]]]  # (offset to be durable, who waits for it)


class GroupCommit:
    """Makes logs durable on request. Lives on one event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waiting: dict[PartitionLog, _Queue] = {}  # the logs that are being synced
        self.sync_count = 0  # syncs done: far fewer than requests, under load

    def until_durable(self, log: PartitionLog, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is on disk; `StorageError` if the disk failed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if log.failure is not None:
            future.set_exception(log.failure_again())
        elif log.durable_offset >= offset:
            future.set_result(None)
        else:
            queue = self._waiting.get(log)
            if queue is None:
                self._waiting[log] = deque([(offset, future)])
                self._start(loop, log)
            else:
                queue.append((offset, future))
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
        while queue and queue[0][0] <= log.durable_offset:
            _, future = queue.popleft()
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
        for _, future in queue:
            if not future.done():
                future.set_exception(log.failure_again())

    async def drained(self) -> None:
        """Wait until nobody waits for a sync."""
        waiting = [future for queue in self._waiting.values() for _, future in queue]
        await asyncio.gather(*waiting, return_exceptions=True)
