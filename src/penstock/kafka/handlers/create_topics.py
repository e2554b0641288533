"""CreateTopics: new topics, each with its own answer."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker import topic_rules as rules
from penstock.broker.topic_configs import describe_topic
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    partition_index: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[Assignment, ...]
    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    topics: tuple[NewTopic, ...]
    validate_only: bool
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInForce:
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_id: uuid.UUID | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Sequence[ConfigInForce] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    topics: Sequence[TopicResult]


async def handle(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Topics are created side by side, so that they share the metadata store's syncs."""
    times_named = Counter(topic.name for topic in request.topics)
    wanted = [topic for topic in request.topics if times_named[topic.name] == 1]
    rules.check_request_size(_partition_count(broker, topic) for topic in wanted)
    created = await asyncio.gather(*(_create(broker, topic, request) for topic in wanted))
    repeated = [
        TopicResult(
            name=name,
            error_code=ErrorCode.invalid_request,
            error_message="the topic is named more than once in the request",
        )
        for name, times in times_named.items()
        if times > 1
    ]
    return CreateTopicsResponse(topics=[*created, *repeated])


def on_error(request: CreateTopicsRequest, code: ErrorCode, message: str) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            TopicResult(name=name, error_code=code, error_message=message)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )


def _partition_count(broker: Broker, topic: NewTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == rules.DEFAULT:
        return broker.config.default_partitions
    return max(topic.num_partitions, 0)


async def _create(broker: Broker, wanted: NewTopic, request: CreateTopicsRequest) -> TopicResult:
    try:
        topic = await broker.topics.within(
            request.timeout_ms / 1000,
            f"topic '{wanted.name}' was not ready",
            broker.topics.create(
                wanted.name,
                wanted.num_partitions,
                _overrides(wanted.configs),
                replication_factor=wanted.replication_factor,
                assignments=_assignments(wanted),
                validate_only=request.validate_only,
            ),
        )
    except ApiError as error:
        return TopicResult(name=wanted.name, error_code=error.code, error_message=error.message)
    return TopicResult(
        name=wanted.name,
        topic_id=None if request.validate_only else topic.id,
        num_partitions=topic.record.partition_count,
        replication_factor=topic.record.replication_factor,
        configs=_configs(broker, topic),
    )


def _overrides(configs: Iterable[Config]) -> dict[str, str]:
    overrides = {}
    for config in configs:
        if config.value is None:
            raise ApiError(ErrorCode.invalid_config, f"{config.name} is given no value")
        overrides[config.name] = config.value
    return overrides


def _assignments(topic: NewTopic) -> dict[int, tuple[int, ...]] | None:
    if not topic.assignments:
        return None
    if (topic.num_partitions, topic.replication_factor) != (rules.DEFAULT, rules.DEFAULT):
        raise ApiError(
            ErrorCode.invalid_request,
            "with a manual assignment, partition count and replication factor must be -1",
        )
    assignments = {item.partition_index: item.broker_ids for item in topic.assignments}
    if len(assignments) != len(topic.assignments):
        raise ApiError(
            ErrorCode.invalid_replica_assignment, "a partition is assigned more than once"
        )
    return assignments


def _configs(broker: Broker, topic: Topic) -> list[ConfigInForce]:
    return [
        ConfigInForce(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=False,
        )
        for entry in describe_topic(broker.config.topic_defaults, topic.overrides)
    ]


API = Api("create_topics", CreateTopicsRequest, handle, on_error=on_error)
