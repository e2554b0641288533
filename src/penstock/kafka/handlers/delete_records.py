"""DeleteRecords: move the start of partitions up."""

from __future__ import annotations

import asyncio
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
    timeout_ms: int = 30_000


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
    """Partitions side by side: each is a small sync in the log store's thread, then waits for others.

    The live replicas in sync have followed when it is answered: whoever leads next must not show what
    was deleted. They keep it as well as what they fetch, without a sync of its own.
    """
    timeout_s = request.timeout_ms / 1000
    return DeleteRecordsResponse(
        topics=[
            TopicResult(name=topic.name, partitions=results)
            for topic, results in zip(
                request.topics,
                await asyncio.gather(*(_delete_all(broker, t, timeout_s) for t in request.topics)),
                strict=True,
            )
        ]
    )


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


async def _delete_all(broker: Broker, topic: TopicAsked, timeout_s: float) -> list[PartitionResult]:
    return await asyncio.gather(
        *(_delete(broker, topic.name, asked, timeout_s) for asked in topic.partitions)
    )


async def _delete(
    broker: Broker, name: str, asked: PartitionAsked, timeout_s: float
) -> PartitionResult:
    try:
        partition = broker.topics.partition(name, asked.partition_index)
        start = await broker.logs.delete_records_before(partition.sound_log(), asked.offset)
        await partition.until_logs_begin_at(start, timeout_s)
    except ApiError as error:
        return PartitionResult(partition_index=asked.partition_index, error_code=error.code)
    return PartitionResult(partition_index=asked.partition_index, low_watermark=start)


API = Api("delete_records", DeleteRecordsRequest, handle, on_error=on_error)
