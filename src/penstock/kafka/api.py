"""What a handler is: a declaration plus one function.

Each file in `handlers/` ends with `API = Api(...)`: the API's name in the protocol, the request it
reads, and the function that answers. Versions are all those that kio knows; the registry in
`handlers/__init__.py` lists the handlers, and the answer to ApiVersions is derived from it.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import kio.index
import kio.serial
from kio.schema.index import api_key_map, schema_name_map

from penstock.kafka import messages
from penstock.kafka.vetting import vetted

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.kafka.fetch_codec import Part
    from penstock.kafka.librdkafka import Pace
    from penstock.kafka.router import KafkaDoor
    from penstock.kafka.standing_reader import StandingReader

RequestT = TypeVar("RequestT")

API_KEYS = {name: key for key, name in api_key_map.items()}


@dataclass(slots=True)
class Caller:
    """Who is at the other end of a connection. What is known of it grows with what it asks."""

    host: str
    socket: socket.socket | None = None
    pace: Pace | None = None  # for librdkafka
    standing: StandingReader | None = None  # of its fetches without a session

    def close(self) -> None:
        """It is gone."""
        if self.standing is not None:
            self.standing.close()
            self.standing = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Who asks, and in which version: made for every request."""

    api_version: int
    client_id: str | None
    caller: Caller


def known_versions(name: str) -> range:
    """The versions of an API that kio knows, which are all that we serve: consecutive ones."""
    known = sorted(schema_name_map[name])
    return range(known[0], known[-1] + 1)


class ApiBase:
    """What the router needs of any handler."""

    name: str

    @functools.cached_property
    def key(self) -> int:
        return API_KEYS[self.name]

    @functools.cached_property
    def versions(self) -> range:
        """Consecutive versions, oldest first, that this handler answers."""
        return known_versions(self.name)

    def is_flexible(self, version: int) -> bool:
        return bool(_request_type(self.key, version).__flexible__)


Answer: TypeAlias = "bytes | list[Part] | asyncio.Future[Any] | None"
"""What a request comes to: the body of its response, a promise of it, or nothing to send."""


class Unhurried(asyncio.Future[Any]):
    """A promise that waits only while its connection has nothing else to ask: then it is hurried."""

    def __init__(self, hurry: Callable[[], None]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.hurry = hurry  # answers at once


class RawApi(ApiBase):
    """A handler that reads and writes the wire itself, for the two hot APIs.

    `decode(version, data, position)` gets the whole request with the position of its body, and raises
    one of `MALFORMED` if it is none. `answer(door, version, request, caller)` may use the memory of `data`,
    which is the connection's own, until it returns.

    With `is_pipelined`, what an answer promises is done when `answer` returns, or is only a matter of
    waiting: the connection goes on to its next request. Without it, as with every `Api`, the next
    request is not begun before this one is answered, which is what Kafka's clients are promised.

    A request of our own, between brokers, has a `private_key`: one version, flexible, not advertised.
    """

    def __init__(
        self,
        name: str,
        decode: Callable[[int, memoryview, int], Any],
        answer: Callable[[KafkaDoor, int, Any, Caller], Answer],
        *,
        is_pipelined: bool = False,
        private_key: int | None = None,
    ) -> None:
        self.name = name
        self.decode = decode
        self.answer = answer
        self.is_pipelined = is_pipelined
        self._is_private = private_key is not None
        if private_key is not None:
            self.key = private_key
            self.versions = range(1)

    def is_flexible(self, version: int) -> bool:
        return self._is_private or super().is_flexible(version)


@dataclass(frozen=True, slots=True)
class Codec(Generic[RequestT]):
    """The messages of an API read and written by hand: much quicker than by kio's schemas.

    `decode(version, data, position)` raises one of `MALFORMED` for bytes that are no request.
    """

    decode: Callable[[int, memoryview, int], RequestT]
    encode: Callable[[int, Any], bytes]


class Api(ApiBase, Generic[RequestT]):
    """A handler for one API, in terms of our own message dataclasses.

    `handle(broker, request, context)` runs on the event loop and returns the response, or a coroutine
    that does. An `ApiError` it raises becomes the response that `on_error(request, code, message)` makes;
    a handler without `on_error` must answer its errors itself, field by field.

    `upgrade` is for versions whose request has another shape: it gets kio's entity and returns `request`.
    `downgrade` is for versions whose response has another shape: it gets our response and the version, and
    returns one whose dataclass fits that version. `codec` does without kio, for an API that is asked often.
    """

    def __init__(
        self,
        name: str,
        request: type[RequestT],
        handle: Callable[[Broker, RequestT, RequestContext], Any | Awaitable[Any]],
        *,
        on_error: Callable[[RequestT, Any, str], Any] | None = None,
        upgrade: Callable[[Any, int], RequestT] | None = None,
        downgrade: Callable[[Any, int], Any] | None = None,
        codec: Codec[RequestT] | None = None,
    ) -> None:
        self.name = name
        self.request: Any = request
        self.handle = handle
        self.on_error = on_error
        self._upgrade = upgrade
        self._downgrade = downgrade
        self._codec = codec

    def decode(self, version: int, body: bytes) -> RequestT:
        """The request in `body`. Bytes that are no such request raise whatever their decoder raises."""
        if self._codec is not None:
            return self._codec.decode(version, memoryview(body), 0)
        entity_type = _request_type(self.key, version)
        entity, _ = kio.serial.entity_reader(entity_type)(vetted(entity_type)(body), 0)
        if self._upgrade is not None:
            return self._upgrade(entity, version)
        request: RequestT = messages.reader(self.request, entity_type)(entity)
        return request

    def encode(self, version: int, response: Any) -> bytes:
        """The response's body in this version of the protocol."""
        if self._codec is not None:
            return self._codec.encode(version, response)
        if self._downgrade is not None:
            response = self._downgrade(response, version)
        entity_type = _response_type(self.key, version)
        ours: Any = type(response)
        entity = messages.writer(ours, entity_type)(response)
        return _write(entity)


class _Output:
    """The least that kio's writers need of a buffer."""

    __slots__ = ("pieces", "write")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.write = self.pieces.append


def _write(entity: Any) -> bytes:
    output = _Output()
    kio.serial.entity_writer(type(entity))(output, entity)  # type: ignore[arg-type]
    return b"".join(output.pieces)


@functools.cache
def _request_type(key: int, version: int) -> Any:
    return kio.index.load_request_schema(key, version)


@functools.cache
def _response_type(key: int, version: int) -> Any:
    return kio.index.load_response_schema(key, version)


def read_request(request: type[RequestT], entity: Any) -> RequestT:
    """For `upgrade` functions: the versions they do not treat specially go through here."""
    ours: Any = request
    theirs: Any = type(entity)
    message: RequestT = messages.reader(ours, theirs)(entity)
    return message
