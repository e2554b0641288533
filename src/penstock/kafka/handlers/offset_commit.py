"""OffsetCommit: a group's place in its partitions, durable before it is answered."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, ErrorCode
from penstock.groups import NewOffset
from penstock.kafka.api import Api, RequestContext
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Topic

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1  # from version 6
    committed_metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    name: str = ""  # up to version 9
    topic_id: uuid.UUID | None = None  # from version 10
    partitions: tuple[PartitionOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None  # from version 7
    retention_time_ms: int = -1  # versions 2 to 4; -1: as the broker is set
    topics: tuple[TopicOffsets, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    topic_id: uuid.UUID | None
    partitions: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    topics: Sequence[TopicResult]


async def handle(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    has_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    topics = [_find(broker, asked, has_ids) for asked in request.topics]
    offsets: dict[TopicPartition, NewOffset] = {}
    for asked, topic in zip(request.topics, topics, strict=True):
        if topic is None:
            continue
        for partition in asked.partitions:
            if 0 <= partition.partition_index < len(topic.partitions):
                offsets[TopicPartition(topic.name, partition.partition_index)] = NewOffset(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata,
                )
    errors = await _commit(broker, request, context, offsets) if offsets else {}
    unknown = ErrorCode.unknown_topic_id if has_ids else ErrorCode.unknown_topic_or_partition
    return OffsetCommitResponse(
        topics=[
            _result(asked, topic.name, errors) if topic is not None else _failed(asked, unknown)
            for asked, topic in zip(request.topics, topics, strict=True)
        ]
    )


def _find(broker: Broker, asked: TopicOffsets, has_ids: bool) -> Topic | None:
    if not has_ids:
        return broker.topics.get(asked.name)
    return None if asked.topic_id is None else broker.topics.get_by_id(asked.topic_id)


async def _commit(
    broker: Broker,
    request: OffsetCommitRequest,
    context: RequestContext,
    offsets: Mapping[TopicPartition, NewOffset],
) -> Mapping[TopicPartition, ErrorCode]:
    retention_ms = request.retention_time_ms
    try:
        return await broker.groups.of(request.group_id).commit_offsets(
            request.group_id,
            offsets,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id_or_member_epoch,
            retention_ms=retention_ms if retention_ms >= 0 else None,
        )
    except ApiError as error:
        code = error.code
        if (
            code is ErrorCode.group_id_not_found
            and context.api_version < FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND
        ):
            code = ErrorCode.illegal_generation
        return dict.fromkeys(offsets, code)


def _result(
    asked: TopicOffsets, name: str, errors: Mapping[TopicPartition, ErrorCode]
) -> TopicResult:
    """A partition that the topic does not have was not committed, and has no outcome."""
    unknown = ErrorCode.unknown_topic_or_partition
    return TopicResult(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[
            PartitionResult(
                partition_index=partition.partition_index,
                error_code=errors.get(TopicPartition(name, partition.partition_index), unknown),
            )
            for partition in asked.partitions
        ],
    )


def _failed(asked: TopicOffsets, code: ErrorCode) -> TopicResult:
    return TopicResult(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[
            PartitionResult(partition_index=partition.partition_index, error_code=code)
            for partition in asked.partitions
        ],
    )


def on_error(request: OffsetCommitRequest, code: ErrorCode, message: str) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_failed(asked, code) for asked in request.topics])


API = Api("offset_commit", OffsetCommitRequest, handle, on_error=on_error)
