"""The committed offsets of a group, in memory, and the rule that says which of them are too old."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.groups.group import Group
from penstock.groups.messages import GroupState
from penstock.model import TopicPartition

__all__ = ["CommittedOffset", "NewOffset", "OffsetTable", "expired_offsets"]

NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """An offset as a client commits it."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH  # of the last record read
    metadata: str | None = None  # the client's own note


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """An offset as it is kept."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int  # wall time of the commit
    expire_ms: int | None = None  # wall time the client asked to keep it until; None: our setting


class _Kept(NamedTuple):
    value: CommittedOffset
    revision: int  # of the store's write that made it


class OffsetTable:
    """What is durable of one group's offsets.

    Writes may be reported here in another order than the store did them: the one with the highest
    revision stays.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, _Kept]] = {}  # no empty dicts inside

    def __bool__(self) -> bool:
        return bool(self._topics)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        kept = self._topics.get(topic, {}).get(partition)
        return None if kept is None else kept.value

    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def of_topic(self, topic: str) -> Mapping[int, CommittedOffset]:
        """The topic's offsets by partition, in the order of partitions."""
        return {p: kept.value for p, kept in sorted(self._topics.get(topic, {}).items())}

    def revision(self, at: TopicPartition) -> int | None:
        """The revision of the offset there; None if there is none."""
        kept = self._topics.get(at.topic, {}).get(at.partition)
        return None if kept is None else kept.revision

    def entries(self, topic: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for partition, kept in self._topics.get(topic, {}).items():
            yield TopicPartition(topic, partition), kept.value

    def put(self, at: TopicPartition, value: CommittedOffset, revision: int) -> None:
        partitions = self._topics.setdefault(at.topic, {})
        kept = partitions.get(at.partition)
        if kept is None or kept.revision < revision:
            partitions[at.partition] = _Kept(value, revision)

    def remove(self, at: TopicPartition, revision: int) -> None:
        """The store deleted the offset at `revision`; one committed after that stays."""
        partitions = self._topics.get(at.topic, {})
        kept = partitions.get(at.partition)
        if kept is not None and kept.revision < revision:
            self.drop(at)

    def drop(self, at: TopicPartition) -> None:
        """Forget the offset, whatever its revision, if there is one."""
        partitions = self._topics.get(at.topic, {})
        if partitions.pop(at.partition, None) is not None and not partitions:
            del self._topics[at.topic]


def expired_offsets(
    group: Group, offsets: OffsetTable, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """The offsets that nobody needs any more.

    * No member ever joined (consumers that assign themselves): `retention_ms` after the commit.
    * The group is empty: `retention_ms` after the last member went, or the commit if that was later.
    * Consumers are at work: those of topics they do not subscribe to, `retention_ms` after the commit.

    A commit of an old version may bring its own time to keep the offset, which then counts instead.
    """
    is_empty = group.state is GroupState.EMPTY
    is_simple = group.protocol_type is None
    if not is_empty and (group.state is not GroupState.STABLE or group.subscribed_topics is None):
        return []
    since_ms = group.state_ms if is_empty and not is_simple else 0
    return [
        at
        for topic in offsets.topics()
        if is_empty or not group.is_subscribed(topic)
        for at, value in offsets.entries(topic)
        if now_ms >= _expiry_ms(value, since_ms, retention_ms)
    ]


def _expiry_ms(value: CommittedOffset, since_ms: int, retention_ms: int) -> int:
    if value.expire_ms is not None:
        return value.expire_ms
    return max(value.commit_ms, since_ms) + retention_ms
