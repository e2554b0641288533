"""DeleteRecords: move the start of partitions up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAsked:
    partition_index: int
    offset: int  # the first that stays; -1: the high watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str
    partitions: tuple[PartitionAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    topics: tuple[TopicAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    partitions: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    topics: Sequence[TopicResult]


async def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """One after the other: each is a small sync in the log store's thread."""
    topics = []
    for topic in request.topics:
        results = [await _delete(broker, topic.name, asked) for asked in topic.partitions]
        topics.append(TopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def on_error(request: DeleteRecordsRequest, code: ErrorCode, message: str) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            TopicResult(
                name=topic.name,
                partitions=[
                    PartitionResult(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _delete(broker: Broker, name: str, asked: PartitionAsked) -> PartitionResult:
    try:
        log = broker.topics.partition(name, asked.partition_index).sound_log()
        start = await broker.logs.delete_records_before(log, asked.offset)
    except ApiError as error:
        return PartitionResult(partition_index=asked.partition_index, error_code=error.code)
    return PartitionResult(partition_index=asked.partition_index, low_watermark=start)


API = Api("delete_records", DeleteRecordsRequest, handle, on_error=on_error)
