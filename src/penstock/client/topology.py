"""Which topics there are and who leads their partitions: the last answers to Metadata, kept."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.client.connection import Address
from penstock.client.errors import BrokerError, UnknownTopic
from penstock.client.network import Network
from penstock.client.wire import METADATA, Messages
from penstock.errors import ErrorCode
from penstock.model import TopicPartition

_NOT_THERE: Final = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.invalid_topic_exception,  # a name that no topic can have
}


class Leader(NamedTuple):
    """Who leads a partition, as far as we know."""

    address: Address
    epoch: int  # -1: not known
    topic_id: uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic as Metadata describes it."""

    name: str
    id: uuid.UUID | None  # None: the broker is too old to tell
    is_internal: bool
    leaders: dict[int, tuple[int, int]]  # partition -> node id (-1: none), leader epoch


class Topology:
    """Answers from memory unless told otherwise. Every method may be called from any thread."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._topics: dict[str, TopicInfo] = {}

    def refresh(self, names: Collection[str] | None) -> dict[str, TopicInfo | None]:
        """Ask once for these topics, or all; None: there is none of that name. Never creates one."""

        def build(new: Messages) -> Any:
            asked = None
            if names is not None:
                asked = tuple(
                    new("MetadataRequestTopic", topic_id=None, name=name) for name in names
                )
            return new(
                "MetadataRequest",
                topics=asked,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )

        if names is not None and not names:
            return {}
        answer = self._network.call_any(METADATA, build)
        self._network.learn(Address(item.host, item.port, item.node_id) for item in answer.brokers)
        found: dict[str, TopicInfo | None] = dict.fromkeys(names or ())
        for item in answer.topics:
            info = _topic_info(item)
            found[item.name] = info
            if info is None:
                self._topics.pop(item.name, None)
            else:
                self._topics[item.name] = info
        return found

    def patient_refresh(self, names: Collection[str] | None) -> dict[str, TopicInfo | None]:
        """The same, tried again while brokers are away."""
        doing = "asking for the topics of the cluster"
        return self._network.patiently(doing, lambda: self.refresh(names))

    def topic_id(self, name: str) -> uuid.UUID | None:
        """As last heard of; None: not known, or the broker is too old to tell."""
        info = self._topics.get(name)
        return None if info is None else info.id

    def leader(self, partition: TopicPartition, *, fresh: bool = False) -> Leader:
        """Who leads it; asks once if that is not known, or always if `fresh`."""
        return self.leaders([partition], fresh=fresh)[partition]

    def leaders(
        self, partitions: Iterable[TopicPartition], *, fresh: bool = False
    ) -> dict[TopicPartition, Leader]:
        """The same for many, with one request at most."""
        partitions = list(partitions)
        names = {item.topic for item in partitions}
        missing = names if fresh else {name for name in names if self._is_vague(name, partitions)}
        self.refresh(missing)
        return {item: self._leader(item) for item in partitions}

    def _is_vague(self, name: str, partitions: Collection[TopicPartition]) -> bool:
        info = self._topics.get(name)
        if info is None:
            return True
        nodes = (info.leaders.get(item.partition) for item in partitions if item.topic == name)
        return any(node is None or self._network.broker(node[0]) is None for node in nodes)

    def _leader(self, partition: TopicPartition) -> Leader:
        info = self._topics.get(partition.topic)
        if info is None:
            raise UnknownTopic(
                f"there is no topic {partition.topic!r}; create it first, or check its name"
            )
        if partition.partition not in info.leaders:
            raise UnknownTopic(
                f"topic {partition.topic!r} has no partition {partition.partition}: "
                f"it has {len(info.leaders)}, counted from 0"
            )
        node, epoch = info.leaders[partition.partition]
        address = self._network.broker(node)
        if address is None:
            raise BrokerError(ErrorCode.leader_not_available, f"{partition} has no leader")
        return Leader(address, epoch, info.id)


def _topic_info(item: Any) -> TopicInfo | None:
    code = item.error_code
    if code in _NOT_THERE:
        return None
    if code is not ErrorCode.none and code is not ErrorCode.leader_not_available:
        raise BrokerError(code, f"topic {item.name!r} cannot be used")
    return TopicInfo(
        name=item.name,
        id=getattr(item, "topic_id", None),
        is_internal=item.is_internal,
        leaders={
            part.partition_index: (part.leader_id, getattr(part, "leader_epoch", -1))
            for part in item.partitions
        },
    )
