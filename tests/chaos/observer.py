"""Asks every broker, all the time, who leads what in which epoch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Final

from penstock.client.errors import ClientError
from penstock.processes.inquiry import PartitionKnown
from penstock.testing.clusters import TestCluster
from tests.chaos.history import Told

__all__ = ["Observer"]

_EVERY_S: Final = 0.2


class Observer:
    """A thread that notes what metadata says of one topic."""

    def __init__(self, cluster: TestCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._told: dict[Told, None] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def told(self) -> list[Told]:
        """Each thing once, in the order in which it was heard first."""
        return list(self._told)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            for broker in self._cluster.brokers:
                if broker.responsive:
                    # A process may end between the two.
                    with contextlib.suppress(ClientError, OSError, AssertionError):
                        self._note(broker.id, broker.known().partitions)

    def _note(self, by: int, partitions: Iterable[PartitionKnown]) -> None:
        for known in partitions:
            if known.topic == self._topic and known.is_led:
                self._told[Told(known.partition, known.leader_epoch, known.leader, by)] = None
