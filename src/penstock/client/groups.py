"""The progress of consumer groups: committed offsets, stored and looked up at the group's broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from penstock.client.connection import Address
from penstock.client.errors import BrokerError, broker_error
from penstock.client.network import Network
from penstock.client.wire import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, Messages
from penstock.errors import ErrorCode
from penstock.model import TopicPartition

_GROUP: Final = 0  # the kind of key that FindCoordinator is asked for
_NO_GENERATION: Final = -1

Result = TypeVar("Result")


class GroupOffsets:
    """Every method may be called from any thread."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._coordinators: dict[str, Address] = {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        def build(new: Messages) -> Any:
            topics = []
            for name, indexes in _by_topic(offsets).items():
                partitions = tuple(
                    new(
                        "OffsetCommitRequestPartition",
                        partition_index=index,
                        committed_offset=offsets[TopicPartition(name, index)],
                        committed_metadata="",
                    )
                    for index in indexes
                )
                topics.append(new("OffsetCommitRequestTopic", name=name, partitions=partitions))
            return new(
                "OffsetCommitRequest",
                group_id=group,
                generation_id_or_member_epoch=_NO_GENERATION,
                member_id="",
                topics=tuple(topics),
            )

        def ask(address: Address) -> None:
            answer = self._network.call(address, OFFSET_COMMIT, build)
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code is not ErrorCode.none:
                        where = TopicPartition(topic.name, part.partition_index)
                        what = f"broker {address} did not store the offset of {where} for group {group!r}"
                        raise broker_error(part.error_code, what)

        if offsets:
            self._at_coordinator(group, f"committing offsets of group {group!r}", ask)

    def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        def build(new: Messages) -> Any:
            topics = tuple(
                new("OffsetFetchRequestTopic", name=name, partition_indexes=tuple(indexes))
                for name, indexes in _by_topic(partitions).items()
            )
            return new("OffsetFetchRequest", group_id=group, topics=topics, require_stable=True)

        def ask(address: Address) -> dict[TopicPartition, int]:
            answer = self._network.call(address, OFFSET_FETCH, build)
            what = f"broker {address} cannot tell the offsets of group {group!r}"
            if answer.error_code is not ErrorCode.none:
                raise BrokerError(answer.error_code, what)
            found = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code is not ErrorCode.none:
                        raise broker_error(part.error_code, what)
                    if part.committed_offset >= 0:
                        found[TopicPartition(topic.name, part.partition_index)] = (
                            part.committed_offset
                        )
            return found

        if not partitions:
            return {}
        return self._at_coordinator(group, f"looking up offsets of group {group!r}", ask)

    def _at_coordinator(self, group: str, doing: str, ask: Callable[[Address], Result]) -> Result:
        """What `ask` returns when it is called with the broker that keeps the group."""

        def ask_there() -> Result:
            address = self._coordinators.pop(group, None) or self._find_coordinator(group)
            found = ask(address)
            self._coordinators[group] = address  # one that failed is looked for anew
            return found

        return self._network.patiently(doing, ask_there)

    def _find_coordinator(self, group: str) -> Address:
        def build(new: Messages) -> Any:
            return new("FindCoordinatorRequest", key=group, key_type=_GROUP)

        answer = self._network.call_any(FIND_COORDINATOR, build)
        if answer.error_code is not ErrorCode.none:
            raise BrokerError(answer.error_code, f"no broker keeps group {group!r}")
        return Address(answer.host, answer.port, answer.node_id)


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    return topics
