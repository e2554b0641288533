"""CreatePartitions: more partitions for topics that exist."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker import topic_rules as rules
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGrowth:
    name: str
    count: int  # of partitions that the topic is to have
    assignments: tuple[Assignment, ...] | None  # of those added


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    topics: tuple[TopicGrowth, ...]
    validate_only: bool
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    results: Sequence[TopicResult]


async def handle(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    wanted = [topic for topic in request.topics if times_named[topic.name] == 1]
    rules.check_request_size(_added(broker, wanted))
    grown = await asyncio.gather(*(_grow(broker, topic, request) for topic in wanted))
    repeated = [
        TopicResult(
            name=name,
            error_code=ErrorCode.invalid_request,
            error_message="the topic is named more than once in the request",
        )
        for name, times in times_named.items()
        if times > 1
    ]
    return CreatePartitionsResponse(results=[*grown, *repeated])


def on_error(
    request: CreatePartitionsRequest, code: ErrorCode, message: str
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            TopicResult(name=name, error_code=code, error_message=message)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )


def _added(broker: Broker, wanted: Sequence[TopicGrowth]) -> Iterator[int]:
    for growth in wanted:
        topic = broker.topics.get(growth.name)
        if topic is not None:
            yield max(growth.count - len(topic.partitions), 0)


async def _grow(
    broker: Broker, growth: TopicGrowth, request: CreatePartitionsRequest
) -> TopicResult:
    assignments = growth.assignments
    try:
        await broker.topics.within(
            request.timeout_ms / 1000,
            f"the new partitions of '{growth.name}' were not ready",
            broker.topics.grow(
                broker.topics.require(growth.name),
                growth.count,
                assignments=None if assignments is None else [a.broker_ids for a in assignments],
                validate_only=request.validate_only,
            ),
        )
    except ApiError as error:
        return TopicResult(name=growth.name, error_code=error.code, error_message=error.message)
    return TopicResult(name=growth.name)


API = Api("create_partitions", CreatePartitionsRequest, handle, on_error=on_error)
