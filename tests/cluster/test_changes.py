"""Changes of many partitions at once: by compare-and-swap, worked out anew where somebody was faster."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from penstock.broker.cluster_changes import ClusterChanges
from penstock.cluster import requests
from penstock.cluster.batching import KeyChange
from penstock.cluster.state import (
    PartitionState,
    TopicState,
    broker_key,
    encode_broker,
    encode_partition,
    encode_topic,
    partition_key,
    topic_key,
)
from penstock.cluster.view import ClusterView
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.errors import StoreUnavailable
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    CommitResult,
    Transaction,
)
from penstock.model import TopicPartition
from tests.cluster.desk import registration

COUNT = 300
PARTITIONS = [TopicPartition("t", index) for index in range(COUNT)]
STATE = PartitionState(
    cluster_id="c", replicas=(1, 2), leader=1, leader_incarnation="1.1", isr={1: "1.1", 2: "2.1"}
)


class Disturbed(MemoryStore):
    """A store to which others write just before a commit of ours, or which is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.faster: list[tuple[str, bytes]] = []
        self.is_away = False
        self.transactions: list[Transaction] = []

    async def commit(self, transaction: Transaction) -> CommitResult:
        if self.is_away:
            raise StoreUnavailable("nobody is there")
        while self.faster:
            await super().put(*self.faster.pop())
        self.transactions.append(transaction)
        return await super().commit(transaction)


class Node:
    """What `ClusterChanges` needs of a broker: a view that is told what the store has."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.changes: ClusterChanges | None = None

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        change = self.view.apply(key, value, revision)
        if change is not None and self.changes is not None:
            self.changes.seen(change)


class World:
    def __init__(self) -> None:
        self.store = Disturbed()
        self.node = Node()
        self.changes = ClusterChanges(self.store, self.node)  # type: ignore[arg-type]
        self.node.changes = self.changes

    async def start(self) -> None:
        topic = TopicState(name="t", id=uuid.uuid4(), partition_count=COUNT, replication_factor=2)
        await self.write(topic_key("t"), encode_topic(topic))
        for broker in (1, 2, 3):
            await self.write(broker_key(broker), encode_broker(registration(broker)))
        for partition in PARTITIONS:
            await self.write(partition_key(partition), encode_partition(STATE))
        self.store.transactions.clear()

    async def write(self, key: str, value: bytes) -> None:
        revision = await self.store.put(key, value)
        self.node.apply(key, value, revision)

    def move(self, partition: TopicPartition) -> KeyChange | None:
        return requests.move(self.node.view, partition, (3, 2))

    def state(self, partition: TopicPartition) -> PartitionState:
        return self.node.view.partitions[partition].value


@pytest.fixture
async def world() -> World:
    made = World()
    await made.start()
    return made


async def test_many_partitions_share_transactions(world: World) -> None:
    outcomes = await world.changes.commit_partitions(PARTITIONS, world.move)
    assert set(outcomes.values()) == {None}
    assert len(world.store.transactions) == -(-COUNT // TRANSACTION_OPERATIONS_MAX)
    assert all(world.state(partition).adding == (3,) for partition in PARTITIONS)


async def test_what_somebody_else_changed_is_kept_and_the_change_made_on_top(world: World) -> None:
    shrunk = replace(STATE, isr={1: "1.1"}, partition_epoch=1)
    world.store.faster.append((partition_key(PARTITIONS[5]), encode_partition(shrunk)))
    outcomes = await world.changes.commit_partitions(PARTITIONS, world.move)
    assert set(outcomes.values()) == {None}
    assert list(world.state(PARTITIONS[5]).isr) == [1]
    assert all(world.state(partition).adding == (3,) for partition in PARTITIONS)


async def test_each_partition_has_its_own_outcome(world: World) -> None:
    missing = TopicPartition("t", COUNT)
    outcomes = await world.changes.commit_partitions([PARTITIONS[0], missing], world.move)
    assert outcomes[PARTITIONS[0]] is None
    refused = outcomes[missing]
    assert refused is not None
    assert refused.code is ErrorCode.unknown_topic_or_partition
    again = await world.changes.commit_partitions([PARTITIONS[0]], world.move)
    assert again == {PARTITIONS[0]: None}
    assert len(world.store.transactions) == 1, "it is on its way already"


async def test_a_store_that_does_not_answer_is_the_outcome(world: World) -> None:
    world.store.is_away = True
    outcomes = await world.changes.commit_partitions(PARTITIONS, world.move)
    codes = {None if error is None else error.code for error in outcomes.values()}
    assert codes == {ErrorCode.request_timed_out}


async def test_who_waits_goes_on_with_the_change_waited_for(world: World) -> None:
    def is_moving(_: object) -> bool:
        return world.state(PARTITIONS[0]).is_reassigning

    waiting = asyncio.create_task(world.changes.until(PARTITIONS[0], is_moving, "no move", 20))
    await asyncio.sleep(0)
    await world.changes.commit_partitions([PARTITIONS[1]], world.move)
    assert not waiting.done()
    await world.changes.commit_partitions([PARTITIONS[0]], world.move)
    await waiting


async def test_who_waits_in_vain_is_told(world: World) -> None:
    with pytest.raises(ApiError) as caught:
        await world.changes.until("t", lambda _: True, "nothing happened", 0.01)
    assert caught.value.code is ErrorCode.request_timed_out
    assert "nothing happened within 0.01 s" in caught.value.message
