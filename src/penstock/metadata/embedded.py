"""What the stores inside the broker's own process share: reads, watches, leases and their timer.

State lives on the event loop's thread and changes in one synchronous step (apply, publish), so no task
ever sees half of it. A subclass only says how a decided draft becomes durable.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from penstock.metadata.base import BaseStore
from penstock.metadata.history import History
from penstock.metadata.keyspace import Draft, KeySpace
from penstock.metadata.leases import LeaseTable
from penstock.metadata.store import (
    CommitResult,
    Entry,
    Lease,
    Snapshot,
    Transaction,
    Watch,
)

__all__ = ["Command", "EmbeddedStore", "EndLease"]

_LEASE_END_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLease:
    """Delete the keys of a lease that is over."""

    lease_id: int


Command = Transaction | EndLease


class EmbeddedStore(BaseStore):
    """A `MetadataStore` whose key space is in this process's memory.

    `now` is monotonic time in seconds; leases end by it. A timer of the running loop looks after them
    in real time; who moves `now` by hand calls `expire_leases` afterwards.
    """

    def __init__(self, space: KeySpace, *, now: Callable[[], float], history: History) -> None:
        super().__init__()
        self._space = space
        self._history = history
        self._now = now
        self._leases = LeaseTable()
        # Leases that are over but whose keys could not be deleted yet; the timer tries again.
        self._undeleted: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # meaningful while _timer is set

    # -- to be provided by the engine

    @abstractmethod
    def _submit(self, command: Command) -> asyncio.Future[CommitResult]:
        """Queue `command`. The future is done when it is decided and, with all before it, durable.

        Cancelling the future withdraws the command if it is not being written yet.
        """

    @abstractmethod
    async def _shut_down(self) -> None:
        """Finish what was submitted and release the engine's resources."""

    def _decide(self, draft: Draft, command: Command) -> CommitResult:
        if isinstance(command, EndLease):
            return draft.end_lease(command.lease_id)
        return draft.commit(command, self._leases)

    # -- MetadataStore

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        return self._space.get(key)

    async def get_prefix(self, prefix: str) -> Snapshot:
        self._check_open()
        return self._space.snapshot(prefix)

    async def commit(self, transaction: Transaction) -> CommitResult:
        self._check_open()
        self.expire_leases()
        return await self._submit(transaction)

    def watch(self, prefix: str, from_revision: int) -> Watch:
        self._check_open()
        return self._history.watch(prefix, from_revision)

    async def lease(self, ttl_s: int) -> Lease:
        self._check_open()
        now = self._now()
        lease = EmbeddedLease(self, self._leases.grant(ttl_s, now), ttl_s, now + ttl_s)
        self._set_timer()
        return lease

    # -- leases

    def expire_leases(self) -> None:
        """End the leases whose time has come; their keys go with the next write. Never blocks."""
        for lease_id in self._leases.expire(self._now()):
            self._end_lease(lease_id)

    def _keep_alive(self, lease_id: int) -> float:
        self._check_open()
        expires_at = self._leases.keep_alive(lease_id, self._now())
        self._set_timer()
        return expires_at

    async def _revoke(self, lease_id: int) -> None:
        self._check_open()
        self._leases.end(lease_id)
        # Shielded: the lease is over, whatever becomes of the caller, so its keys must go.
        await asyncio.shield(self._end_lease(lease_id))

    def _end_lease(self, lease_id: int) -> asyncio.Future[CommitResult]:
        def ended(future: asyncio.Future[CommitResult]) -> None:
            if future.cancelled() or future.exception() is not None:
                self._set_timer()
            else:
                self._undeleted.discard(lease_id)

        self._undeleted.add(lease_id)
        future = self._submit(EndLease(lease_id=lease_id))
        future.add_done_callback(ended)
        return future

    def _set_timer(self) -> None:
        """Have the timer fire no later than the next expiry, or the next retry of a failed delete."""
        if self._closing is not None:
            return
        wake_at = self._leases.next_expiry()
        if self._undeleted:
            retry_at = self._now() + _LEASE_END_RETRY_S
            wake_at = min(wake_at, retry_at) if wake_at is not None else retry_at
        if wake_at is None or (self._timer is not None and self._timer_at <= wake_at):
            return  # an early timer is harmless: it looks and sets itself anew
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, wake_at - self._now())
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
        self._timer_at = wake_at

    def _on_timer(self) -> None:
        self._timer = None
        for lease_id in list(self._undeleted):
            self._end_lease(lease_id)
        self.expire_leases()
        self._set_timer()

    # -- the end

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._shut_down()
        finally:
            self._history.close()


class EmbeddedLease:
    """A `Lease` of an `EmbeddedStore`."""

    def __init__(self, store: EmbeddedStore, lease_id: int, ttl_s: int, expires_at: float) -> None:
        self._store = store
        self.id = lease_id
        self.ttl_s = ttl_s
        self.expires_at = expires_at

    async def keep_alive(self) -> None:
        self.expires_at = self._store._keep_alive(self.id)

    async def revoke(self) -> None:
        self.expires_at = min(self.expires_at, self._store._now())
        await self._store._revoke(self.id)
