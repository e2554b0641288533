"""DescribeProducers: the idempotent producers that a partition remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest:
    topics: tuple[TopicAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int = -1  # of transactions
    current_txn_start_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    active_producers: Sequence[Producer] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    partitions: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    topics: Sequence[TopicResult]


def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResult(
                name=topic.name,
                partitions=[_describe(broker, topic.name, i) for i in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def on_error(
    request: DescribeProducersRequest, code: ErrorCode, message: str
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResult(
                name=topic.name,
                partitions=[
                    PartitionResult(partition_index=i, error_code=code, error_message=message)
                    for i in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(broker: Broker, name: str, index: int) -> PartitionResult:
    try:
        broker.topics.require(name)
        producers = broker.topics.partition(name, index).log.active_producers()
    except ApiError as error:
        return PartitionResult(
            partition_index=index, error_code=error.code, error_message=error.message
        )
    return PartitionResult(
        partition_index=index,
        active_producers=[
            Producer(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
            )
            for producer in producers
        ],
    )


API = Api("describe_producers", DescribeProducersRequest, handle, on_error=on_error)
