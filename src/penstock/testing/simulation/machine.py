"""A machine that a broker runs on: its disk outlives the process, its clock is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.model import TopicPartition
from penstock.testing.simulation.disk import Stored
from penstock.testing.simulation.process import Process
from penstock.testing.simulation.world import CLOCK_DRIFT, World

__all__ = ["Machine"]


class Machine:
    """Runs at most one process. Messages reach whichever runs, those for an earlier one too."""

    def __init__(self, world: World, broker: int) -> None:
        self.world = world
        self.name = broker
        self.disk: dict[TopicPartition, Stored] = {}
        self.disk_number = 1  # another one after a power cut
        self.starts = 0
        self.registrations = 0
        self.process: Process | None = None
        self.is_paused = False
        self._rate = 1 + world.random.uniform(-CLOCK_DRIFT, CLOCK_DRIFT)
        self._offset = world.random.uniform(10, 1000)

    @property
    def storage_id(self) -> str:
        return f"disk {self.name}.{self.disk_number}"

    def clock(self) -> float:
        return self._offset + self.world.scheduler.now * self._rate

    def real_seconds(self, by_our_clock: float) -> float:
        return by_our_clock / self._rate

    # -- what happens to it ---------------------------------------------------------------------

    def start(self) -> None:
        if self.process is None:
            self.starts += 1
            self.process = Process(self)
            self.process.register()

    def kill(self) -> None:
        """`kill -9`: the system keeps what was written."""
        if self.process is not None:
            self.process.die()
            self.process = None
            self.is_paused = False
            for stored in self.disk.values():
                stored.log.reopen()

    def lose_power(self) -> None:
        self.kill()
        self.disk_number += 1
        for stored in self.disk.values():
            stored.log.lose_power(self.world.random)

    def pause(self) -> None:
        self.is_paused = self.process is not None

    def resume(self) -> None:
        self.is_paused = False
        if self.process is not None:
            self.process.wake()

    def leave(self) -> None:
        """SIGTERM: leaderships are handed over first."""
        if self.process is not None and not self.is_paused:
            self.process.leave()

    # -- messages -------------------------------------------------------------------------------

    def deliver(self, call: Callable[..., None], *args: Any) -> None:
        """`call` is a method of `Process`, unbound: it reaches the one that runs now."""
        if self.process is not None:
            self.process.deliver(call, self.process, *args)
