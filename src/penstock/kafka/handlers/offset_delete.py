"""OffsetDelete: forget a group's offsets of topics that it no longer consumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAsked:
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str
    partitions: tuple[PartitionAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    group_id: str
    topics: tuple[TopicAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    partitions: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    error_code: ErrorCode = ErrorCode.none  # of the group; then there are no topics
    topics: Sequence[TopicResult] = ()


async def handle(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    asked = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        if (found := broker.topics.get(topic.name)) is not None
        for partition in topic.partitions
        if 0 <= partition.partition_index < len(found.partitions)
    ]
    errors = await broker.groups.of(request.group_id).delete_offsets(request.group_id, asked)
    unknown = ErrorCode.unknown_topic_or_partition
    return OffsetDeleteResponse(
        topics=[
            TopicResult(
                name=topic.name,
                partitions=[
                    PartitionResult(
                        partition_index=partition.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, partition.partition_index), unknown
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def on_error(request: OffsetDeleteRequest, code: ErrorCode, message: str) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)


API = Api("offset_delete", OffsetDeleteRequest, handle, on_error=on_error)
