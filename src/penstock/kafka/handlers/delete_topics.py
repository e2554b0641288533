"""DeleteTopics: by name, and from version 6 by name or id."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext, read_request

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Topic

FIRST_VERSION_WITH_IDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNamed:
    name: str | None
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    topics: tuple[TopicNamed, ...]
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str | None
    topic_id: uuid.UUID | None = None
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    responses: Sequence[TopicResult]


def upgrade(entity: Any, version: int) -> DeleteTopicsRequest:
    """Versions below 6 have a plain list of names."""
    if version >= FIRST_VERSION_WITH_IDS:
        return read_request(DeleteTopicsRequest, entity)
    return DeleteTopicsRequest(
        topics=tuple(TopicNamed(name=name) for name in entity.topic_names),
        timeout_ms=entity.timeout // datetime.timedelta(milliseconds=1),
    )


async def handle(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    times_named = Counter(request.topics)
    found: dict[Topic, TopicNamed] = {}
    answers: list[TopicResult] = []
    for named, times in times_named.items():
        try:
            if times > 1:
                raise ApiError(ErrorCode.invalid_request, "the topic is named more than once")
            topic = _find(broker, named)
            if topic in found:
                raise ApiError(ErrorCode.invalid_request, "the topic is named by name and by id")
            found[topic] = named
        except ApiError as error:
            answers.append(_failed(named, error))
    deleted = await asyncio.gather(
        *(_delete(broker, topic, request.timeout_ms / 1000) for topic in found)
    )
    return DeleteTopicsResponse(responses=[*deleted, *answers])


def on_error(request: DeleteTopicsRequest, code: ErrorCode, message: str) -> DeleteTopicsResponse:
    error = ApiError(code, message)
    return DeleteTopicsResponse(responses=[_failed(named, error) for named in request.topics])


def _failed(named: TopicNamed, error: ApiError) -> TopicResult:
    return TopicResult(
        name=named.name,
        topic_id=named.topic_id,
        error_code=error.code,
        error_message=error.message,
    )


def _find(broker: Broker, named: TopicNamed) -> Topic:
    if (named.name is None) == (named.topic_id is None):
        raise ApiError(ErrorCode.invalid_request, "name either the topic or its id, and not both")
    if named.topic_id is None:
        assert named.name is not None
        return broker.topics.require(named.name)
    topic = broker.topics.get_by_id(named.topic_id)
    if topic is None:
        raise ApiError(ErrorCode.unknown_topic_id, "there is no topic with this id")
    return topic


async def _delete(broker: Broker, topic: Topic, timeout_s: float) -> TopicResult:
    try:
        await broker.topics.within(
            timeout_s, f"topic '{topic.name}' was not deleted", broker.topics.delete(topic)
        )
    except ApiError as error:
        return _failed(TopicNamed(name=topic.name, topic_id=topic.id), error)
    return TopicResult(name=topic.name, topic_id=topic.id)


API = Api("delete_topics", DeleteTopicsRequest, handle, on_error=on_error, upgrade=upgrade)
