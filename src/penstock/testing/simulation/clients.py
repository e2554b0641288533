"""Producers and consumers that retry, as clients do, and an operator who changes things."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.cluster.messages import ALL
from penstock.errors import ErrorCode
from penstock.model import TopicPartition
from penstock.testing.simulation.disk import Record

if TYPE_CHECKING:
    from penstock.testing.simulation.process import Process
    from penstock.testing.simulation.world import World

__all__ = ["Consumer", "Producer"]

RETRY_S: Final = 0.05
TIMEOUT_S: Final = 0.8


class _Client:
    """Knows the leader from whichever broker it asked last; that may be old news."""

    def __init__(self, world: World, number: int, partition: TopicPartition) -> None:
        self.world = world
        self.number = number
        self.name = f"client {number}"
        self.partition = partition

    def deliver(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)

    def leader(self) -> int | None:
        machine = self.world.random.choice(tuple(self.world.machines.values()))
        if machine.process is None or machine.is_paused:
            return None
        stored = machine.process.view.partitions.get(self.partition)
        return None if stored is None else stored.value.leader


class Producer(_Client):
    """Sends one record after the other. With acks=all it is idempotent and never gives up on one."""

    def __init__(
        self, world: World, number: int, partition: TopicPartition, *, acks: int, pause_s: float
    ) -> None:
        super().__init__(world, number, partition)
        self.acks = acks
        self.sequence = 0  # of the record that is under way
        self.is_stopping = False
        self.is_idle = True
        self._pause_s = pause_s
        self._attempt = 0

    def send_next(self) -> None:
        if not self.is_stopping:
            self.is_idle = False
            self._try()

    def _try(self) -> None:
        self._attempt += 1
        leader = self.leader()
        if leader is not None:
            self.world.network.send(
                self.name, self.world.machines[leader], _produce,
                self, self.partition, self.sequence, self.acks,
            )  # fmt: skip
        wait_s = TIMEOUT_S if leader is not None else RETRY_S
        self.world.scheduler.after(wait_s, self._timed_out, self._attempt)

    def _timed_out(self, attempt: int) -> None:
        if attempt == self._attempt and not self.is_idle:
            self._retry()

    def _retry(self) -> None:
        if self.acks == ALL:
            self._try()
        else:
            self._done()

    def answered(self, sequence: int, error: ErrorCode | None) -> None:
        if sequence != self.sequence or self.is_idle:
            return
        if error is None:
            if self.acks == ALL:
                self.world.checker.told(self.partition, self.number, sequence)
            self._done()
        else:
            self._attempt += 1  # the time that runs for this one no longer counts
            self.world.scheduler.after(RETRY_S, self._retry_if, sequence, self._attempt)

    def _retry_if(self, sequence: int, attempt: int) -> None:
        if sequence == self.sequence and attempt == self._attempt and not self.is_idle:
            self._retry()

    def _done(self) -> None:
        self.is_idle = True
        self._attempt += 1
        self.sequence += 1
        pause_s = self.world.random.expovariate(1 / self._pause_s)
        self.world.scheduler.after(pause_s, self.send_next)


class Consumer(_Client):
    """Reads from the beginning on. What it has read must stay."""

    def __init__(self, world: World, number: int, partition: TopicPartition) -> None:
        super().__init__(world, number, partition)
        self.position = 0

    def poll(self) -> None:
        leader = self.leader()
        if leader is not None:
            machine = self.world.machines[leader]
            self.world.network.send(self.name, machine, _read, self, self.partition, self.position)
        self.world.scheduler.after(self.world.random.uniform(0.05, 0.2), self.poll)

    def fetched(self, offset: int, records: tuple[Record, ...]) -> None:
        if offset == self.position:
            self.position += len(records)

    def refused(self) -> None:
        """Asked the wrong broker; the next poll asks another."""


def _produce(
    process: Process, producer: Producer, partition: TopicPartition, sequence: int, acks: int
) -> None:
    process.partitions.produce(producer, partition, sequence, acks)


def _read(process: Process, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
    process.partitions.read(consumer, partition, offset)
