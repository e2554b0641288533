"""Does to a real cluster what a plan says, and undoes it in time."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Callable

from penstock.client.errors import ClientError
from penstock.testing.clusters import ClusterBroker, TestCluster
from tests.chaos.faults import Fault, Planned, Round
from tests.chaos.operating import Operator

__all__ = ["Injector"]

Say = Callable[[str], None]


class Injector:
    """Performs one round after the other. Not thread-safe."""

    def __init__(self, cluster: TestCluster, operator: Operator, say: Say) -> None:
        self._cluster = cluster
        self._operator = operator
        self._say = say
        self._cuts: dict[int, Callable[[], None]] = {}  # those in force, to be made again
        self._numbers = itertools.count()

    def perform(self, round_: Round) -> None:
        """Begin and end every fault when its time has come. Returns when all are over."""
        began_s = time.monotonic()
        agenda = [(p.at_s, next(self._numbers), self._beginning(p)) for p in round_.faults]
        heapq.heapify(agenda)
        while agenda:
            at_s, _, action = heapq.heappop(agenda)
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            ending = action()
            if ending is not None:
                for_s, undo = ending
                due_s = time.monotonic() - began_s + for_s
                heapq.heappush(agenda, (due_s, next(self._numbers), _last(undo)))

    def end_all(self) -> None:
        """Undo whatever is still done, after an error perhaps."""
        self._cuts.clear()
        self._cluster.heal()
        self._cluster.etcd.heal()
        for broker in self._cluster.brokers:
            if not broker.running:
                broker.start(wait=False)
            elif not broker.responsive:
                broker.resume()
        for broker in self._cluster.brokers:
            broker.wait_ready()

    # -- beginnings -----------------------------------------------------------------------------

    def _beginning(self, planned: Planned) -> Callable[[], tuple[float, Callable[[], None]] | None]:
        def begin() -> tuple[float, Callable[[], None]] | None:
            undo = self._begin(planned)
            return None if undo is None else (planned.for_s, undo)

        return begin

    def _begin(self, planned: Planned) -> Callable[[], None] | None:
        match planned.fault:
            case Fault.ETCD_STOP | Fault.ETCD_PAUSE:
                return self._hurt_etcd(planned)
            case Fault.ELECT | Fault.REASSIGN:
                self._operate(planned)
                return None
        victim = self._victim(planned)
        if victim is None or not victim.responsive:
            self._say(f"left out: {planned.fault.value} of {planned.victim}, which is away")
            return None
        self._say(f"{planned.fault.value}: {_named(planned, victim)} for {planned.for_s:.1f} s")
        match planned.fault:
            case Fault.KILL:
                return self._kill(victim)
            case Fault.RESTART:
                return self._restart(victim)
            case Fault.PAUSE | Fault.HICCUP:
                return self._pause(victim)
            case _:
                return self._cut(planned, victim)

    def _victim(self, planned: Planned) -> ClusterBroker | None:
        """Who it is now; None if nobody is."""
        if planned.leader_of is None and not planned.controller:
            return self._cluster.brokers[planned.broker]
        with contextlib.suppress(TimeoutError):
            if planned.leader_of is not None:
                return self._cluster.leader_of(
                    self._operator.topic, planned.leader_of, timeout_s=1.0
                )
            return self._cluster.controller(timeout_s=1.0)
        return None

    def _kill(self, victim: ClusterBroker) -> Callable[[], None]:
        victim.kill()
        return lambda: self._start(victim)

    def _restart(self, victim: ClusterBroker) -> Callable[[], None] | None:
        if self._cuts or not all(member.running for member in self._cluster.etcd.members):
            self._say("left out: it would not find anybody to hand over to")
            return None
        victim.terminate()
        return lambda: self._start(victim)

    def _start(self, victim: ClusterBroker) -> None:
        self._say(f"start: broker {victim.id}")
        victim.start(wait=False)

    def _pause(self, victim: ClusterBroker) -> Callable[[], None]:
        victim.pause()

        def resume() -> None:
            if victim.running and not victim.responsive:
                self._say(f"SIGCONT: broker {victim.id}")
                victim.resume()

        return resume

    def _cut(self, planned: Planned, victim: ClusterBroker) -> Callable[[], None]:
        number, cluster, reset = next(self._numbers), self._cluster, planned.reset
        other = (victim.id + planned.other) % len(cluster.brokers)
        cuts: dict[Fault, Callable[[], None]] = {
            Fault.ISOLATE: lambda: cluster.isolate(victim, reset=reset),
            Fault.ISOLATE_ALL: lambda: cluster.isolate(victim, clients=True, reset=reset),
            Fault.ISOLATE_FROM_ETCD: lambda: cluster.isolate_from_etcd(victim, reset=reset),
            Fault.CUT: lambda: cluster.cut(victim, other, reset=reset),
        }
        cut = self._cuts[number] = cuts[planned.fault]
        cut()

        def heal() -> None:
            self._say(f"heal: {planned.fault.value}, broker {victim.id}")
            self._cuts.pop(number, None)
            cluster.heal()
            for still in self._cuts.values():
                still()

        return heal

    def _hurt_etcd(self, planned: Planned) -> Callable[[], None]:
        self._say(f"{planned.fault.value} for {planned.for_s:.1f} s")
        for member in self._cluster.etcd.members:
            if planned.fault is Fault.ETCD_STOP:
                member.stop()
            else:
                member.pause()

        def heal() -> None:
            self._say("etcd is back")
            self._cluster.etcd.heal()

        return heal

    def _operate(self, planned: Planned) -> None:
        chance = random.Random(planned.seed)
        try:
            if planned.fault is Fault.ELECT:
                done = self._operator.elect_preferred()
            else:
                done = self._operator.reassign(chance)
        except (ClientError, TimeoutError) as error:
            done = f"refused: {error}"  # whoever is asked may be the one who is hurt
        self._say(f"{planned.fault.value}: {done}")


def _named(planned: Planned, victim: ClusterBroker) -> str:
    return planned.victim if victim.id == planned.broker and not planned.controller and (
        planned.leader_of is None
    ) else f"{planned.victim}, broker {victim.id}"  # fmt: skip


def _last(undo: Callable[[], None]) -> Callable[[], None]:
    return undo
