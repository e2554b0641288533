"""A controller at its desk: a store it writes to at once, and brokers that only exist on paper."""

from __future__ import annotations

import uuid
from dataclasses import replace

from penstock.cluster import requests
from penstock.cluster.controller import BrokerReport, Controller, ControllerSettings, Decision
from penstock.cluster.state import (
    CONTROLLER,
    BrokerRegistration,
    ControllerClaim,
    PartitionState,
    TopicState,
    broker_key,
    encode_broker,
    encode_controller,
    encode_partition,
    partition_key,
)
from penstock.cluster.view import ClusterView
from penstock.metadata.keyspace import Draft, KeySpace
from penstock.metadata.store import CommitResult, Committed, Delete, Put, Rejected, Transaction
from penstock.model import TopicPartition


def registration(broker: int, start: int = 1, disk: int = 1, **more: object) -> BrokerRegistration:
    registered = BrokerRegistration(
        id=broker, host="h", port=9092, incarnation=f"{broker}.{start}", storage_id=f"{broker}.{disk}"
    )  # fmt: skip
    return replace(registered, **more)  # type: ignore[arg-type]


class Desk:
    """`settle` commits what the controller decides until it has nothing left to decide."""

    def __init__(self, brokers: int = 3) -> None:
        self.now = 0.0
        self.space = KeySpace()
        self.view = ClusterView()
        self.committed: list[Transaction] = []
        self.settings = ControllerSettings(replace_after_s=60, preferred_every_s=1_000_000)
        for broker in range(1, brokers + 1):
            self.write(broker_key(broker), encode_broker(registration(broker)))
        self.controller = self.take_over()
        self.settle(self.controller.take_over(self.now))

    # -- the store ------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> CommitResult:
        draft = Draft(self.space)
        result = draft.commit(transaction, ())
        self.space.apply(draft)
        if isinstance(result, Committed):
            self.committed.append(transaction)
        return result

    def write(self, key: str, value: bytes | None) -> None:
        """Somebody else writes."""
        if value is None:
            self.commit(Transaction(deletes=(Delete(key=key),)))
        else:
            self.commit(Transaction(puts=(Put(key=key, value=value),)))

    def take_over(self) -> Controller:
        """This broker becomes the controller, from what the store holds."""
        claim = ControllerClaim(broker=1, incarnation=f"claim {self.space.revision}")
        self.write(CONTROLLER, encode_controller(claim))
        self.view = ClusterView()
        for entry in self.space.snapshot("").entries:
            self.view.apply(entry.key, entry.value, entry.mod_revision)
        assert self.view.controller is not None
        return Controller(self.view, self.view.controller.revision, self.settings, self.now)

    def watch(self, *keys: str) -> None:
        """The controller hears of these keys, then decides."""
        for key in keys:
            entry = self.space.get(key)
            value = None if entry is None else entry.value
            revision = self.space.revision if entry is None else entry.mod_revision
            change = self.view.apply(key, value, revision)
            if change is not None:
                self.controller.changed(change, self.now)
        self.settle(self.controller.decide())

    def settle(self, decisions: list[Decision]) -> None:
        for _ in range(100):
            if not decisions:
                return
            later = []
            for decision in decisions:
                result = self.commit(decision.transaction)
                if isinstance(result, Rejected):
                    later += self.controller.rejected(decision, result, self.now)
                else:
                    later += self.controller.committed(decision, result.revision, self.now)
            decisions = later
        raise AssertionError("the controller does not come to rest")

    # -- brokers --------------------------------------------------------------------------------

    def join(self, broker: BrokerRegistration) -> None:
        self.write(broker_key(broker.id), encode_broker(broker))
        self.watch(broker_key(broker.id))

    def lose(self, broker: int) -> None:
        self.write(broker_key(broker), None)
        self.watch(broker_key(broker))

    def report(self, broker: int, **more: object) -> None:
        incarnation = self.view.brokers[broker].incarnation
        report = BrokerReport(broker=broker, incarnation=incarnation, **more)  # type: ignore[arg-type]
        self.settle(self.controller.report(report))

    def open_all(self) -> None:
        for broker in tuple(self.view.brokers):
            held = self.view.partitions_of_broker[broker]
            self.report(broker, opened=dict.fromkeys(held))

    # -- topics ---------------------------------------------------------------------------------

    def create(
        self, name: str = "t", partitions: int = 1, replicas: int = 3, **more: object
    ) -> None:
        topic = TopicState(
            name=name, id=uuid.uuid4(), partition_count=partitions, replication_factor=replicas
        )
        topic = replace(topic, **more)  # type: ignore[arg-type]
        self.settle([requests.create_topic(self.view, topic)])

    def __getitem__(self, partition: int) -> PartitionState:
        return self.state(TopicPartition("t", partition))

    def state(self, partition: TopicPartition) -> PartitionState:
        return self.view.partitions[partition].value

    def states(self) -> list[PartitionState]:
        return [stored.value for stored in self.view.partitions.values()]

    def as_leader(self, partition: int, **changes: object) -> None:
        """The leader changes its partition, and the controller hears of it."""
        name = TopicPartition("t", partition)
        self.write(
            partition_key(name),
            encode_partition(replace(self.state(name), **changes)),  # type: ignore[arg-type]
        )
        self.watch(partition_key(name))

    def isr(self, *members: int) -> dict[int, str]:
        return {member: registration(member).storage_id for member in members}

    def reassign(self, partition: int, target: tuple[int, ...] | None) -> None:
        name = TopicPartition("t", partition)
        self.settle([requests.reassign(self.view, name, target)])
