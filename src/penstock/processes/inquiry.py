"""Asking one broker what it knows: who is there, who leads what, who is in sync, how far behind.

Unlike a client, which asks any broker of the cluster and keeps the answer, this asks the one that it is
told to, each time anew. So it can be seen whether brokers agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from penstock.client.connection import Connection, parse_bootstrap
from penstock.client.wire import DESCRIBE_LOG_DIRS, METADATA, Api, Messages
from penstock.errors import ErrorCode
from penstock.model import BrokerInfo, TopicPartition

NOBODY: Final = -1
_DESCRIBE_CLUSTER: Final = Api("DescribeCluster", 60, 0, 0, 0)
_DESCRIBE_CONFIGS: Final = Api("DescribeConfigs", 32, 1, 4, 4)
_TOPIC: Final = 2  # a kind of resource that has settings
_MIN_ISR: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKnown:
    """A partition as a broker knows it."""

    topic: str
    partition: int
    leader: int  # id of a broker, or NOBODY
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_led(self) -> bool:
        return self.leader != NOBODY

    @property
    def is_under_replicated(self) -> bool:
        return not set(self.replicas) <= set(self.isr)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKnown:
    """A cluster as one of its brokers knows it."""

    cluster_id: str
    controller: int  # id of a broker, or NOBODY
    brokers: Mapping[int, BrokerInfo]
    partitions: tuple[PartitionKnown, ...]

    def partition(self, topic: str, index: int) -> PartitionKnown | None:
        wanted = (topic, index)
        return next((p for p in self.partitions if (p.topic, p.partition) == wanted), None)

    def trouble(self, wanted: Iterable[int] = ()) -> str:
        """What keeps it from being healthy with at least the `wanted` brokers; empty if nothing does."""
        missing = sorted(set(wanted) - set(self.brokers))
        if missing:
            return f"not there: broker {', '.join(map(str, missing))}"
        if self.controller == NOBODY:
            return "there is no controller"
        for partition in self.partitions:
            if not partition.is_led:
                return f"{partition.topic}-{partition.partition} has no leader"
            if partition.is_under_replicated:
                behind = ", ".join(map(str, sorted(set(partition.replicas) - set(partition.isr))))
                return f"{partition.topic}-{partition.partition} is not in sync on broker {behind}"
        return ""


class ReplicaKnown(NamedTuple):
    """What a broker has of a partition."""

    size_bytes: int
    lag: int  # records behind the leader


class Inquiry:
    """A connection to the broker at `address` (host:port). `ClientError` if it can not be reached."""

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        self._connection = Connection(
            parse_bootstrap(address)[0],
            client_id="penstock-inquiry",
            timeout_ms=max(1, int(timeout_s * 1000)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def cluster(self) -> ClusterKnown:
        """Everything it knows of brokers and partitions."""

        def build(new: Messages) -> Any:
            return new(
                "MetadataRequest",
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )

        answer = self._connection.call(METADATA, build)
        return ClusterKnown(
            cluster_id=answer.cluster_id or "",
            controller=answer.controller_id,
            brokers=self._registered(),
            partitions=tuple(
                PartitionKnown(
                    topic=topic.name,
                    partition=item.partition_index,
                    leader=item.leader_id if item.error_code is ErrorCode.none else NOBODY,
                    leader_epoch=getattr(item, "leader_epoch", -1),
                    replicas=tuple(item.replica_nodes),
                    isr=tuple(item.isr_nodes),
                )
                for topic in sorted(answer.topics, key=lambda topic: topic.name or "")
                for item in sorted(topic.partitions, key=lambda item: item.partition_index)
            ),
        )

    def _registered(self) -> dict[int, BrokerInfo]:
        """Who is there. Metadata names brokers for a while longer, for clients that hold on to them."""
        answer = self._connection.call(
            _DESCRIBE_CLUSTER,
            lambda new: new("DescribeClusterRequest", include_cluster_authorized_operations=False),
        )
        return {
            item.broker_id: BrokerInfo(
                id=item.broker_id, host=item.host, port=item.port, rack=item.rack or None
            )
            for item in answer.brokers
        }

    def replicas(self) -> dict[TopicPartition, ReplicaKnown]:
        """The partitions that this broker has on its disk, with how far each is behind its leader."""
        answer = self._connection.call(
            DESCRIBE_LOG_DIRS, lambda new: new("DescribeLogDirsRequest", topics=None)
        )
        return {
            TopicPartition(topic.name, item.partition_index): ReplicaKnown(
                item.partition_size, max(0, item.offset_lag)
            )
            for directory in answer.results
            if directory.error_code is ErrorCode.none
            for topic in directory.topics
            for item in topic.partitions
            if not item.is_future_key
        }

    def min_isr(self, topics: Collection[str]) -> dict[str, int]:
        """`min.insync.replicas` of each topic that is there."""

        def build(new: Messages) -> Any:
            resources = tuple(
                new(
                    "DescribeConfigsResource",
                    resource_type=_TOPIC,
                    resource_name=topic,
                    configuration_keys=(_MIN_ISR,),
                )
                for topic in topics
            )
            return new(
                "DescribeConfigsRequest",
                resources=resources,
                include_synonyms=False,
                include_documentation=False,
            )

        if not topics:
            return {}
        answer = self._connection.call(_DESCRIBE_CONFIGS, build)
        return {
            result.resource_name: int(setting.value)
            for result in answer.results
            if result.error_code is ErrorCode.none
            for setting in result.configs
            if setting.name == _MIN_ISR
        }


def ask(address: str, *, timeout_s: float = 5.0) -> ClusterKnown:
    """What the broker at `address` knows now. `ClientError` if it does not tell."""
    with Inquiry(address, timeout_s=timeout_s) as inquiry:
        return inquiry.cluster()


def address_of(broker: BrokerInfo) -> str:
    """`host:port`, with brackets where they are needed."""
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"
