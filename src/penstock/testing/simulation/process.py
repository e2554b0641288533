"""A broker's process: performs what the state machines decide, as the real driver will.

Membership and metadata are here; partitions are in `Partitions`. Everything that reaches the process
goes through `deliver`, which loses it when the process is dead and keeps it while it is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.cluster.controller import BrokerReport, Controller, ControllerSettings, Decision
from penstock.cluster.state import (
    CONTROLLER,
    BrokerRegistration,
    ControllerClaim,
    broker_key,
    encode_broker,
    encode_controller,
)
from penstock.cluster.view import BrokerChanged, ClusterView, PartitionChanged
from penstock.metadata.store import (
    CommitResult,
    Committed,
    Compare,
    Event,
    Put,
    Rejected,
    Snapshot,
    Transaction,
)
from penstock.metadata.watching import apply_refused
from penstock.testing.simulation.partitions import Partitions
from penstock.testing.simulation.store import SimulatedStore, Watcher

if TYPE_CHECKING:
    from penstock.testing.simulation.machine import Machine

__all__ = ["Process"]

TICK_S: Final = 0.1
REPORT_S: Final = 0.25


class Process:
    """One life of a broker, from its start to its end."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.name = machine.name
        self.is_dead = False
        self.view = ClusterView()
        self.term = self.world.behaviour.term(id=machine.name, storage_id=machine.storage_id)
        self.partitions = Partitions(self)
        self.controller: Controller | None = None
        self._registration: BrokerRegistration | None = None
        self._lease: int | None = None
        self._watcher: Watcher | None = None
        self._has_begun = False
        self._is_claiming = False
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # while paused

    # -- being a process ------------------------------------------------------------------------

    def deliver(self, call: Callable[..., None], *args: Any) -> None:
        if self.is_dead:
            return
        if self.machine.is_paused:
            self._inbox.append((call, args))
        else:
            call(*args)

    def wake(self) -> None:
        inbox, self._inbox = self._inbox, []
        for call, args in inbox:
            self.deliver(call, *args)

    def die(self) -> None:
        self.is_dead = True
        if self._watcher is not None:
            self._watcher.is_closed = True

    def now(self) -> float:
        return self.machine.clock()

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """By our own clock."""
        self.world.scheduler.after(self.machine.real_seconds(seconds), self.deliver, call, *args)

    def commit(self, transaction: Transaction, done: Callable[[Any], None]) -> None:
        store = self.world.store
        store.call(self, lambda store: store.commit(transaction), done, loss=store.lost_answers)

    # -- membership -----------------------------------------------------------------------------

    def register(self) -> None:
        """Take a lease and write our key under it, if it is free. Also after a lease was lost."""
        self.machine.registrations += 1
        registration = BrokerRegistration(
            id=self.name,
            host="simulated",
            port=9092,
            incarnation=f"{self.name}.{self.machine.registrations}",
            storage_id=self.machine.storage_id,
        )
        key = broker_key(self.name)
        ttl_s = self.world.shape.lease_s
        sent_at = self.now()

        def operation(store: SimulatedStore) -> tuple[int, Snapshot] | None:
            if self._watcher is None:
                self._watcher = store.watch(self, self._watched)
            lease = store.grant(ttl_s)
            result = store.commit(
                Transaction(
                    compares=(Compare(key=key, mod_revision=0),),
                    puts=(Put(key=key, value=encode_broker(registration), lease_id=lease),),
                )
            )
            if not isinstance(result, Committed):
                store.revoke(lease)
                return None
            return lease, store.snapshot()

        def done(result: Any) -> None:
            if not isinstance(result, tuple):
                self.after(0.1, self.register)  # taken by our own past, or not known: it will end
                return
            self._registered(registration, sent_at, *result)

        self.world.store.call(self, operation, done)

    def _registered(
        self, registration: BrokerRegistration, sent_at: float, lease: int, snapshot: Snapshot
    ) -> None:
        self._registration, self._lease = registration, lease
        self.term.begin(registration.incarnation, sent_at, self.world.shape.lease_s)
        if not self._has_begun:  # else the watches go on
            self._has_begun = True
            for entry in snapshot.entries:
                self.apply(entry.key, entry.value, entry.mod_revision)
            self.after(TICK_S, self._tick)
            self.after(REPORT_S, self._report)
        self.partitions.registered_anew()
        self._claim()
        self.after(self.world.shape.lease_s / 3, self._keep_alive, lease)

    def _keep_alive(self, lease: int) -> None:
        if lease != self._lease:
            return
        sent_at = self.now()

        def done(result: Any) -> None:
            if lease != self._lease:
                return
            if result is False:
                self.term.end()
                self._lease = self._registration = self.controller = None
                self.register()
                return
            if result is True:
                self.term.lease_renewed(sent_at, self.world.shape.lease_s)
                self.partitions.lease_renewed()
            self.after(self.world.shape.lease_s / 4, self._keep_alive, lease)

        self.world.store.call(self, lambda store: store.keep_alive(lease), done)

    def leave(self) -> None:
        """Say that we leave, wait until we lead nothing or too long, then end the lease and stop."""
        if self._registration is None:
            return
        leaving = replace(self._registration, is_leaving=True)
        put = Put(key=broker_key(self.name), value=encode_broker(leaving), lease_id=self._lease)
        self.commit(Transaction(puts=(put,)), lambda _: self._leave_if_idle(10))

    def _leave_if_idle(self, patience: int) -> None:
        if patience and self.partitions.leads_any():
            self.after(0.1, self._leave_if_idle, patience - 1)
            return
        lease, store = self._lease, self.world.store
        if lease is not None:
            self.term.end()
            store.call(self, lambda store: store.revoke(lease), lambda _: None)
        self.after(0.05, self.machine.kill)

    # -- metadata -------------------------------------------------------------------------------

    def _watched(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self.apply(event.key, event.value, event.mod_revision)
        if self.controller is not None:
            self.decided(self.controller.decide())

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        change = self.view.apply(key, value, revision)
        if change is None:
            return
        if isinstance(change, PartitionChanged):
            self.partitions.changed(change.partition, revision)
        elif isinstance(change, BrokerChanged):
            self.partitions.brokers_changed()
        if self.controller is not None:
            self.controller.changed(change, self.now())
        if key == CONTROLLER:
            self._claim_changed()

    def _claim_changed(self) -> None:
        """The controller is who the store says, also if the answer to its claim was lost."""
        revision = self.view.claim_revision(self.term.incarnation)
        if revision is None:
            self.controller = None
            if self.view.controller is None:
                self.after(self.world.random.uniform(0.0, 0.05), self._claim)
        elif self.controller is None:
            self.controller = self.world.behaviour.controller(
                self.view,
                revision,
                ControllerSettings(replace_after_s=3.0, preferred_every_s=2.0),
                self.now(),
            )
            self.decided(self.controller.take_over(self.now()))

    def _claim(self) -> None:
        if self.view.controller is not None or self._lease is None or self._is_claiming:
            return
        self._is_claiming = True
        claim = ControllerClaim(broker=self.name, incarnation=self.term.incarnation)
        put = Put(key=CONTROLLER, value=encode_controller(claim), lease_id=self._lease)
        compare = Compare(key=CONTROLLER, mod_revision=0)

        def done(result: CommitResult | Any) -> None:
            self._is_claiming = False
            if isinstance(result, Committed):
                self.apply(CONTROLLER, put.value, result.revision)
            elif self.view.controller is None:
                self.after(0.2, self._claim)

        self.commit(Transaction(compares=(compare,), puts=(put,)), done)

    # -- controlling ----------------------------------------------------------------------------

    def request(self, decision: Decision) -> None:
        """Of an operator, decided on our view."""
        self.decided([decision])

    def decided(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._commit_decision(decision)

    def _commit_decision(self, decision: Decision) -> None:
        controller = self.controller

        def done(result: CommitResult | Any) -> None:
            if controller is None or self.controller is not controller:
                return
            if isinstance(result, Committed):
                for put in decision.transaction.puts:
                    self.apply(put.key, put.value, result.revision)
                self.decided(controller.committed(decision, result.revision, self.now()))
            elif isinstance(result, Rejected):
                apply_refused(self.apply, result)
                self.decided(controller.rejected(decision, result, self.now()))
            else:
                controller.unknown(decision)

        self.commit(decision.transaction, done)

    def on_report(self, report: BrokerReport) -> None:
        if self.controller is not None:
            self.decided(self.controller.report(report))

    # -- time -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.partitions.tick()
        if self.controller is not None:
            self.decided(self.controller.tick(self.now()))
        self.after(TICK_S, self._tick)

    def _report(self) -> None:
        self.after(REPORT_S, self._report)
        claim = self.view.controller
        machine = self.world.machines.get(claim.value.broker) if claim is not None else None
        if machine is not None and self._registration is not None:
            report = self.partitions.report()
            self.world.network.send(self.name, machine, Process.on_report, report)
