"""A partition on a few brokers, by hand: the store, the network and time only move when told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from penstock.cluster.local import BrokerTerm, LocalReplica, ReplicaSettings
from penstock.cluster.messages import (
    ALL,
    AnswerProduce,
    AppendFetched,
    BeginEpoch,
    DropReplica,
    Effect,
    ProposeIsr,
    RefreshMetadata,
    ReplicaFetch,
    ReplicaFetched,
    RoleChanged,
    SyncLog,
    Truncate,
)
from penstock.cluster.replica import Replica
from penstock.cluster.state import BrokerRegistration, PartitionState
from penstock.errors import ErrorCode
from penstock.model import TopicPartition
from penstock.testing.simulation.disk import Record, SimulatedLog
from tests.cluster.wired import Stage

ORDERS = TopicPartition("orders", 0)
_values = count()


def registration(broker: int, start: int = 1, disk: int = 1, **more: object) -> BrokerRegistration:
    return replace(
        BrokerRegistration(
            id=broker,
            host="h",
            port=9092,
            incarnation=f"{broker}.{start}",
            storage_id=f"disk {broker}.{disk}",
        ),
        **more,  # type: ignore[arg-type]
    )


class Node:
    """One broker's replica. Effects are kept; `perform` does what touches the log."""

    def __init__(self, broker: int, brokers: dict[int, BrokerRegistration]) -> None:
        me = registration(broker)
        self.id = broker
        self.log = SimulatedLog()
        self.term = BrokerTerm(id=broker, storage_id=me.storage_id)
        self.term.begin(me.incarnation, sent_at=0, ttl_s=1_000_000)
        self.local = LocalReplica(
            partition=ORDERS,
            term=self.term,
            log=self.log,
            settings=ReplicaSettings(min_insync_replicas=2),
            brokers=brokers,
        )
        self.replica = Replica(self.local)
        self.replica.opened(0)
        self.answers: dict[Hashable, ErrorCode | None] = {}
        self.proposals: list[ProposeIsr] = []
        self.is_sync_wanted = False
        self.is_refresh_wanted = False
        self.is_dropped = False
        self.roles: list[RoleChanged] = []

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case BeginEpoch():
                    self.log.begin_epoch(effect.epoch)
                case Truncate():
                    self.log.truncate(effect.offset)
                case AppendFetched():
                    for record in effect.records:
                        self.log.append(record)
                    self.perform(
                        self.replica.fetched_appended(effect.leader_epoch, effect.high_watermark)
                    )
                case ProposeIsr():
                    self.proposals.append(effect)
                case AnswerProduce():
                    assert effect.token not in self.answers, "answered twice"
                    self.answers[effect.token] = effect.error
                case SyncLog():
                    self.is_sync_wanted = True
                case RoleChanged():
                    self.roles.append(effect)
                case RefreshMetadata():
                    self.is_refresh_wanted = True
                case DropReplica():
                    self.is_dropped = True
                case _:
                    pass

    @property
    def high_watermark(self) -> int:
        return self.replica.high_watermark


class Cluster:
    """Three nodes, a store with one partition, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.brokers = {broker: registration(broker) for broker in (1, 2, 3)}
        self.nodes = {broker: Node(broker, self.brokers) for broker in (1, 2, 3)}
        self.revision = 0
        self.state = PartitionState(
            cluster_id="c",
            replicas=(1, 2, 3),
            isr={broker: self.brokers[broker].storage_id for broker in (1, 2, 3)},
            ready=frozenset((1, 2, 3)),
        )

    def __getitem__(self, broker: int) -> Node:
        return self.nodes[broker]

    def write(self, *tell: int, **changes: object) -> None:
        """Change the partition in the store and tell the brokers of `tell`, by default all."""
        self.revision += 1
        self.state = replace(
            self.state,
            partition_epoch=self.state.partition_epoch + 1,
            **changes,  # type: ignore[arg-type]
        )
        self.tell(*tell)

    def tell(self, *brokers: int) -> None:
        for broker in brokers or self.nodes:
            node = self.nodes[broker]
            node.perform(node.replica.update(self.state, self.revision, self.now))

    def elect(self, leader: int | None, *tell: int) -> None:
        incarnation = None if leader is None else self.brokers[leader].incarnation
        self.write(
            *tell,
            leader=leader,
            leader_incarnation=incarnation,
            leader_epoch=self.state.leader_epoch + 1,
        )

    def commit(self, proposal: ProposeIsr) -> bool:
        """The store decides on a proposal; nobody is told yet."""
        if proposal.revision != self.revision:
            return False
        self.revision += 1
        self.state = proposal.state
        return True

    def isr(self, *members: int) -> dict[int, str]:
        return {member: self.brokers[member].storage_id for member in members}

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def tick(self, broker: int) -> None:
        node = self.nodes[broker]
        node.perform(node.replica.tick(self.now))

    def produce(self, broker: int, token: Hashable = None, *, acks: int = ALL) -> None:
        """One record. Raises what the replica raises."""
        node = self.nodes[broker]
        node.replica.check_append(acks, self.now)
        epoch = node.replica.leadership.epoch  # type: ignore[union-attr]
        node.log.append(Record(epoch, next(_values), 0))
        node.perform(
            node.replica.appended(self.now, end_offset=node.log.log_end_offset, token=token)
        )

    def ask(self, follower: int) -> ReplicaFetch:
        fetch = self.nodes[follower].replica.next_fetch()
        assert fetch is not None
        return fetch

    def serve(self, leader: int, fetch: ReplicaFetch) -> ReplicaFetched:
        node = self.nodes[leader]
        answer, effects = node.replica.fetch(fetch, self.now)
        node.perform(effects)
        if answer.error is None and answer.diverging is None:
            answer = replace(answer, records=tuple(node.log.records[fetch.offset :]))
        return answer

    def fetch(self, follower: int, leader: int) -> ReplicaFetched:
        """One fetch, there and back."""
        fetch = self.ask(follower)
        answer = self.serve(leader, fetch)
        self.nodes[follower].perform(self.nodes[follower].replica.fetched(fetch, answer))
        return answer

    def settle(self, leader: int, *followers: int) -> None:
        """Fetch until everybody has everything and knows it."""
        for _ in range(4):
            for follower in followers:
                self.fetch(follower, leader)

    def sync(self, broker: int) -> None:
        node = self.nodes[broker]
        node.is_sync_wanted = False
        node.log.sync(node.log.position)
        node.perform(node.replica.synced(self.now))


@pytest.fixture
def cluster() -> Cluster:
    """Broker 1 leads in epoch 1, everybody is in sync, the log is empty."""
    made = Cluster()
    made.elect(1)
    return made


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """For brokers with sockets and logs."""
    stage = Stage(tmp_path)
    yield stage
    await stage.stop()
