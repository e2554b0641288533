"""A log that a power cut may have hurt is scanned, in a thread: meanwhile its broker and topics go on."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.state import (
    TopicState,
    encode_topic,
    partition_cluster_id,
    partition_key,
    topic_key,
)
from penstock.log import PartitionLog
from penstock.log.ownership import note_replica
from penstock.model import TopicPartition
from tests.cluster.wired import TIMEOUT_S, TOPIC, Member, Stage, led_by, until

ORDERS = TopicPartition(TOPIC, 0)


class Scan:
    """Logs take as long to open as the test wants."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> PartitionLog:
        self.has_begun.set()
        assert self.may_end.wait(TIMEOUT_S), "the event loop stands still"
        return PartitionLog(*arguments, **options)


@pytest.fixture
async def leader(stage: Stage) -> Member:
    return await stage.add(1)


@pytest.fixture
async def scan(
    stage: Stage, leader: Member, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scan]:
    """Of a log that is found on a disk of which nothing is known."""
    assert leader.logs.storage_id
    directory_of(leader).mkdir(parents=True)
    note_replica(str(directory_of(leader)), partition_cluster_id(stage.topic_id, 0))
    scan = Scan()
    monkeypatch.setattr("penstock.log.store.PartitionLog", scan)
    write_topic(stage, leader)
    await until(scan.has_begun.is_set, "it is being opened")
    yield scan
    scan.may_end.set()


def directory_of(leader: Member) -> Path:
    return Path(leader.logs.data_dir) / TOPIC / "0"


def write_topic(stage: Stage, leader: Member) -> None:
    topic = TopicState(name=TOPIC, id=stage.topic_id, partition_count=1)
    stage.write(topic_key(TOPIC), encode_topic(topic))
    stage.write_partition(ORDERS, led_by(leader, stage.topic_id))


async def test_a_broker_goes_on_while_a_log_is_scanned(leader: Member, scan: Scan) -> None:
    assert ORDERS not in leader.replicas.opened
    scan.may_end.set()
    await until(lambda: ORDERS in leader.replicas.opened, "it is open")
    assert leader.replicas.opened[ORDERS] is None
    assert leader.replicas.get(ORDERS) is not None


async def test_a_partition_that_goes_meanwhile_leaves_nothing(
    stage: Stage, leader: Member, scan: Scan
) -> None:
    stage.write(partition_key(ORDERS), None)
    assert directory_of(leader).exists()
    scan.may_end.set()
    await until(lambda: not directory_of(leader).exists(), "it is gone")
    assert leader.replicas.get(ORDERS) is None
    assert ORDERS not in leader.replicas.opened


async def test_a_topic_made_anew_meanwhile_gets_a_log_of_its_own(
    stage: Stage, leader: Member, scan: Scan
) -> None:
    stage.topic_id = uuid.uuid4()
    write_topic(stage, leader)
    scan.may_end.set()
    await until(lambda: leader.replicas.get(ORDERS) is not None, "it is open")
    assert leader.hosted().cluster_id == stage.state().cluster_id
    assert leader.logs.has_replica(ORDERS, stage.state().cluster_id)
