"""The controller: makes the partitions follow what topics want and what brokers are there.

It keeps no plan. Whatever it does next is worked out from what the store holds: an event only says which
partitions to look at, `next_state` says what one of them should become, and each change is a
compare-and-swap on the partition and on the controller's claim. So a controller that stops in the middle
of anything is replaced by one that looks at everything once, and two of them can not both have their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from penstock.cluster import reassignment
from penstock.cluster.batching import KeyChange, batched
from penstock.cluster.desired import (
    Opened,
    new_partition,
    wanted_replicas,
    with_enough_replicas,
    with_readiness,
)
from penstock.cluster.elections import elect, elect_preferred, fence_removed
from penstock.cluster.placement import Placement
from penstock.cluster.state import (
    CONTROLLER,
    PartitionState,
    TopicState,
    broker_key,
    encode_partition,
    partition_key,
    partition_of_key,
    topic_key,
)
from penstock.cluster.view import (
    BrokerChanged,
    Change,
    ClusterView,
    PartitionChanged,
    TopicChanged,
)
from penstock.metadata.store import Compare, Rejected, Transaction
from penstock.metadata.watching import apply_mismatch
from penstock.model import TopicPartition

__all__ = ["BrokerReport", "Controller", "ControllerSettings", "Decision", "Loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    replace_after_s: float = 600.0  # a broker gone for longer is replaced where there are others
    preferred_every_s: float = 300.0  # how often preferred leaders are put back
    unclean_elections: bool = False  # whether a topic that does not say allows them


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """A heartbeat from a broker to the controller. Repeated until the store shows what it says."""

    broker: int
    incarnation: str
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    opened: Mapping[TopicPartition, str | None] = field(default_factory=dict)  # None, or why not


class Loss(NamedTuple):
    """Somebody leads who was not in sync: records that were committed may be gone."""

    partition: TopicPartition
    leader: int
    log_end: int  # of the one that leads now
    high_watermark: int  # the highest that was reported

    def __str__(self) -> str:
        return (
            f"partition={self.partition} leader={self.leader}"
            f" committed={self.high_watermark} found={self.log_end}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A transaction to commit. The driver tells the controller what came of it, exactly once."""

    transaction: Transaction
    partitions: tuple[TopicPartition, ...] = ()


