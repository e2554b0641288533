"""OffsetFetch: the offsets a group has committed; from version 8 of many groups, by id from 10."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ApiError, ErrorCode
from penstock.groups import CommittedOffset, OffsetTable
from penstock.kafka.api import Api, RequestContext, read_request

if TYPE_CHECKING:
    from penstock.broker import Broker

FIRST_VERSION_WITH_GROUP_ERROR: Final = 2
FIRST_VERSION_WITH_GROUPS: Final = 8
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str = ""  # up to version 9
    topic_id: uuid.UUID | None = None  # from version 10
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAsked:
    group_id: str
    topics: tuple[TopicAsked, ...] | None  # None: all that the group has; from version 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    groups: tuple[GroupAsked, ...]
    # From version 7. Offsets are only unstable in transactions, and there are none yet.
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_index: int
    committed_offset: int = NO_OFFSET
    committed_leader_epoch: int = -1  # from version 5
    metadata: str | None = ""
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str = ""
    topic_id: uuid.UUID | None = None
    partitions: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The answer for one group; up to version 7, it is the whole response."""

    group_id: str
    topics: Sequence[TopicResult]
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    groups: Sequence[GroupResult]


def upgrade(entity: Any, version: int) -> OffsetFetchRequest:
    if version >= FIRST_VERSION_WITH_GROUPS:
        return read_request(OffsetFetchRequest, entity)
    return OffsetFetchRequest(groups=(read_request(GroupAsked, entity),))


def downgrade(response: OffsetFetchResponse, version: int) -> Any:
    return response if version >= FIRST_VERSION_WITH_GROUPS else response.groups[0]


def handle(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    version = context.api_version
    return OffsetFetchResponse(
        groups=[_group_result(broker, asked, version) for asked in request.groups]
    )


def _group_result(broker: Broker, asked: GroupAsked, version: int) -> GroupResult:
    try:
        offsets = broker.groups.of(asked.group_id).offsets(asked.group_id)
    except ApiError as error:
        code = error.code
        if code is ErrorCode.coordinator_not_available:
            code = ErrorCode.not_coordinator  # older Java consumers give up on the other here
        return _failed(asked, code, version)
    has_ids = version >= FIRST_VERSION_WITH_TOPIC_IDS
    if asked.topics is None:
        topics = _all_topics(broker, offsets, has_ids)
    else:
        topics = [_topic_result(broker, offsets, topic, has_ids) for topic in asked.topics]
    return GroupResult(group_id=asked.group_id, topics=topics)


def _all_topics(broker: Broker, offsets: OffsetTable, has_ids: bool) -> list[TopicResult]:
    results = []
    for name in offsets.topics():
        topic = broker.topics.get(name) if has_ids else None
        if has_ids and topic is None:
            continue  # a topic that is being deleted has no id to give
        results.append(
            TopicResult(
                name=name,
                topic_id=None if topic is None else topic.id,
                partitions=[_found(p, kept) for p, kept in offsets.of_topic(name).items()],
            )
        )
    return results


def _topic_result(
    broker: Broker, offsets: OffsetTable, asked: TopicAsked, has_ids: bool
) -> TopicResult:
    name = asked.name
    if has_ids:
        topic = None if asked.topic_id is None else broker.topics.get_by_id(asked.topic_id)
        if topic is None:
            return TopicResult(
                topic_id=asked.topic_id,
                partitions=_errors(asked.partition_indexes, ErrorCode.unknown_topic_id),
            )
        name = topic.name
    return TopicResult(
        name=name,
        topic_id=asked.topic_id,
        partitions=[_found(p, offsets.get(name, p)) for p in asked.partition_indexes],
    )


def _found(partition: int, kept: CommittedOffset | None) -> PartitionResult:
    if kept is None:
        return PartitionResult(partition_index=partition)
    return PartitionResult(
        partition_index=partition,
        committed_offset=kept.offset,
        committed_leader_epoch=kept.leader_epoch,
        metadata=kept.metadata,
    )


def _errors(partitions: Iterable[int], code: ErrorCode) -> list[PartitionResult]:
    return [PartitionResult(partition_index=index, error_code=code) for index in partitions]


def _failed(asked: GroupAsked, code: ErrorCode, version: int) -> GroupResult:
    if version >= FIRST_VERSION_WITH_GROUP_ERROR:
        return GroupResult(group_id=asked.group_id, topics=(), error_code=code)
    return GroupResult(
        group_id=asked.group_id,
        topics=[
            TopicResult(name=topic.name, partitions=_errors(topic.partition_indexes, code))
            for topic in asked.topics or ()
        ],
    )


def on_error(request: OffsetFetchRequest, code: ErrorCode, message: str) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[_failed(asked, code, FIRST_VERSION_WITH_GROUP_ERROR) for asked in request.groups]
    )


API = Api(
    "offset_fetch",
    OffsetFetchRequest,
    handle,
    on_error=on_error,
    upgrade=upgrade,
    downgrade=downgrade,
)
