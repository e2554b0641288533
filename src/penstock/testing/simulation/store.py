"""The metadata store's twin: linearizable, with leases that end, watches that lag, and answers that get
lost after the work was done.

It stands on the same key space as the embedded stores. A call is executed at one moment, somewhere
between its request and its answer, or after the caller has given up, or never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.metadata.errors import LeaseLost
from penstock.metadata.keyspace import Draft, KeySpace
from penstock.metadata.store import CommitResult, Event, Snapshot, Transaction
from penstock.testing.simulation.network import Network, Node
from penstock.testing.simulation.scheduler import Scheduler

__all__ = ["STORE", "UNKNOWN", "SimulatedStore", "Watcher"]

STORE: Final = "store"
CALL_TIMEOUT_S: Final = 0.4
T = TypeVar("T")


class _Unknown:
    """The outcome of a call that was not answered."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
WatchCallback = Callable[[tuple[Event, ...]], None]


class Watcher:
    """One broker's watches, one of each part of the store: late, and held back while the link is cut.

    Within a part, revisions come in order; what happened in another part may be seen long before, or
    after. Even what one transaction did in two of them comes one by one.
    """

    def __init__(self, store: SimulatedStore, node: Node, callback: WatchCallback) -> None:
        self._store = store
        self._node = node
        self._callback = callback
        self._queues: dict[str, list[tuple[Event, ...]]] = {}  # part of the store -> not seen yet
        self.is_closed = False

    def publish(self, events: tuple[Event, ...]) -> None:
        parts: dict[str, list[Event]] = {}
        for event in events:
            parts.setdefault(event.key.partition("/")[0], []).append(event)
        for part, some in parts.items():
            queue = self._queues.setdefault(part, [])
            queue.append(tuple(some))
            if len(queue) == 1:
                self._store.scheduler.after(self._store.watch_delay(part), self._pump, part)

    def _pump(self, part: str) -> None:
        if self.is_closed:
            return
        store = self._store
        if not store.is_available or store.network.loses(STORE, self._node.name):
            store.scheduler.after(0.05, self._pump, part)
            return
        queue, self._queues[part] = self._queues[part], []
        for events in queue:
            self._node.deliver(self._callback, events)


class SimulatedStore:
    """`call` is for brokers; the other methods are for calls, and for checkers who see everything."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler = scheduler
        self.network = network
        self.space = KeySpace()
        self.is_available = True
        self.lost_answers = 0.0  # of commits that were made
        self.watch_delay_s = 0.0  # at most, and for each watch another
        self.part_delays_s: dict[str, float] = {}  # the same, of watches of one part: "brokers"
        self.listeners: list[Callable[[Event], None]] = []  # told of everything, at once
        self._leases: dict[int, tuple[float, float]] = {}  # id -> ttl, end
        self._last_lease = 0
        self._watchers: list[Watcher] = []

    # -- for brokers ----------------------------------------------------------------------------

    def call(
        self,
        node: Node,
        operation: Callable[[SimulatedStore], T],
        done: Callable[[T | _Unknown], None],
        *,
        loss: float = 0.0,
    ) -> None:
        """Execute `operation` here some time; then `done` with its result, or UNKNOWN, exactly once."""
        answered = False

        def answer(result: T | _Unknown) -> None:
            nonlocal answered
            if not answered:
                answered = True
                done(result)

        def execute() -> None:
            if self.is_available and not self.network.is_cut(STORE, node.name):
                result = operation(self)
                is_lost = loss > 0 and self.network.chance(loss)
                if not is_lost and not self.network.loses(STORE, node.name):
                    self.scheduler.after(self.network.delay(), node.deliver, answer, result)

        if not self.network.loses(node.name, STORE):
            self.scheduler.after(self.network.delay(), execute)
        self.scheduler.after(CALL_TIMEOUT_S, node.deliver, answer, UNKNOWN)

    def watch(self, node: Node, callback: WatchCallback) -> Watcher:
        """Everything that happens from now on."""
        watcher = Watcher(self, node, callback)
        self._watchers.append(watcher)
        return watcher

    def watch_delay(self, part: str) -> float:
        longest = self.watch_delay_s + self.part_delays_s.get(part, 0.0)
        return self.network.delay() + longest * self.network.share()

    # -- executed at one moment -----------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.space.snapshot("")

    def commit(self, transaction: Transaction) -> CommitResult | None:
        """None: it named a lease that has ended."""
        draft = Draft(self.space)
        try:
            result = draft.commit(transaction, self._leases)
        except LeaseLost:
            return None
        self._apply(draft)
        return result

    def grant(self, ttl_s: float) -> int:
        self._last_lease += 1
        self._leases[self._last_lease] = (ttl_s, self.scheduler.now + ttl_s)
        self.scheduler.after(ttl_s, self._expire, self._last_lease)
        return self._last_lease

    def keep_alive(self, lease_id: int) -> bool:
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        self._leases[lease_id] = (lease[0], self.scheduler.now + lease[0])
        self.scheduler.after(lease[0], self._expire, lease_id)
        return True

    def revoke(self, lease_id: int) -> None:
        if self._leases.pop(lease_id, None) is not None:
            draft = Draft(self.space)
            draft.end_lease(lease_id)
            self._apply(draft)

    # -- faults ---------------------------------------------------------------------------------

    def go_down(self) -> None:
        self.is_available = False

    def come_back(self, *, extends_leases: bool) -> None:
        """After an outage leases live on for a full term, as in etcd, or end at once if they are due."""
        self.is_available = True
        for lease_id, (_, end) in tuple(self._leases.items()):
            if extends_leases:
                self.keep_alive(lease_id)
            elif end <= self.scheduler.now:
                self.revoke(lease_id)

    def _expire(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if self.is_available and lease is not None and lease[1] <= self.scheduler.now + 1e-9:
            self.revoke(lease_id)

    def _apply(self, draft: Draft) -> None:
        self._watchers = [watcher for watcher in self._watchers if not watcher.is_closed]
        for events in self.space.apply(draft):
            for event in events:
                for listener in self.listeners:
                    listener(event)
            for watcher in self._watchers:
                watcher.publish(events)

    def value(self, key: str) -> bytes | None:
        entry = self.space.get(key)
        return None if entry is None else entry.value