class Controller:
    """Decides while this broker holds the claim written at `claim_revision`. Synchronous."""

    def __init__(
        self, view: ClusterView, claim_revision: int, settings: ControllerSettings, now: float
    ) -> None:
        self._view = view
        # In every transaction, those of requests too: only the controller of the moment decides.
        self.guard = Compare(key=CONTROLLER, mod_revision=claim_revision)
        self._settings = settings
        self.is_deposed = False
        self.losses: list[Loss] = []  # that came of its decisions; whoever drives it takes them
        self._accepted: dict[TopicPartition, Loss] = {}  # by decisions that are in flight
        self._to_look_at: dict[TopicPartition, None] = {}  # in order
        self._in_flight: set[TopicPartition] = set()  # decided, outcome not known
        self._to_prefer: set[TopicPartition] = set()  # put back to their preferred leader
        self._prefer_at = now + settings.preferred_every_s
        self._short: dict[TopicPartition, None] = {}  # have fewer replicas than their topic wants
        self._lost_at: dict[int, float] = {}  # broker with replicas, not registered -> since when
        self._given_up: set[int] = set()  # of these, those gone for too long
        self._opened: dict[TopicPartition, dict[int, Opened]] = {}  # as brokers said

    # -- events: what to look at ----------------------------------------------------------------

    def take_over(self, now: float) -> list[Decision]:
        """Look at everything once: what the last controller left is found here."""
        for name in self._view.topics:
            self._look_at_topic(name)
        self._look_at(self._view.partitions)
        for broker, held in self._view.partitions_of_broker.items():
            if held and not self._view.is_live(broker):
                self._lost_at[broker] = now
        return self.decide()

    def changed(self, change: Change, now: float) -> None:
        """The view has changed. Call `decide` after the last change of a revision."""
        match change:
            case PartitionChanged():
                self._look_at((change.partition,))
            case TopicChanged():
                self._look_at_topic(change.topic)
            case BrokerChanged():
                self._broker_changed(change.broker, now)

    def report(self, report: BrokerReport) -> list[Decision]:
        registered = self._view.brokers.get(report.broker)
        if registered is None or registered.incarnation != report.incarnation:
            return []  # from before its last registration, or after it
        self._view.log_ends[report.broker].update(report.log_ends)
        known = self._view.high_watermarks
        for partition, offset in report.high_watermarks.items():
            known[partition] = max(offset, known.get(partition, 0))
        for partition, error in report.opened.items():
            opened = Opened(report.incarnation, error)
            self._opened.setdefault(partition, {})[report.broker] = opened
        self._look_at(report.opened)
        self._look_at(partition for partition in report.log_ends if self._is_leaderless(partition))
        return self.decide()

    def tick(self, now: float) -> list[Decision]:
        """Time has passed: brokers may be gone for too long, leaders be put back. Once a second will do."""
        for broker, since in self._lost_at.items():
            if now - since > self._settings.replace_after_s and broker not in self._given_up:
                self._given_up.add(broker)
                self._look_at(self._view.partitions_of_broker[broker])
        if now >= self._prefer_at:
            self._prefer_at = now + self._settings.preferred_every_s
            return self.prefer(self._view.partitions)
        return self.decide()

    def prefer(self, partitions: Iterable[TopicPartition]) -> list[Decision]:
        """Put leadership back to the preferred replicas, where they can take it."""
        wanted = list(partitions)
        self._to_prefer.update(wanted)
        self._look_at(wanted)
        return self.decide()

    def committed(self, decision: Decision, revision: int, now: float) -> list[Decision]:
        self._in_flight.difference_update(decision.partitions)
        for partition in decision.partitions:
            loss = self._accepted.pop(partition, None)
            if loss is not None:
                self.losses.append(loss)
        for put in decision.transaction.puts:
            self._apply(now, put.key, put.value, revision)
        for delete in decision.transaction.deletes:
            if not delete.prefix:
                self._apply(now, delete.key, None, revision)
        return self.decide()

    def rejected(self, decision: Decision, result: Rejected, now: float) -> list[Decision]:
        """Somebody was faster: take over what is there and decide anew."""
        self._in_flight.difference_update(decision.partitions)
        self._look_at(decision.partitions)
        for mismatch in result.mismatches:
            if mismatch.compare == self.guard:
                self.is_deposed = True
            else:
                apply_mismatch(partial(self._apply, now), mismatch, result.revision)
        return self.decide()

    def unknown(self, decision: Decision) -> None:
        """The store did not answer. Its compares keep a second try from doing harm: at the next tick."""
        self._in_flight.difference_update(decision.partitions)
        self._look_at(decision.partitions)

    def _apply(self, now: float, key: str, value: bytes | None, revision: int) -> None:
        change = self._view.apply(key, value, revision)
        if change is not None:
            self.changed(change, now)

    def _is_leaderless(self, partition: TopicPartition) -> bool:
        stored = self._view.partitions.get(partition)
        return stored is not None and stored.value.leader is None

    def _look_at(self, partitions: Iterable[TopicPartition]) -> None:
        self._to_look_at.update(dict.fromkeys(partitions))

    def _look_at_topic(self, name: str) -> None:
        stored = self._view.topics.get(name)
        if stored is not None:
            indices = range(stored.value.partition_count)
            self._look_at(TopicPartition(name, index) for index in indices)

    def _broker_changed(self, broker: int, now: float) -> None:
        held = self._view.partitions_of_broker[broker]
        self._look_at(held)
        if self._view.is_live(broker):
            self._lost_at.pop(broker, None)
            self._given_up.discard(broker)
            self._look_at(self._short)
            for lost in self._given_up:
                self._look_at(self._view.partitions_of_broker[lost])
        elif held:
            self._lost_at.setdefault(broker, now)

    # -- decisions ------------------------------------------------------------------------------

    def decide(self) -> list[Decision]:
        """What to write for the partitions that were marked. They are in flight until it is known."""
        if self.is_deposed:
            return []
        placement = Placement.of(self._view)
        looked_at = [p for p in self._to_look_at if p not in self._in_flight]
        changes = []
        for partition in looked_at:
            del self._to_look_at[partition]
            change = self._change(partition, placement)
            if change is not None:
                changes.append(change)
        decisions = []
        for transaction in batched(changes, self.guard):
            keys = (*(put.key for put in transaction.puts), *(d.key for d in transaction.deletes))
            partitions = tuple(partition_of_key(key) for key in keys)
            self._in_flight.update(partitions)
            decisions.append(Decision(transaction, partitions))
        return decisions

    def _change(self, partition: TopicPartition, placement: Placement) -> KeyChange | None:
        topic = self._view.topics.get(partition.topic)
        stored = self._view.partitions.get(partition)
        key = partition_key(partition)
        unreadable = self._view.unreadable
        if key in unreadable or (topic is None and topic_key(partition.topic) in unreadable):
            return None  # it is there, but only others know what it is
        if stored is None:
            if topic is None or partition.partition >= topic.value.partition_count:
                self._short.pop(partition, None)
                return None
            state = new_partition(self._view, topic.value, partition, placement)
            if state is None:
                self._short[partition] = None  # nobody is there to hold it
                return None
            wanted = Compare(key=topic_key(partition.topic), mod_revision=topic.revision)
            return KeyChange(key=key, value=encode_partition(state), revision=0, also=(wanted,))
        if topic is None:
            absent = Compare(key=topic_key(partition.topic), mod_revision=0)
            return KeyChange(key=key, value=None, revision=stored.revision, also=(absent,))
        state = self.next_state(partition, stored.value, topic.value, placement)
        if state == stored.value:
            self._opened.pop(partition, None)  # the store has what was said
            return None
        state = replace(state, partition_epoch=stored.value.partition_epoch + 1)
        self._note_loss(partition, stored.value, state)
        also = self._who_is_there(stored.value, state)
        value = encode_partition(state)
        return KeyChange(key=key, value=value, revision=stored.revision, also=also)

    def _who_is_there(self, before: PartitionState, after: PartitionState) -> tuple[Compare, ...]:
        """What the election of somebody who was not in sync rests on: that nobody who was is there.

        The watch of brokers may be behind that of partitions: those who seem to be gone, or to have
        lost their disks, may have been back since and in sync with what they have now.
        """
        leader = after.leader
        if leader is None or after.leader_epoch == before.leader_epoch:
            return ()
        if before.isr.get(leader) == after.isr[leader]:
            return ()
        return tuple(
            Compare(key=broker_key(broker), mod_revision=self._view.broker_revision(broker))
            for broker in sorted({*before.isr, leader})
        )

    def _note_loss(
        self, partition: TopicPartition, before: PartitionState, after: PartitionState
    ) -> None:
        """A new leader that was not in sync may lack what was committed: to be said if it is elected."""
        self._accepted.pop(partition, None)
        leader = after.leader
        if leader is None or after.leader_epoch == before.leader_epoch:
            return
        if before.isr.get(leader) == after.isr[leader] or len(before.isr) == 1:
            return
        log_end = self._view.log_end(leader, partition)
        committed = self._view.high_watermarks.get(partition, 0)
        if log_end < committed:
            self._accepted[partition] = Loss(partition, leader, log_end, committed)

    def next_state(
        self,
        partition: TopicPartition,
        state: PartitionState,
        topic: TopicState,
        placement: Placement,
    ) -> PartitionState:
        """What the partition should become, given the view; the same state if it is as it should be."""
        view, before = self._view, state
        said = self._opened.get(partition)
        if said is not None:
            state = with_readiness(view, state, said)
        state = with_enough_replicas(state, topic, placement, self._given_up)
        if len(state.replicas) < wanted_replicas(state, topic):
            self._short[partition] = None
        else:
            self._short.pop(partition, None)
        state = reassignment.finish(state)
        unclean = state.is_unclean_wanted or topic.allows_unclean_election(
            by_default=self._settings.unclean_elections
        )
        state = elect(view, partition, state, unclean=unclean)
        if state.is_unclean_wanted:
            state = replace(state, is_unclean_wanted=False)
        if partition in self._to_prefer:
            self._to_prefer.discard(partition)
            state = elect_preferred(view, state)
        return fence_removed(before, state)
