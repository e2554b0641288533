"""AlterPartitionReassignments: begin to move partitions to other brokers, or cancel it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAsked:
    partition_index: int
    replicas: tuple[int, ...] | None  # null: cancel the move under way


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str
    partitions: tuple[PartitionAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int
    topics: tuple[TopicAsked, ...]
    allow_replication_factor_change: bool = True  # from version 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    partitions: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    responses: Sequence[TopicResult]
    allow_replication_factor_change: bool = True
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Answered when the moves have begun, durably; the data follows."""
    times_named = Counter(partition for partition, _ in _asked(request))
    moved = await broker.topics.within(
        request.timeout_ms / 1000,
        "the moves were not written",
        broker.topics.move(
            {p: target for p, target in _asked(request) if times_named[p] == 1},
            may_change_count=request.allow_replication_factor_change,
        ),
    )
    twice = ApiError(ErrorCode.invalid_request, "the partition is named more than once")

    def result(topic: str, asked: PartitionAsked) -> PartitionResult:
        error = moved.get(TopicPartition(topic, asked.partition_index), twice)
        if error is None:
            return PartitionResult(partition_index=asked.partition_index)
        return PartitionResult(
            partition_index=asked.partition_index,
            error_code=error.code,
            error_message=error.message,
        )

    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            TopicResult(
                name=topic.name, partitions=[result(topic.name, p) for p in topic.partitions]
            )
            for topic in request.topics
        ],
    )


def on_error(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, message: str
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        error_message=message,
        responses=[],
    )


def _asked(
    request: AlterPartitionReassignmentsRequest,
) -> Iterator[tuple[TopicPartition, tuple[int, ...] | None]]:
    for topic in request.topics:
        for asked in topic.partitions:
            yield TopicPartition(topic.name, asked.partition_index), asked.replicas


API = Api(
    "alter_partition_reassignments", AlterPartitionReassignmentsRequest, handle, on_error=on_error
)
