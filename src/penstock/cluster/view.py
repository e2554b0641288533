"""The cluster as one broker knows it: what the store holds, as far as the watch has come."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from penstock.cluster.state import (
    BROKERS,
    CONTROLLER,
    PARTITIONS,
    TOPICS,
    BrokerRegistration,
    ControllerClaim,
    PartitionState,
    TopicState,
    broker_key,
    decode_broker,
    decode_controller,
    decode_partition,
    decode_topic,
    partition_key,
    partition_of_key,
    topic_key,
)
from penstock.metadata.store import Entry
from penstock.model import TopicPartition

__all__ = ["BrokerChanged", "Change", "ClusterView", "PartitionChanged", "Stored", "TopicChanged"]

T = TypeVar("T")

_DELETED_KEYS_MAX: Final = 100_000  # far more than a watch can be behind


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A value and the revision it was written at: what the next change is compared with."""

    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    broker: int


@dataclass(frozen=True, slots=True)
class TopicChanged:
    topic: str


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    pass


Change = BrokerChanged | TopicChanged | PartitionChanged | ControllerChanged


class ClusterView:
    """Kept up to date by `apply`, key by key. Indexes make an event cost what it touches, not more."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, Stored[TopicState]] = {}
        self.partitions: dict[TopicPartition, Stored[PartitionState]] = {}
        self.controller: Stored[ControllerClaim] | None = None
        # Broker -> its partitions: a dict is a set that keeps its order, so decisions keep theirs.
        self.partitions_of_broker: defaultdict[int, dict[TopicPartition, None]] = defaultdict(dict)
        self.preferred_count: Counter[int] = Counter()  # partitions whose first replica it is
        self.moving: dict[TopicPartition, None] = {}  # those that are being reassigned
        self.log_ends: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        self.high_watermarks: dict[TopicPartition, int] = {}  # the highest that leaders reported
        self.unreadable: set[str] = set()  # keys whose last value can not be understood
        self._revisions: dict[str, int] = {}  # of each key, the last deleted ones too
        self._deleted: dict[str, None] = {}  # those, the oldest first

    def apply(self, key: str, value: bytes | None, revision: int) -> Change | None:
        """Take over one key as it is at `revision`; None if nothing changed for us.

        News that is known already, from a snapshot or our own commit, changes nothing. `StoreCorrupt` if
        the value can not be understood: what was known before stays, and the key is `unreadable`.
        """
        if self._revisions.get(key, 0) >= revision:
            return None
        self._revisions[key] = revision
        entry = None
        self._deleted.pop(key, None)
        if value is None:
            self._remember_deleted(key)
        else:
            entry = Entry(key=key, value=value, create_revision=revision, mod_revision=revision)
        self.unreadable.add(key)
        change = self._take_over(key, entry)
        self.unreadable.discard(key)
        return change

    def _remember_deleted(self, key: str) -> None:
        """News from before the deletion may still come, but not for ever."""
        self._deleted[key] = None
        if len(self._deleted) > _DELETED_KEYS_MAX:
            oldest = next(iter(self._deleted))
            del self._deleted[oldest], self._revisions[oldest]

    def _take_over(self, key: str, entry: Entry | None) -> Change | None:
        if key.startswith(PARTITIONS):
            return self._apply_partition(key, entry)
        if key.startswith(BROKERS):
            return self._apply_broker(key, entry)
        if key.startswith(TOPICS):
            return self._apply_topic(key, entry)
        if key == CONTROLLER:
            self.controller = (
                None if entry is None else Stored(decode_controller(entry), entry.mod_revision)
            )
            return ControllerChanged()
        return None

    def keys(self, prefix: str) -> set[str]:
        """The keys under a prefix that are there, as far as is known."""
        found = {key for key in self.unreadable if key.startswith(prefix)}
        if prefix == BROKERS:
            found.update(map(broker_key, self.brokers))
        elif prefix == TOPICS:
            found.update(map(topic_key, self.topics))
        elif prefix == PARTITIONS:
            found.update(map(partition_key, self.partitions))
        elif prefix == CONTROLLER and self.controller is not None:
            found.add(CONTROLLER)
        return found

    def broker_revision(self, broker: int) -> int:
        """Of its registration, as far as it is known here; 0: it is not registered."""
        return self._revisions.get(broker_key(broker), 0) if broker in self.brokers else 0

    def claim_revision(self, incarnation: str) -> int | None:
        """The revision of the controller's claim if `incarnation` made it, knowingly or not.

        A claim whose answer was lost is found here: who holds it has to be the controller.
        """
        if self.controller is None or self.controller.value.incarnation != incarnation:
            return None
        return self.controller.revision

    def is_live(self, broker: int) -> bool:
        return broker in self.brokers

    def log_end(self, broker: int, partition: TopicPartition) -> int:
        """The last that the broker reported of its log's end; -1 if it did not."""
        return self.log_ends[broker].get(partition, -1) if broker in self.log_ends else -1

    def _apply_partition(self, key: str, entry: Entry | None) -> Change:
        partition = partition_of_key(key)
        state = None if entry is None else decode_partition(entry)
        old = self.partitions.pop(partition, None)
        if entry is None:
            self.high_watermarks.pop(partition, None)
            for ends in self.log_ends.values():
                ends.pop(partition, None)
        self.moving.pop(partition, None)
        if old is not None:
            for broker in old.value.replicas:
                self.partitions_of_broker[broker].pop(partition, None)
            self.preferred_count[old.value.replicas[0]] -= 1
        if entry is not None and state is not None:
            self.partitions[partition] = Stored(state, entry.mod_revision)
            for broker in state.replicas:
                self.partitions_of_broker[broker][partition] = None
            self.preferred_count[state.replicas[0]] += 1
            if state.is_reassigning:
                self.moving[partition] = None
        return PartitionChanged(partition)

    def _apply_broker(self, key: str, entry: Entry | None) -> Change:
        broker = int(key.removeprefix(BROKERS))
        registered = None if entry is None else decode_broker(entry)
        old = self.brokers.pop(broker, None)
        if registered is not None:
            self.brokers[broker] = registered
        if old is None or registered is None or old.incarnation != registered.incarnation:
            self.log_ends.pop(broker, None)
        return BrokerChanged(broker)

    def _apply_topic(self, key: str, entry: Entry | None) -> Change:
        name = key.removeprefix(TOPICS)
        if entry is None:
            self.topics.pop(name, None)
        else:
            self.topics[name] = Stored(decode_topic(entry), entry.mod_revision)
        return TopicChanged(name)
