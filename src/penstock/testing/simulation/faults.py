"""What goes wrong: a seeded stream of faults, each of which ends, and an operator in the middle of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from penstock.cluster import requests
from penstock.errors import ApiError
from penstock.testing.simulation.store import STORE

if TYPE_CHECKING:
    from penstock.testing.simulation.machine import Machine
    from penstock.testing.simulation.process import Process
    from penstock.testing.simulation.world import World

__all__ = ["Faults"]

BETWEEN_S: Final = 0.5  # mean time between two faults


class Faults:
    """Hits the cluster until it is told to stop. Knows what no cluster can survive, and spares it."""

    def __init__(self, world: World, focus: Collection[str] = ()) -> None:
        """`focus`: only these, by name, and twice as many; else each run has its own mix."""
        self._world = world
        self._random = world.random
        self.counts: Counter[str] = Counter()
        self.is_stopped = False
        every: list[tuple[Callable[[], bool], int]] = [
            (self._kill, 4),
            (self._lose_power, 4),
            (self._pause, 4),
            (self._cut_pair, 3),
            (self._isolate, 2),
            (self._cut_from_store, 3),
            (self._store_outage, 1),
            (self._slow_store, 3),
            (self._slow_watch, 3),
            (self._bad_network, 3),
            (self._bad_disk, 1),
            (self._leave, 2),
            (self._reassign, 2),
            (self._prefer, 2),
            (self._flip, 4),
            (self._grow, 1),
        ]
        self._faults = [fault for fault, _ in every]
        # So that rare ones meet often somewhere.
        self._weights = [weight * self._random.choice((0, 1, 1, 4)) for _, weight in every]
        if not focus and self._random.random() < 0.25:
            names = [_name(fault) for fault in self._faults]
            focus = self._random.sample(names, self._random.randint(2, 3))
        self._between_s = BETWEEN_S / 2 if focus else BETWEEN_S
        if focus:
            self._weights = [int(_name(fault) in focus) for fault in self._faults]
            assert sum(self._weights) == len(focus), "a fault of another name"
        elif not any(self._weights):
            self._weights[0] = 1

    def begin(self) -> None:
        self._world.scheduler.after(self._random.expovariate(1 / self._between_s), self._next)

    def _next(self) -> None:
        if self.is_stopped:
            return
        (fault,) = self._random.choices(self._faults, self._weights)
        if fault():
            self.counts[_name(fault)] += 1
        self.begin()

    def heal(self) -> None:
        """Everything works again, for good."""
        self.is_stopped = True
        world = self._world
        world.network.mend_all()
        world.store.lost_answers = world.store.watch_delay_s = 0.0
        world.store.part_delays_s.clear()
        if not world.store.is_available:
            world.store.come_back(extends_leases=True)
        world.open_errors = 0.0
        for machine in world.machines.values():
            machine.resume()
            if machine.process is not None and machine.process.partitions.has_errors():
                machine.kill()
            machine.start()
            world.scheduler.after(2.5, machine.start)  # for who was just about to leave

    # -- machines -------------------------------------------------------------------------------

    def _machine(self) -> Machine:
        return self._random.choice(tuple(self._world.machines.values()))

    def _later(self, low: float, high: float, call: Callable[[], object]) -> None:
        self._world.scheduler.after(self._random.uniform(low, high), call)

    def _kill(self) -> bool:
        machine = self._machine()
        if machine.process is None:
            return False
        machine.kill()
        self._later(0.05, 4, machine.start)
        return True

    def _lose_power(self) -> bool:
        machine = self._machine()
        if machine.process is None or not self._leaves_a_copy(machine):
            return False
        machine.lose_power()
        self._later(0.05, 4, machine.start)
        return True

    def _leaves_a_copy(self, machine: Machine) -> bool:
        """A member of the ISR must be left with its disk. A single one has all of it synced."""
        checker = self._world.checker
        for partition in checker.states:
            for isr in checker.possible_isrs(partition):
                if isr.get(machine.name) != machine.storage_id or len(isr) == 1:
                    continue
                machines = self._world.machines
                if not any(
                    machines[member].storage_id == storage_id and member != machine.name
                    for member, storage_id in isr.items()
                ):
                    return False
        return True

    def _pause(self) -> bool:
        """SIGSTOP, for less or more than the lease."""
        machine = self._machine()
        if machine.process is None or machine.is_paused:
            return False
        machine.pause()
        self._later(0.1, 2.5 * self._world.shape.lease_s, machine.resume)
        return True

    def _leave(self) -> bool:
        """SIGTERM, and a start some time later."""
        machine = self._machine()
        if machine.process is None or machine.is_paused:
            return False
        machine.leave()
        self._later(1.5, 4, machine.start)
        return True

    def _bad_disk(self) -> bool:
        """Logs do not open, and a machine that has some to open."""
        self._world.open_errors = 0.5

        def undo() -> None:
            self._world.open_errors = 0.0

        self._later(0.5, 3, undo)
        return self._kill()

    # -- the network and the store --------------------------------------------------------------

    def _cut_pair(self) -> bool:
        one, other = self._random.sample(sorted(self._world.machines), 2)
        self._world.network.cut(one, other)
        self._later(0.2, 3, lambda: self._world.network.mend(one, other))
        return True

    def _isolate(self) -> bool:
        """From every other broker; clients and the store are still there."""
        alone = self._machine().name
        others = [name for name in self._world.machines if name != alone]
        for other in others:
            self._world.network.cut(alone, other)

        def undo() -> None:
            for other in others:
                self._world.network.mend(alone, other)

        self._later(0.2, 3, undo)
        return True

    def _cut_from_store(self) -> bool:
        name = self._machine().name
        self._world.network.cut(name, STORE)
        self._later(0.2, 3, lambda: self._world.network.mend(name, STORE))
        return True

    def _store_outage(self) -> bool:
        store = self._world.store
        if not store.is_available:
            return False
        store.go_down()
        extends = self._random.random() < 0.5

        def undo() -> None:
            if not store.is_available:
                store.come_back(extends_leases=extends)

        self._later(0.2, 2, undo)
        return True

    def _slow_store(self) -> bool:
        """Commits are made and their answers lost, and the watch tells of it late."""
        store = self._world.store
        store.lost_answers = self._random.choice((0.3, 0.8))
        store.watch_delay_s = self._random.uniform(0.2, 1.2)

        def undo() -> None:
            store.lost_answers = store.watch_delay_s = 0.0

        self._later(0.5, 3, undo)
        return True

    def _slow_watch(self) -> bool:
        """One part of the store is heard of much later than the others."""
        delays = self._world.store.part_delays_s
        part = self._random.choice(("brokers", "partitions", "topics", "controller"))
        delays[part] = self._random.uniform(0.5, 4)
        self._later(0.5, 4, lambda: delays.pop(part, None))
        return True

    def _bad_network(self) -> bool:
        network = self._world.network
        network.drop = self._random.choice((0.0, 0.05, 0.3))
        network.double = self._random.choice((0.0, 0.3))
        network.slow = self._random.choice((0.0, 0.05, 0.3))

        def undo() -> None:
            network.drop = network.double = network.slow = 0.0

        self._later(0.5, 3, undo)
        return True

    # -- the operator ---------------------------------------------------------------------------

    def _controller(self) -> Process | None:
        for machine in self._world.machines.values():
            process = machine.process
            if process is not None and process.controller is not None and not machine.is_paused:
                return process
        return None

    def _anyone(self) -> Process | None:
        """Any broker takes what an operator asks, also one whose view is behind."""
        processes = [
            machine.process
            for machine in self._world.machines.values()
            if machine.process is not None and not machine.is_paused
        ]
        return self._random.choice(processes) if processes else None

    def _reassign(self) -> bool:
        process = self._anyone()
        if process is None or not process.view.partitions:
            return False
        partition = self._random.choice(sorted(process.view.partitions))
        state = process.view.partitions[partition].value
        names = sorted(self._world.machines)
        target = self._random.sample(names, self._world.shape.replication_factor)
        cancels = state.is_reassigning and self._random.random() < 0.3
        try:
            process.request(requests.reassign(process.view, partition, None if cancels else target))
        except ApiError:
            return False
        return True

    def _prefer(self) -> bool:
        process = self._controller()
        if process is None or process.controller is None:
            return False
        process.decided(process.controller.prefer(process.view.partitions))
        return True

    def _flip(self) -> bool:
        """Another one of the same replicas is preferred, and soon leads."""
        process = self._anyone()
        if process is None or not process.view.partitions:
            return False
        partition = self._random.choice(sorted(process.view.partitions))
        state = process.view.partitions[partition].value
        if state.is_reassigning:
            return False
        order = self._random.sample(state.replicas, len(state.replicas))
        try:
            process.request(requests.reassign(process.view, partition, order))
        except ApiError:
            return False
        self._later(0.02, 0.1, self._prefer)
        return True

    def _grow(self) -> bool:
        process = self._anyone()
        if process is None:
            return False
        for name, topic in process.view.topics.items():
            if topic.value.partition_count < 3:
                count = topic.value.partition_count + 1
                process.request(requests.grow_topic(process.view, name, count))
                return True
        return False


def _name(fault: Callable[[], bool]) -> str:
    return fault.__name__.strip("_")
