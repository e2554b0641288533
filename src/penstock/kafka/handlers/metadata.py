"""Metadata: the brokers, the topics asked for, and who leads each partition."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.topic_rules import check_name
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.kafka.handlers.describe_cluster import ALL_ON_CLUSTER, NOT_ASKED, bits

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Partition, Topic

# What Kafka answers where nobody is refused anything: read, write, create, delete, alter, describe,
# describe configs, alter configs.
ALL_ON_TOPIC: Final = bits(3, 4, 5, 6, 7, 8, 10, 11)
FIRST_VERSION_WITH_TOPIC_IDS: Final = 12  # the field is there from 10, its use from 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    name: str | None
    topic_id: uuid.UUID | None = None  # from version 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    topics: tuple[TopicAsked, ...] | None  # null: all; in version 0 an empty array says so
    allow_auto_topic_creation: bool = True  # a choice from version 4
    include_cluster_authorized_operations: bool = False  # versions 8 to 10
    include_topic_authorized_operations: bool = False  # from version 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMetadata:
    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    error_code: ErrorCode
    name: str | None
    topic_id: uuid.UUID | None = None
    is_internal: bool = False
    partitions: Sequence[PartitionMetadata] = ()
    topic_authorized_operations: int = NOT_ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    brokers: Sequence[BrokerMetadata]
    cluster_id: str | None
    controller_id: int
    topics: Sequence[TopicMetadata]
    cluster_authorized_operations: int = NOT_ASKED
    error_code: ErrorCode = ErrorCode.none  # in version 13


async def handle(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse:
    asked = request.topics
    if asked is None or (not asked and context.api_version == 0):
        answers = [describe(topic, request) for topic in broker.topics.all()]
    else:
        _check_ids(asked, context.api_version)
        answers = await _describe_asked(broker, dict.fromkeys(asked), request)
    return MetadataResponse(
        brokers=[
            BrokerMetadata(node_id=info.id, host=info.host, port=info.port, rack=info.rack)
            for info in broker.brokers()
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=answers,
        cluster_authorized_operations=(
            ALL_ON_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def on_error(request: MetadataRequest, code: ErrorCode, message: str) -> MetadataResponse:
    return MetadataResponse(
        brokers=[],
        cluster_id=None,
        controller_id=-1,
        topics=[
            TopicMetadata(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ],
        error_code=code,
    )


def _check_ids(asked: Iterable[TopicAsked], version: int) -> None:
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return
    if any(topic.name is None or topic.topic_id is not None for topic in asked):
        raise ApiError(ErrorCode.invalid_request, f"version {version} can not ask by topic id")


async def _describe_asked(
    broker: Broker, asked: Iterable[TopicAsked], request: MetadataRequest
) -> list[TopicMetadata]:
    """In the order asked. Topics that need creating are created side by side."""
    answers: list[TopicMetadata] = []
    missing: dict[int, str] = {}  # place in the answer -> name
    for topic in asked:
        if topic.topic_id is not None:
            found = broker.topics.get_by_id(topic.topic_id)
        else:
            found = broker.topics.get(topic.name or "")
        if found is not None:
            answers.append(describe(found, request))
        elif topic.topic_id is not None:
            answers.append(
                TopicMetadata(
                    error_code=ErrorCode.unknown_topic_id, name=None, topic_id=topic.topic_id
                )
            )
        else:
            missing[len(answers)] = topic.name or ""
            answers.append(_unknown(topic.name or ""))
    if missing and request.allow_auto_topic_creation and broker.config.auto_create_topics:
        created = await asyncio.gather(*(_create(broker, n, request) for n in missing.values()))
        for place, answer in zip(missing, created, strict=True):
            answers[place] = answer
    return answers


async def _create(broker: Broker, name: str, request: MetadataRequest) -> TopicMetadata:
    try:
        return describe(await broker.topics.ensure(name), request)
    except ApiError as error:
        return TopicMetadata(error_code=error.code, name=name)


def _unknown(name: str) -> TopicMetadata:
    try:
        check_name(name)
    except ApiError as error:
        return TopicMetadata(error_code=error.code, name=name)
    return TopicMetadata(error_code=ErrorCode.unknown_topic_or_partition, name=name)


def describe(topic: Topic, request: MetadataRequest) -> TopicMetadata:
    return TopicMetadata(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        partitions=[describe_partition(partition) for partition in topic.partitions],
        topic_authorized_operations=(
            ALL_ON_TOPIC if request.include_topic_authorized_operations else NOT_ASKED
        ),
    )


def describe_partition(partition: Partition) -> PartitionMetadata:
    return PartitionMetadata(
        error_code=ErrorCode.none if partition.is_led else ErrorCode.leader_not_available,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=partition.offline_replicas,
    )


API = Api("metadata", MetadataRequest, handle, on_error=on_error)
