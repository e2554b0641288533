"""OffsetForLeaderEpoch: where a leader epoch ended, so that a reader can tell if its log diverged."""

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
    partition: int
    leader_epoch: int
    current_leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    topic: str
    partitions: tuple[PartitionAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    topics: tuple[TopicAsked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    partition: int
    error_code: ErrorCode = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    topic: str
    partitions: Sequence[EpochEnd]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    topics: Sequence[TopicResult]


def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            TopicResult(
                topic=topic.topic,
                partitions=[_answer(broker, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def on_error(
    request: OffsetForLeaderEpochRequest, code: ErrorCode, message: str
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            TopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEnd(partition=asked.partition, error_code=code)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(broker: Broker, topic: str, asked: PartitionAsked) -> EpochEnd:
    try:
        partition = broker.topics.partition(topic, asked.partition)
        partition.check_leader_epoch(asked.current_leader_epoch)
        log = partition.log
        if asked.leader_epoch == log.leader_epoch:  # which may not have a record yet
            epoch, end_offset = asked.leader_epoch, log.log_end_offset
        else:
            epoch, end_offset = log.end_offset_for_epoch(asked.leader_epoch)
    except ApiError as error:
        return EpochEnd(partition=asked.partition, error_code=error.code)
    return EpochEnd(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


API = Api("offset_for_leader_epoch", OffsetForLeaderEpochRequest, handle, on_error=on_error)
