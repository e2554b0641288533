"""The metadata store of a single node: an SQLite file, with the whole key space in memory.

The way of a commit: `commit` puts it in the queue; the writer task takes all that wait, decides them
in order on one `Draft`, and has the file's thread write the draft in one SQLite transaction with one
sync; then, in one synchronous step, the draft is applied, its events are published and the callers are
answered. While one group is being synced the next one gathers. If the write fails, the draft is
dropped and every caller of that group, and no other, gets the error.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from penstock.metadata.embedded import Command, EmbeddedStore
from penstock.metadata.errors import LeaseLost, StoreClosed, StoreUnavailable
from penstock.metadata.history import HISTORY_EVENTS_MAX, History
from penstock.metadata.keyspace import Draft, KeySpace
from penstock.metadata.sqlite_file import SqliteFile
from penstock.metadata.store import CommitResult, Transaction

__all__ = ["SqliteStore"]

# A group is decided and applied on the event loop: its size bounds how long that takes.
_GROUP_OPERATIONS_MAX = 1_024
_GROUP_BYTES_MAX = 8 * 1024 * 1024
# What may wait; beyond it `commit` answers StoreUnavailable at once.
_QUEUE_BYTES_MAX = 128 * 1024 * 1024
_COMMAND_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    command: Command
    done: asyncio.Future[CommitResult]
    operation_count: int
    size_bytes: int


class SqliteStore(EmbeddedStore):
    """A `MetadataStore` in one SQLite file, for one process at a time.

    - A commit that returned survives the death of the process and of the machine's power.
    - Commits that wait together share one sync; `groups_written` counts the syncs.
    - Reads come from memory, which only ever shows what is durable. The event loop never waits for the
      disk: all SQLite work happens on one thread of this store.
    - Disk full and I/O errors are `StoreUnavailable` for the commits in that group. Nothing of them is
      applied, reads go on, and later commits work again when the disk does.
    - Leases live and die with the process: `open` deletes the keys left from the last one.
    - The history for resuming watches starts with `open` and holds `history_events_max` events, or fewer
      that are large.
    """

    def __init__(
        self,
        file: SqliteFile,
        thread: ThreadPoolExecutor,
        space: KeySpace,
        *,
        now: Callable[[], float],
        history_events_max: int,
    ) -> None:
        """Use `open`."""
        super().__init__(space, now=now, history=History(space.revision, history_events_max))
        self._file = file
        self._thread = thread
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0  # the sum of size_bytes in the queue
        self._work = asyncio.Event()  # set when the queue has something, or the writer is to stop
        self._groups_written = 0
        self._writer = asyncio.get_running_loop().create_task(self._write_groups())

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        now: Callable[[], float] = time.monotonic,
        history_events_max: int = HISTORY_EVENTS_MAX,
        file_at: Callable[[str | os.PathLike[str]], SqliteFile] = SqliteFile,
    ) -> Self:
        """Open or create the database at `path`; its directory must exist.

        Raises `StoreLocked` if another process has it open, `StoreCorrupt` if it is damaged,
        `StoreUnavailable` if it cannot be opened or written. `file_at` lets a faulty twin in.
        """
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-metadata")
        file = file_at(path)
        try:
            contents = await loop.run_in_executor(thread, file.open)
            space = KeySpace(contents.entries, contents.revision)
            draft = Draft(space)
            for lease_id in space.leases():
                draft.end_lease(lease_id)
            if draft.writes:
                await loop.run_in_executor(thread, _write, file, draft)
                space.apply(draft)
        except BaseException:
            thread.submit(file.close)
            thread.shutdown(wait=False)
            raise
        return cls(file, thread, space, now=now, history_events_max=history_events_max)

    @property
    def groups_written(self) -> int:
        """How many groups of commits were written, each with one sync, since `open`."""
        return self._groups_written

    def _submit(self, command: Command) -> asyncio.Future[CommitResult]:
        operation_count, size_bytes = 1, _COMMAND_OVERHEAD_BYTES
        if isinstance(command, Transaction):
            operation_count = max(1, len(command.puts) + len(command.deletes))
            size_bytes += command.size_bytes
            if self._queue_bytes + size_bytes > _QUEUE_BYTES_MAX:
                raise StoreUnavailable(f"{len(self._queue)} commits wait for the disk already")
        if self._writer.done():
            raise StoreClosed
        done: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(command, done, operation_count, size_bytes))
        self._queue_bytes += size_bytes
        self._work.set()
        return done

    async def _shut_down(self) -> None:
        self._work.set()
        try:
            await asyncio.wait({self._writer})
            await asyncio.get_running_loop().run_in_executor(self._thread, self._file.close)
        finally:
            self._thread.shutdown(wait=False)

    # -- the writer

    async def _write_groups(self) -> None:
        """The life of the writer task: write what waits, until the store is closed."""
        try:
            while self._queue or self._closing is None:
                if self._queue:
                    await self._write_group(self._take_group())
                else:
                    self._work.clear()
                    await self._work.wait()
        finally:
            while self._queue:  # only if the loop is being torn down with the store still open
                _answer(self._queue.popleft(), StoreClosed())

    def _take_group(self) -> list[_Waiting]:
        """The head of the queue, up to the bounds of a group but at least one command."""
        group: list[_Waiting] = []
        operation_count = size_bytes = 0
        while self._queue:
            head = self._queue[0]
            operation_count += head.operation_count
            size_bytes += head.size_bytes
            if group and (operation_count > _GROUP_OPERATIONS_MAX or size_bytes > _GROUP_BYTES_MAX):
                break
            self._queue_bytes -= head.size_bytes
            group.append(self._queue.popleft())
        return group

    async def _write_group(self, group: list[_Waiting]) -> None:
        """Decide, make durable, apply, publish, answer. Answers every command, whatever happens."""
        self.expire_leases()
        draft = Draft(self._space)
        answers: Sequence[tuple[_Waiting, CommitResult | Exception]]
        try:
            answers = [
                (waiting, self._decide_or_refuse(draft, waiting.command))
                for waiting in group
                if not waiting.done.cancelled()
            ]
            if draft.writes:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, _write, self._file, draft)
                self._groups_written += 1
                self._history.publish(self._space.apply(draft))
        except StoreUnavailable as error:
            # Also those that were rejected: they may have lost to a write that is now not there.
            # One exception each: a shared one would gather the traceback of every caller.
            answers = [(waiting, StoreUnavailable(str(error))) for waiting in group]
        except Exception as error:
            answers = [(waiting, error) for waiting in group]
        except BaseException:
            for waiting in group:
                _answer(waiting, StoreClosed())
            raise
        for waiting, answer in answers:
            _answer(waiting, answer)

    def _decide_or_refuse(self, draft: Draft, command: Command) -> CommitResult | LeaseLost:
        try:
            return self._decide(draft, command)
        except LeaseLost as error:
            return error


def _write(file: SqliteFile, draft: Draft) -> None:
    """On the store's thread. The draft is not touched by the event loop until this returns."""
    file.write(draft.writes, base_revision=draft.base_revision, revision=draft.revision)


def _answer(waiting: _Waiting, answer: CommitResult | Exception) -> None:
    if waiting.done.done():
        return
    if isinstance(answer, Exception):
        waiting.done.set_exception(answer)
    else:
        waiting.done.set_result(answer)
