"""What a run is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from penstock.cluster.controller import Controller
from penstock.cluster.local import BrokerTerm, ReplicaSettings
from penstock.cluster.replica import Replica
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.store import SimulatedStore

if TYPE_CHECKING:
    from penstock.testing.simulation.checker import Checker
    from penstock.testing.simulation.machine import Machine

__all__ = ["Behaviour", "Shape", "World"]

CLOCK_DRIFT = 0.04  # clocks run this much too fast or too slow; brokers allow for a little more


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The state machines that brokers run; a mutant replaces one of them."""

    replica: type[Replica] = Replica
    controller: type[Controller] = Controller
    term: type[BrokerTerm] = BrokerTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of the cluster and its settings, in seconds of virtual time."""

    brokers: int
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    lease_s: float = 1.0
    lag_time_s: float = 0.8
    lag_records_max: int | None = None
    chaos_s: float = 10.0
    heal_s: float = 12.0

    @classmethod
    def random(cls, random: Random) -> Shape:
        brokers = random.choice((3, 3, 3, 4, 5))
        replication_factor = random.choice((1, 2, 3, 3, 3))
        return cls(
            brokers=brokers,
            partitions=random.choice((1, 1, 2)),
            replication_factor=replication_factor,
            min_insync_replicas=random.choice(
                (1, max(1, replication_factor - 1), replication_factor)
            ),
            lag_records_max=random.choice((None, None, 20)),
        )

    @property
    def replica_settings(self) -> ReplicaSettings:
        return ReplicaSettings(
            min_insync_replicas=self.min_insync_replicas,
            lag_time_s_max=self.lag_time_s,
            lag_records_max=self.lag_records_max,
            produce_wait_s_max=0.6,
        )


@dataclass(slots=True, eq=False)
class World:
    """Everything of one run. Nothing in it looks at real time or at another source of chance."""

    random: Random
    shape: Shape
    behaviour: Behaviour
    scheduler: Scheduler
    network: Network
    store: SimulatedStore
    checker: Checker
    machines: dict[int, Machine] = field(default_factory=dict)
    open_errors: float = 0.0  # of logs that are opened
