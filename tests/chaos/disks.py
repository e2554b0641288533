"""What the brokers' disks hold of a topic when all is at rest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from penstock.log.inspect import batches, find_logs
from penstock.log.scan import Damage
from penstock.testing.clusters import ClusterBroker
from tests.chaos.history import Batch

__all__ = ["read_disks"]


def read_disks(brokers: Iterable[ClusterBroker], topic: str) -> dict[int, dict[int, list[Batch]]]:
    """By partition and broker, every batch. Of brokers that have stopped."""
    found: dict[int, dict[int, list[Batch]]] = {}
    for broker in brokers:
        for partition, directory in find_logs(broker.data_dir):
            if partition.topic == topic:
                held = found.setdefault(partition.partition, {})
                held[broker.id] = list(_batches(directory))
    return found


def _batches(directory: str) -> Iterator[Batch]:
    for path, item in batches(directory):
        if isinstance(item, Damage):
            raise AssertionError(f"{path} is damaged at byte {item.position}: {item.reason}")
        header = item.header
        with open(path, "rb") as file:
            data = os.pread(file.fileno(), header.size_bytes, item.position)
        yield Batch(header.base_offset, header.last_offset + 1, header.leader_epoch, data)
