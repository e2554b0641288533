"""One seed, one run: start, chaos, healing, and the last look."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final

from penstock.cluster import requests
from penstock.cluster.messages import ALL
from penstock.cluster.state import TopicState
from penstock.errors import ApiError
from penstock.model import TopicPartition
from penstock.testing.simulation.checker import Checker, Violation
from penstock.testing.simulation.clients import Consumer, Producer
from penstock.testing.simulation.faults import Faults
from penstock.testing.simulation.machine import Machine
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.store import SimulatedStore
from penstock.testing.simulation.world import Behaviour, Shape, World

__all__ = ["Outcome", "simulate"]

TOPIC: Final = "orders"
START_S: Final = 1.0
CORRECT: Final = Behaviour()


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    seed: int
    violation: str | None
    steps: int
    committed: int
    acknowledged: int
    epochs: int
    faults: Counter[str] = field(default_factory=Counter)


def simulate(seed: int, behaviour: Behaviour = CORRECT, *, focus: Collection[str] = ()) -> Outcome:
    """Run the cluster of this seed. Deterministic: the same arguments give the same run."""
    world = _world(seed, behaviour)
    faults = Faults(world, focus)
    violation = None
    try:
        _run(world, faults)
    except (Violation, AssertionError) as found:
        violation = f"at {world.scheduler.now:.3f} s: {found or repr(found)}"
    checker = world.checker
    return Outcome(
        seed=seed,
        violation=violation,
        steps=world.scheduler.steps,
        committed=sum(map(len, checker.committed.values())),
        acknowledged=sum(map(len, checker.acked.values())),
        epochs=sum(state.leader_epoch for state, _ in checker.states.values()),
        faults=faults.counts,
    )


def _world(seed: int, behaviour: Behaviour) -> World:
    random = Random(seed)
    scheduler = Scheduler()
    network = Network(scheduler, random)
    store = SimulatedStore(scheduler, network)
    checker = Checker()
    world = World(
        random=random,
        shape=Shape.random(random),
        behaviour=behaviour,
        scheduler=scheduler,
        network=network,
        store=store,
        checker=checker,
    )
    checker.world = world
    store.listeners.append(checker.stored)
    for broker in range(1, world.shape.brokers + 1):
        world.machines[broker] = Machine(world, broker)
    return world


def _run(world: World, faults: Faults) -> None:
    shape, scheduler = world.shape, world.scheduler
    for machine in world.machines.values():
        scheduler.after(world.random.uniform(0, 0.1), machine.start)
    _create_topic(world)
    producers = _start_clients(world)
    scheduler.run(START_S)
    faults.begin()
    scheduler.run(START_S + shape.chaos_s)
    faults.heal()
    scheduler.run(scheduler.now + 2)
    for producer in producers:
        producer.is_stopping = True

    def is_settled() -> bool:
        return all(p.is_idle for p in producers) and world.checker.trouble() is None

    scheduler.run(scheduler.now + shape.heal_s, is_settled)
    if not is_settled():
        busy = [p.number for p in producers if not p.is_idle]
        trouble = world.checker.trouble() or f"producers {busy} got no answer"
        raise Violation(f"the cluster did not settle: {trouble}")
    world.checker.final()


def _create_topic(world: World) -> None:
    """Ask everybody, until the topic is there."""
    for machine in world.machines.values():
        process = machine.process
        if process is None:
            continue
        topic = TopicState(
            name=TOPIC,
            id=uuid.UUID(int=1),
            partition_count=world.shape.partitions,
            replication_factor=world.shape.replication_factor,
        )
        try:
            decision = requests.create_topic(process.view, topic)
        except ApiError:
            continue  # brokers are missing, or it is there
        process.request(decision)
    if not world.checker.states:
        world.scheduler.after(0.1, _create_topic, world)


def _start_clients(world: World) -> list[Producer]:
    random, producers = world.random, []
    for number in range(random.randint(2, 4)):
        partition = TopicPartition(TOPIC, random.randrange(world.shape.partitions))
        acks = ALL if number == 0 or random.random() < 0.6 else 1
        pause_s = random.choice((0.005, 0.03, 0.15, 0.6))
        producer = Producer(world, number, partition, acks=acks, pause_s=pause_s)
        world.scheduler.after(random.uniform(0.3, 0.5), producer.send_next)
        producers.append(producer)
    for number in range(world.shape.partitions):
        consumer = Consumer(world, 100 + number, TopicPartition(TOPIC, number))
        world.scheduler.after(random.uniform(0.5, 0.7), consumer.poll)
    return producers
