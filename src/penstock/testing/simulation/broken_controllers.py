"""Controllers with one rule broken each, as a tired engineer might have written them."""

from __future__ import annotations

from dataclasses import replace

from penstock.cluster.controller import Controller, Decision
from penstock.cluster.elections import elect
from penstock.cluster.placement import Placement
from penstock.cluster.state import PartitionState, TopicState
from penstock.metadata.store import Transaction
from penstock.model import TopicPartition


class ElectsOutsideTheIsr(Controller):
    """Elects leaders from outside the ISR."""

    def next_state(
        self, partition: TopicPartition, state: PartitionState, topic: TopicState, placement: Placement
    ) -> PartitionState:  # fmt: skip
        topic = replace(topic, overrides={"unclean.leader.election.enable": "true"})
        return super().next_state(partition, state, topic, placement)


class TrustsAnyDisk(Controller):
    """Elects a broker that has lost its disk."""

    def next_state(
        self, partition: TopicPartition, state: PartitionState, topic: TopicState, placement: Placement
    ) -> PartitionState:  # fmt: skip
        brokers = self._view.brokers
        isr = {m: brokers[m].storage_id if m in brokers else s for m, s in state.isr.items()}
        elected = elect(self._view, partition, replace(state, isr=isr))
        if elected.leader_epoch > state.leader_epoch:
            return elected
        return super().next_state(partition, state, topic, placement)


class KeepsTheEpoch(Controller):
    """Elects without raising the epoch."""

    def next_state(
        self, partition: TopicPartition, state: PartitionState, topic: TopicState, placement: Placement
    ) -> PartitionState:  # fmt: skip
        after = super().next_state(partition, state, topic, placement)
        return replace(after, leader_epoch=state.leader_epoch)


class DecidesWithoutCompare(Controller):
    """Decides without compare-and-swap."""

    def decide(self) -> list[Decision]:
        return [
            Decision(
                Transaction(puts=d.transaction.puts, deletes=d.transaction.deletes), d.partitions
            )
            for d in super().decide()
        ]


class ShrinksTheIsrItself(Controller):
    """Shrinks the ISR without asking the leader."""

    def next_state(
        self, partition: TopicPartition, state: PartitionState, topic: TopicState, placement: Placement
    ) -> PartitionState:  # fmt: skip
        after = super().next_state(partition, state, topic, placement)
        if after.leader_epoch == state.leader_epoch or after.leader is None:
            return after
        live = {m: s for m, s in after.isr.items() if m in self._view.brokers}
        return replace(after, isr=live)


class KeepsTheEpochWithoutAReplica(Controller):
    """Removes a replica without raising the epoch."""

    def next_state(
        self, partition: TopicPartition, state: PartitionState, topic: TopicState, placement: Placement
    ) -> PartitionState:  # fmt: skip
        after = super().next_state(partition, state, topic, placement)
        if after.leader == state.leader and after.leader_incarnation == state.leader_incarnation:
            return replace(after, leader_epoch=state.leader_epoch)
        return after


class SwitchesBeforeInSync(Controller):
    """Switches replicas before they are in sync."""

    def next_state(
        self, partition: TopicPartition, state: PartitionState, topic: TopicState, placement: Placement
    ) -> PartitionState:  # fmt: skip
        if state.is_reassigning:
            brokers = self._view.brokers
            target = tuple(b for b in state.target if b in brokers)
            if target:
                return replace(
                    state, replicas=target, adding=(), removing=(),
                    isr={b: brokers[b].storage_id for b in target}, leader=target[0],
                    leader_incarnation=brokers[target[0]].incarnation,
                    leader_epoch=state.leader_epoch + 1, ready=state.ready & set(target),
                )  # fmt: skip
        return super().next_state(partition, state, topic, placement)
