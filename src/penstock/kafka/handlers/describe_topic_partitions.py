"""DescribeTopicPartitions: topics and their partitions, a page at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.kafka.handlers.metadata import ALL_ON_TOPIC, PartitionMetadata, describe_partition

if TYPE_CHECKING:
    from penstock.broker import Broker

PARTITIONS_PER_PAGE_MAX: Final = 2_000  # Kafka's max.request.partition.size.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a page ends, and the next begins. Topics come in the order of their names."""

    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequest:
    topics: tuple[TopicAsked, ...]  # empty: all
    response_partition_limit: int
    cursor: Cursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str | None
    error_code: ErrorCode = ErrorCode.none
    topic_id: uuid.UUID | None = None
    is_internal: bool = False
    partitions: Sequence[PartitionMetadata] = ()
    topic_authorized_operations: int = ALL_ON_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponse:
    topics: Sequence[TopicResult]
    next_cursor: Cursor | None = None


def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    names = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is not None:
        _check_cursor(cursor, names)
    remaining = max(min(PARTITIONS_PER_PAGE_MAX, request.response_partition_limit), 1)
    first_name = "" if cursor is None else cursor.topic_name
    topics: list[TopicResult] = []
    for name in sorted(names or {topic.name for topic in broker.topics.all()}):
        if name < first_name:
            continue
        if not remaining:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        result, next_index = _describe(broker, name, start, remaining)
        topics.append(result)
        remaining -= len(result.partitions)
        if next_index is not None:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=next_index)
            )
    return DescribeTopicPartitionsResponse(topics=topics)


def on_error(
    request: DescribeTopicPartitionsRequest, code: ErrorCode, message: str
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[TopicResult(name=topic.name, error_code=code) for topic in request.topics]
    )


def _check_cursor(cursor: Cursor, names: set[str]) -> None:
    if names and cursor.topic_name not in names:
        raise ApiError(
            ErrorCode.invalid_request, f"the cursor's topic '{cursor.topic_name}' is not asked for"
        )
    if cursor.partition_index < 0:
        raise ApiError(ErrorCode.invalid_request, f"a cursor at partition {cursor.partition_index}")


def _describe(broker: Broker, name: str, start: int, limit: int) -> tuple[TopicResult, int | None]:
    """Up to `limit` partitions of the topic from `start`, and the next one if some are left."""
    try:
        topic = broker.topics.require(name)
    except ApiError as error:
        return TopicResult(name=name, error_code=error.code), None
    end = min(start + limit, len(topic.partitions))
    result = TopicResult(
        name=name,
        topic_id=topic.id,
        partitions=[describe_partition(partition) for partition in topic.partitions[start:end]],
    )
    return result, end if end < len(topic.partitions) else None


API = Api("describe_topic_partitions", DescribeTopicPartitionsRequest, handle, on_error=on_error)
