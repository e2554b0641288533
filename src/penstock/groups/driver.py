"""Performs what the groups decide: answers futures, keeps timers, writes to the store.

All state changes happen in synchronous steps on the event loop; what has to wait (the store) runs in
tasks of the driver's own, which a client that hangs up does not cancel.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from penstock.clock import Clock
from penstock.errors import ErrorCode
from penstock.groups.group import Group
from penstock.groups.messages import (
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    GroupRecord,
    Now,
    SetTimer,
    StoreGroup,
    TimerKey,
)
from penstock.groups.offsets import OffsetTable
from penstock.groups.storage import GroupStorage
from penstock.groups.timers import Deadlines
from penstock.metadata.errors import StoreError
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

__all__ = ["Entry", "GroupDriver"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Task: TypeAlias = asyncio.Task[Any]


@dataclass(slots=True, eq=False)
class Entry:
    """A group with what belongs to it."""

    group: Group
    offsets: OffsetTable = field(default_factory=OffsetTable)
    stores: deque[StoreGroup] = field(default_factory=deque)  # in order; the first is being written
    writes: set[Task] = field(default_factory=set)  # under way to the store
    offset_writes: dict[TopicPartition, Task] = field(default_factory=dict)  # the last of each


class GroupDriver:
    """All groups of a coordinator. Belongs to one event loop."""

    def __init__(self, storage: GroupStorage, config: BrokerConfig, clock: Clock) -> None:
        self.storage = storage
        self._config = config
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._timers: Deadlines[tuple[str, TimerKey]] = Deadlines()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_s = 0.0  # when _wake fires, on our clock
        self._tasks: set[Task] = set()
        self._finished = False

    def now(self) -> Now:
        return Now(self._clock.monotonic_s(), self._clock.wall_ms())

    # -- groups ---------------------------------------------------------------------------------

    def get(self, group_id: str) -> Entry | None:
        return self._entries.get(group_id)

    def get_or_create(self, group_id: str) -> Entry:
        """The group's entry. A new one vanishes again unless something comes of it: see `perform`."""
        entry = self._entries.get(group_id)
        if entry is None:
            entry = Entry(Group(group_id, self._config, self.now()))
            self._entries[group_id] = entry
        return entry

    def restore(self, record: GroupRecord) -> None:
        entry = Entry(Group.restore(record, self._config, self.now()))
        self._entries[record.group_id] = entry
        self.perform(entry)

    def entries(self) -> Iterator[Entry]:
        """All of them as of now; safe against changes meanwhile."""
        return iter(list(self._entries.values()))

    def forget(self, entry: Entry) -> None:
        """The group is deleted, in the store too."""
        if self._entries.get(entry.group.group_id) is entry:
            del self._entries[entry.group.group_id]

    def forget_if_vacant(self, entry: Entry) -> None:
        """A group that only ever was a name, and holds no offsets, leaves no trace."""
        if entry.group.is_vacant and not entry.offsets and not entry.writes:
            self.forget(entry)

    # -- effects --------------------------------------------------------------------------------

    def perform(self, entry: Entry) -> None:
        """Do what the group decided in its last steps. Call it after every event, before any await."""
        group = entry.group
        for effect in group.take_effects():
            match effect:
                case SetTimer(key, deadline_s):
                    self._timers.set((group.group_id, key), deadline_s)
                case CancelTimer(key):
                    self._timers.cancel((group.group_id, key))
                case AnswerJoin(reply, result) | AnswerSync(reply, result):
                    assert isinstance(reply, asyncio.Future)
                    if not reply.done():  # else the client has hung up
                        reply.set_result(result)
                case StoreGroup():
                    entry.stores.append(effect)
                    if len(entry.stores) == 1:
                        self.spawn(entry, self._write_group(entry))
        self.forget_if_vacant(entry)
        self._arm()

    async def _write_group(self, entry: Entry) -> None:
        """Write the group's records one after another; tell the group of each."""
        while entry.stores:
            store = entry.stores[0]
            error = ErrorCode.none
            try:
                await self.storage.save_group(store.record)
            except StoreError as failure:
                logger.warning("group %r could not be stored: %s", entry.group.group_id, failure)
                error = ErrorCode.coordinator_not_available
            except Exception:
                logger.exception("group %r could not be stored", entry.group.group_id)
                error = ErrorCode.unknown_server_error
            entry.stores.popleft()
            entry.group.stored(store.purpose, error, self.now())
            self.perform(entry)

    # -- tasks ----------------------------------------------------------------------------------

    def spawn(self, entry: Entry, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a write of the group's to its end, whoever waits for it. `shield` it when awaiting."""
        task = self.run(work)
        entry.writes.add(task)

        def finished(done: Task) -> None:
            entry.writes.discard(done)
            self.forget_if_vacant(entry)

        task.add_done_callback(finished)
        return task

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` to its end; `finish` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, entry: Entry) -> None:
        """Wait for what of the group is under way to the store now; what begins meanwhile goes on."""
        if entry.writes:
            await asyncio.wait(set(entry.writes))

    async def finish(self) -> None:
        """No more timers; wait for everything that runs."""
        self._finished = True
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # -- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due by now. Called by the timer; a test with a clock of its own calls it, too."""
        now = self.now()
        for group_id, timer in self._timers.pop_due(now.seconds):
            entry = self._entries.get(group_id)
            if entry is not None:
                entry.group.expire(timer, now)
                self.perform(entry)
        self._arm()

    def _arm(self) -> None:
        """One wake-up call for all timers, moved only when an earlier one is needed."""
        wake_s = self._timers.next_wake()
        if wake_s is None or self._finished:
            return
        if self._wake is not None and self._wake_s <= wake_s:
            return
        if self._wake is not None:
            self._wake.cancel()
        delay_s = max(wake_s - self._clock.monotonic_s(), 0)
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._woken)
        self._wake_s = wake_s

    def _woken(self) -> None:
        self._wake = None
        self.tick()
