"""A network that delays, reorders, drops and doubles messages, and falls apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import Any, Protocol

from penstock.testing.simulation.scheduler import Scheduler

__all__ = ["Network", "Node"]


class Node(Protocol):
    """Whoever can be sent a message. `deliver` drops it if the node is down."""

    @property
    def name(self) -> Hashable: ...

    def deliver(self, call: Callable[..., None], *args: Any) -> None: ...


class Network:
    """A message is a call on the receiver. Links are cut by name, in both directions."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self._scheduler = scheduler
        self._random = random
        self._cut: set[frozenset[Hashable]] = set()
        self.drop = 0.0  # of messages
        self.double = 0.0
        self.slow = 0.0  # take a second rather than milliseconds

    def cut(self, one: Hashable, other: Hashable) -> None:
        self._cut.add(frozenset((one, other)))

    def mend(self, one: Hashable, other: Hashable) -> None:
        self._cut.discard(frozenset((one, other)))

    def mend_all(self) -> None:
        self._cut.clear()
        self.drop = self.double = self.slow = 0.0

    def is_cut(self, one: Hashable, other: Hashable) -> bool:
        return bool(self._cut) and frozenset((one, other)) in self._cut

    def delay(self) -> float:
        if self.slow and self.chance(self.slow):
            return self._random.uniform(0.1, 2.5)
        return self._random.uniform(0.0005, 0.008)

    def share(self) -> float:
        return self._random.random()

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def loses(self, one: Hashable, other: Hashable) -> bool:
        if self.is_cut(one, other):
            return True
        return self.drop > 0 and self.chance(self.drop)

    def send(self, sender: Hashable, receiver: Node, call: Callable[..., None], *args: Any) -> None:
        if self.loses(sender, receiver.name):
            return
        self._scheduler.after(self.delay(), self._arrive, sender, receiver, call, args)
        if self.double and self.chance(self.double):
            self._scheduler.after(self.delay(), self._arrive, sender, receiver, call, args)

    def _arrive(
        self, sender: Hashable, receiver: Node, call: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if not self.is_cut(sender, receiver.name):
            receiver.deliver(call, *args)
