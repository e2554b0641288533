"""What is done to a cluster, when and to whom: a plan made from a seed alone, in rounds.

    round 1  |--kill broker 2------|
                  |--pause the leader of 0--|
                                             calm: everything works again, or the run has failed
    round 2  ...

A plan names its victims by role where that makes it sharper ("the leader of partition 3"); who that is
turns out when it happens. One broker's process at most is away at a time, so that what was promised can
be kept; pauses and cuts overlap with everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["Fault", "Planned", "Round", "plan"]


class Fault(Enum):
    """What may happen. The words are shown as the plan goes by."""

    KILL = "kill -9"
    RESTART = "SIGTERM and start"
    PAUSE = "SIGSTOP past the lease"
    HICCUP = "SIGSTOP within the lease"
    ISOLATE = "cut off from brokers and etcd"
    ISOLATE_ALL = "cut off from brokers, etcd and clients"
    ISOLATE_FROM_ETCD = "cut off from etcd"
    CUT = "cut off from one other broker"
    ETCD_STOP = "etcd stopped"
    ETCD_PAUSE = "etcd hangs"
    ELECT = "an operator elects preferred leaders"
    REASSIGN = "an operator moves replicas"


_WEIGHTS: Final = {
    Fault.KILL: 5,
    Fault.RESTART: 3,
    Fault.PAUSE: 5,
    Fault.HICCUP: 1,
    Fault.ISOLATE: 4,
    Fault.ISOLATE_ALL: 2,
    Fault.ISOLATE_FROM_ETCD: 3,
    Fault.CUT: 3,
    Fault.ETCD_STOP: 2,
    Fault.ETCD_PAUSE: 2,
    Fault.ELECT: 2,
    Fault.REASSIGN: 2,
}
_AT_ONCE: Final = {Fault.ELECT, Fault.REASSIGN}  # done when begun
_ONE_AT_A_TIME: Final = {Fault.KILL, Fault.RESTART}
_OF_ETCD: Final = {Fault.ETCD_STOP, Fault.ETCD_PAUSE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault. The victim: the leader of a partition, the controller, or a broker by its id."""

    fault: Fault
    at_s: float  # from the round's beginning
    for_s: float  # 0: it is over at once
    leader_of: int | None = None
    controller: bool = False
    broker: int = 0  # if none of the two
    other: int = 0  # by how much the other broker's id is larger, for those that need one
    reset: bool = False  # connections break when they are cut; else bytes wait
    seed: int = 0  # for whatever else is to be decided

    @property
    def victim(self) -> str:
        if self.fault in _OF_ETCD or self.fault in _AT_ONCE:
            return ""
        if self.leader_of is not None:
            return f"the leader of partition {self.leader_of}"
        return "the controller" if self.controller else f"broker {self.broker}"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that may overlap. All are over at its end."""

    faults: tuple[Planned, ...]


def plan(seed: int, *, brokers: int, partitions: int, lease_s: float) -> Iterator[Round]:
    """Rounds without end, the same for the same arguments."""
    chance = random.Random(seed)
    while True:
        yield _round(chance, brokers, partitions, lease_s)


def _round(chance: random.Random, brokers: int, partitions: int, lease_s: float) -> Round:
    faults: list[Planned] = []
    for _ in range(chance.choice((1, 2, 3, 3, 4))):
        allowed = dict(_WEIGHTS)
        taken = {planned.fault for planned in faults}
        for exclusive in (_ONE_AT_A_TIME, _OF_ETCD):
            if taken & exclusive:
                for fault in exclusive:
                    del allowed[fault]
        faults.append(_fault(chance, allowed, brokers, partitions, lease_s))
    return Round(tuple(sorted(faults, key=lambda planned: planned.at_s)))


def _fault(
    chance: random.Random,
    allowed: dict[Fault, int],
    brokers: int,
    partitions: int,
    lease_s: float,
) -> Planned:
    fault = chance.choices(list(allowed), list(allowed.values()))[0]
    role = chance.choice(("leader", "leader", "controller", "any"))
    for_s = chance.uniform(0.5, 2 * lease_s + 2)
    if fault is Fault.PAUSE:
        for_s = lease_s + chance.uniform(0.5, 3)
    elif fault is Fault.HICCUP:
        for_s = lease_s * chance.uniform(0.1, 0.9)
    elif fault in _AT_ONCE:
        for_s = 0
    return Planned(
        fault=fault,
        at_s=chance.uniform(0, 3),
        for_s=for_s,
        leader_of=chance.randrange(partitions) if role == "leader" else None,
        controller=role == "controller",
        broker=chance.randrange(brokers),
        other=chance.randrange(1, brokers),
        reset=chance.random() < 0.5,
        seed=chance.randrange(2**32),
    )
