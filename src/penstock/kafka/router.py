"""From a request's bytes to its answer: header, handler, and every error in its place."""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from penstock.broker import Broker
from penstock.broker.topics import Partition
from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.kafka.api import Answer, Api, ApiBase, Caller, RawApi, RequestContext
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.handlers import REGISTRY
from penstock.kafka.handlers.api_versions import unsupported_version_body
from penstock.kafka.primitives import MALFORMED, skip_tags
from penstock.kafka.primitives import Topic as TopicKey
from penstock.kafka.short_timer import ShortTimer
from penstock.kafka.standing_reader import StandingPositions
from penstock.metadata.errors import MetadataError

logger = logging.getLogger(__name__)

_HEADER: Final = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_API_VERSIONS: Final = 18

HEADER_V0: Final = b""  # what stands between the correlation id and the body of a response
HEADER_V1: Final = b"\x00"


class Route(NamedTuple):
    """Where a version of an API goes, and what its headers look like."""

    api: ApiBase
    is_flexible: bool
    response_header: bytes


class Dispatched(NamedTuple):
    """What a request came to, and what stands before its answer on the wire."""

    correlation_id: int
    response_header: bytes  # what follows the correlation id
    answer: Answer
    is_pipelined: bool = False  # whether the next request may begin before this one is answered


class KafkaDoor:
    """The Kafka front door's own state, one for all its connections."""

    def __init__(self, broker: Broker, registry: Mapping[int, ApiBase] = REGISTRY) -> None:
        self.broker = broker
        self.fetch_sessions = FetchSessions(broker.config.fetch_sessions_max, broker.clock)
        self.deletions = 0  # of topics, so far: what readers hold may be void when it changes
        broker.topics.on_delete(self._on_delete)
        self.short_timer = ShortTimer()
        self.standing_positions = StandingPositions()
        self.waiting_fetches: set[Callable[[], None]] = set()  # each answers one fetch at once
        self._tasks: set[asyncio.Task[bytes]] = (
            set()
        )  # requests begun, their connections open or not
        self._registry = registry
        self._routes: dict[tuple[int, int], Route] = {}  # filled as they are asked for

    def resolve(self, key: tuple[TopicKey, int]) -> Partition | ApiError:
        """The partition that a fetch names, or the error for it."""
        name, index = key
        if isinstance(name, str):
            topic = self.broker.topics.get(name)
            unknown = ErrorCode.unknown_topic_or_partition
        else:
            topic = self.broker.topics.get_by_id(name)
            unknown = ErrorCode.unknown_topic_id
        if topic is None:
            return ApiError(unknown, f"there is no topic {name}")
        if not 0 <= index < len(topic.partitions):
            return ApiError(ErrorCode.unknown_topic_or_partition, f"no partition {name}-{index}")
        return topic.partitions[index]

    def _on_delete(self, _topic: str) -> None:
        self.deletions += 1

    def cancel_requests(self) -> None:
        """Give up the requests that are not answered yet: the broker stops under them."""
        for task in self._tasks:
            task.cancel()

    def answer_waiting_fetches(self) -> None:
        """Let nobody wait for records any longer: the broker stops."""
        for answer in list(self.waiting_fetches):
            answer()

    def dispatch(self, frame: memoryview, caller: Caller) -> Dispatched:
        """Begin one request. `ProtocolError` if it is none that can be answered. `frame` is not kept."""
        try:
            key, version, correlation_id, client_id_size = _HEADER.unpack_from(frame, 0)
            route = self._routes.get((key, version)) or self._find_route(key, version)
            if route is None:
                return Dispatched(correlation_id, HEADER_V0, unsupported_version_body())
            api, is_flexible, response_header = route
            body = 10 + max(client_id_size, 0)
            if body > len(frame) or client_id_size < -1:
                raise IndexError("the client id ends too early")
            if is_flexible:
                body = skip_tags(frame, body)
            if type(api) is RawApi:
                request = api.decode(version, frame, body)
        except MALFORMED as error:
            raise ProtocolError(f"a malformed request: {error}") from error
        if type(api) is RawApi:
            answer = api.answer(self, version, request, caller)
            return Dispatched(correlation_id, response_header, answer, api.is_pipelined)
        assert isinstance(api, Api)
        client_id = _client_id(frame, client_id_size)
        context = RequestContext(api_version=version, client_id=client_id, caller=caller)
        answer = self._answer(api, bytes(frame[body:]), context)
        return Dispatched(correlation_id, response_header, answer)

    def _find_route(self, key: int, version: int) -> Route | None:
        """The handler for a version not asked for before; None for an ApiVersions we do not know.

        Made on first use: loading the schemas of every version would take most of a start.
        """
        api = self._registry.get(key)
        if api is None:
            raise ProtocolError(f"API key {key} is not served")
        if version not in api.versions:
            if key == _API_VERSIONS:
                return None
            first, last = api.versions[0], api.versions[-1]
            raise ProtocolError(
                f"{api.name} version {version} is not served: {first} to {last} are"
            )
        is_flexible = api.is_flexible(version)
        # ApiVersions is answered with the old header always: the client may not know the new one.
        has_new_header = is_flexible and key != _API_VERSIONS
        route = Route(api, is_flexible, HEADER_V1 if has_new_header else HEADER_V0)
        self._routes[key, version] = route
        return route

    def _answer(self, api: Api[Any], body: bytes, context: RequestContext) -> Answer:
        try:
            request = api.decode(context.api_version, body)
        except Exception as error:  # whatever a decoder makes of garbage
            raise ProtocolError(
                f"a malformed {api.name} request, version {context.api_version}: {error!r}"
            ) from error
        try:
            response = api.handle(self.broker, request, context)
        except Exception as error:
            response = self._failed(api, request, error)
        if inspect.iscoroutine(response):
            task = asyncio.ensure_future(self._finish(api, request, context, response))
            self._tasks.add(task)  # for the event loop itself does not hold on to it
            task.add_done_callback(self._tasks.discard)
            return task
        return api.encode(context.api_version, response)

    async def _finish(
        self, api: Api[Any], request: Any, context: RequestContext, coming: Coroutine[Any, Any, Any]
    ) -> bytes:
        try:
            response = await coming
        except Exception as error:
            response = self._failed(api, request, error)
        return api.encode(context.api_version, response)

    @staticmethod
    def _failed(api: Api[Any], request: Any, error: Exception) -> Any:
        """The answer that tells of an error; one we did not foresee is logged and told, too."""
        if isinstance(error, ApiError):
            code, message = error.code, error.message
        elif isinstance(error, MetadataError):
            code, message = ErrorCode.coordinator_not_available, str(error)
            logger.error("the metadata store failed api=%s error=%s", api.name, error)
        else:
            code, message = (
                ErrorCode.unknown_server_error,
                "an unexpected error; see the broker's log",
            )
            logger.error("a handler failed api=%s", api.name, exc_info=error)
        if api.on_error is None:
            raise ProtocolError(f"{api.name} failed: {message}") from error
        return api.on_error(request, code, message)


def _client_id(frame: memoryview, size: int) -> str | None:
    return None if size < 0 else str(frame[10 : 10 + size], "utf-8", "replace")
