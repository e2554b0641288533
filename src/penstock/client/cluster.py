"""A cluster as a bulk client sees it: topics, offsets, sizes, and the progress of groups."""

from __future__ import annotations

import datetime
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from penstock.client.connection import Address
from penstock.client.errors import BrokerError, ClientError, broker_error
from penstock.client.groups import GroupOffsets
from penstock.client.network import Network
from penstock.client.topology import Topology
from penstock.client.wire import (
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    Messages,
)
from penstock.errors import ErrorCode
from penstock.model import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
_READ_COMMITTED: Final = 1
_NOBODY: Final = -1  # who asks is no replica
_TOPIC: Final = 2  # the kind of resource that DescribeConfigs is asked for
_CLEANUP_POLICY: Final = "cleanup.policy"


class Cluster:
    """A Kafka-compatible cluster, reached through `bootstrap`: host:port, several of them by commas.

    Nothing is connected before it is needed, and a forked process connects anew. Every method may be
    called from any thread; each waits for its answers. What passes (a broker that restarts, a leader
    that moves) is tried again for `retry_timeout_ms`; one answer may take `request_timeout_ms`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "penstock",
        request_timeout_ms: int = 30_000,
        retry_timeout_ms: int = 60_000,
    ) -> None:
        self.network = Network(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_timeout_ms=retry_timeout_ms,
        )
        self.topology = Topology(self.network)
        self._groups = GroupOffsets(self.network)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. May be repeated; what is used afterwards connects again."""
        self.network.close()

    # Topics

    def topics(self) -> list[str]:
        """The names of all topics that are not the cluster's own, sorted."""
        found = self.topology.patient_refresh(None)
        return sorted(name for name, info in found.items() if info and not info.is_internal)

    def partitions(self, topics: Collection[str]) -> dict[str, int | None]:
        """How many partitions each topic has now. None: there is no such topic, and none is created."""
        found = self.topology.patient_refresh(set(topics))
        counts: dict[str, int | None] = {}
        for topic in topics:
            info = found.get(topic)
            counts[topic] = None if info is None else len(info.leaders)
        return counts

    def topic_ids(self, topics: Iterable[str]) -> dict[str, uuid.UUID]:
        """The ids of topics as last heard of, without asking. Those that are not known are missing."""
        known = ((topic, self.topology.topic_id(topic)) for topic in topics)
        return {topic: found for topic, found in known if found is not None}

    def is_compacted(self, topic: str) -> bool:
        """Whether records may leave the topic because there is a newer one of the same key."""

        def build(new: Messages) -> Any:
            resource = new(
                "DescribeConfigsResource",
                resource_type=_TOPIC,
                resource_name=topic,
                configuration_keys=(_CLEANUP_POLICY,),
            )
            return new("DescribeConfigsRequest", resources=(resource,))

        def ask() -> bool:
            answer = self.network.call_any(DESCRIBE_CONFIGS, build)
            for result in answer.results:
                if result.error_code is not ErrorCode.none:
                    what = f"the settings of topic {topic!r} are not told"
                    raise broker_error(result.error_code, what)
            return any(
                entry.name == _CLEANUP_POLICY and "compact" in (entry.value or "")
                for result in answer.results
                for entry in result.configs
            )

        return self.network.patiently(f"asking for the settings of topic {topic!r}", ask)

    def sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Bytes on the leader's disk. A partition that no broker can tell about is missing."""
        found: dict[TopicPartition, int] = {}

        def ask(address: Address, wanted: list[TopicPartition]) -> None:
            found.update(self._sizes_at(address, wanted))

        topics = self.topology.patient_refresh({partition.topic for partition in partitions})
        there = [
            partition
            for partition in partitions
            if (info := topics.get(partition.topic)) and partition.partition in info.leaders
        ]
        self._at_leaders(there, "asking for the sizes of partitions", ask)
        return found

    def _sizes_at(
        self, address: Address, wanted: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        def build(new: Messages) -> Any:
            topics = tuple(
                new("DescribableLogDirTopic", topic=topic, partitions=tuple(indexes))
                for topic, indexes in _by_topic(wanted).items()
            )
            return new("DescribeLogDirsRequest", topics=topics)

        answer = self.network.call(address, DESCRIBE_LOG_DIRS, build)
        return {
            TopicPartition(topic.name, part.partition_index): part.partition_size
            for directory in answer.results
            if directory.error_code is ErrorCode.none
            for topic in directory.topics
            for part in topic.partitions
            if not part.is_future_key and part.partition_size >= 0
        }

    # Offsets

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, committed: bool = False
    ) -> dict[TopicPartition, int | None]:
        """Offsets by time: `EARLIEST`, `LATEST`, or milliseconds since 1970.

        A time stands for the first record that is not older; None: there is none. With `committed`,
        `LATEST` is the last stable offset: where the oldest open transaction begins.
        """
        found: dict[TopicPartition, int | None] = {}

        def ask(address: Address, partitions: list[TopicPartition]) -> None:
            asked = {item: wanted[item] for item in partitions if item not in found}
            if asked:
                self._offsets_at(address, asked, committed, found)

        self._at_leaders(wanted, "looking up offsets", ask)
        return found

    def _offsets_at(
        self,
        address: Address,
        wanted: Mapping[TopicPartition, int],
        committed: bool,
        found: dict[TopicPartition, int | None],
    ) -> None:
        def build(new: Messages) -> Any:
            topics = tuple(
                new(
                    "ListOffsetsTopic",
                    name=topic,
                    partitions=tuple(
                        new(
                            "ListOffsetsPartition",
                            partition_index=index,
                            timestamp=wanted[TopicPartition(topic, index)],
                        )
                        for index in indexes
                    ),
                )
                for topic, indexes in _by_topic(wanted).items()
            )
            return new(
                "ListOffsetsRequest",
                replica_id=_NOBODY,
                isolation_level=_READ_COMMITTED if committed else 0,
                topics=topics,
            )

        answer = self.network.call(address, LIST_OFFSETS, build)
        failure: ClientError | None = None
        for topic in answer.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                if part.error_code is ErrorCode.none:
                    found[partition] = part.offset if part.offset >= 0 else None
                else:
                    what = f"broker {address} cannot tell offsets of {partition}"
                    failure = failure or broker_error(part.error_code, what)
        if failure is not None:
            raise failure

    def _at_leaders(
        self,
        partitions: Collection[TopicPartition],
        doing: str,
        ask: Callable[[Address, list[TopicPartition]], None],
    ) -> None:
        """Call `ask` for each leader with the partitions it leads, all over again while it fails."""
        is_again = False

        def ask_all() -> None:
            nonlocal is_again
            fresh, is_again = is_again, True
            by_address: dict[Address, list[TopicPartition]] = defaultdict(list)
            for partition, leader in self.topology.leaders(partitions, fresh=fresh).items():
                by_address[leader.address].append(partition)
            for address, led in by_address.items():
                ask(address, led)

        self.network.patiently(doing, ask_all)

    # Groups

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store progress as one who is no member of the group, which must have none."""
        self._groups.commit(group, offsets)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's progress; partitions without any are missing."""
        return self._groups.committed(group, partitions)

    # Producers

    def new_producer_id(self) -> tuple[int, int]:
        """An id that no other producer has, and its epoch."""

        def build(new: Messages) -> Any:
            return new(
                "InitProducerIdRequest",
                transactional_id=None,
                transaction_timeout=datetime.timedelta(minutes=1),
            )

        def ask() -> tuple[int, int]:
            answer = self.network.call_any(INIT_PRODUCER_ID, build)
            if answer.error_code is not ErrorCode.none:
                raise BrokerError(answer.error_code, "no producer id was given")
            return answer.producer_id, answer.producer_epoch

        return self.network.patiently("asking for a producer id", ask)


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    return topics
