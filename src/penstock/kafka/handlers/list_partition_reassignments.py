"""ListPartitionReassignments: the partitions that are on their way to other brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    topics: tuple[TopicAsked, ...] | None  # null: all


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMoving:
    partition_index: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMoving:
    name: str
    partitions: Sequence[PartitionMoving]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    topics: Sequence[TopicMoving]
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """What is not being moved, or not there, is left out."""
    asked = None
    if request.topics is not None:
        asked = [
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        ]
    topics: defaultdict[str, list[PartitionMoving]] = defaultdict(list)
    for partition, move in sorted(broker.topics.moves(asked).items()):
        topics[partition.topic].append(
            PartitionMoving(
                partition_index=partition.partition,
                replicas=move.replicas,
                adding_replicas=move.adding,
                removing_replicas=move.removing,
            )
        )
    return ListPartitionReassignmentsResponse(
        topics=[TopicMoving(name=name, partitions=moving) for name, moving in topics.items()]
    )


def on_error(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, message: str
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(topics=[], error_code=code, error_message=message)


API = Api(
    "list_partition_reassignments", ListPartitionReassignmentsRequest, handle, on_error=on_error
)
