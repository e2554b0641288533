"""A Kafka client of the smallest kind: frames over a socket, encoded and decoded by kio alone."""

from __future__ import annotations

import contextlib
import datetime
import io
import socket
import struct
import time
import types
import typing
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, Self

import kio.index
import kio.serial
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

API_KEYS: Final = {name: key for key, name in api_key_map.items()}
TIMEOUT_S: Final = 20.0
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Wire:
    """One connection to a broker. Every call waits for at most `timeout_s`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = TIMEOUT_S,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = "{}:{}".format(*self.socket.getsockname())  # as the broker calls us
        self._correlation_id = 0
        self._waiting: list[tuple[int, Any]] = []  # correlation id and response type, in order

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Sending

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, *requests: Any) -> None:
        """Send all of them at once, without waiting for answers."""
        data = b""
        for request in requests:
            self._correlation_id += 1
            data += frame(request, self._correlation_id)
            response = kio.index.load_response_schema(request.__api_key__, int(request.__version__))
            self._waiting.append((self._correlation_id, response))
        self.send_bytes(data)

    # Receiving

    def receive(self) -> Any:
        """The answer to the oldest request not answered yet, which must be the next to come."""
        correlation_id, response_type = self._waiting.pop(0)
        return parse_response(response_type, correlation_id, self.receive_frame())

    def receive_frame(self) -> bytes:
        size = struct.unpack(">i", self.receive_exactly(4))[0]
        return self.receive_exactly(size)

    def receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError(f"the broker closed the connection after {len(data)} bytes")
            data += chunk
        return bytes(data)

    def ask(self, request: Any) -> Any:
        assert not self._waiting, "answers are missing"
        self.send(request)
        return self.receive()

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        self.socket.settimeout(seconds)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK) and False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)

    def is_closed_by_broker(self) -> bool:
        """Wait until the broker says something; whether that is goodbye."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True


def frame(request: Any, correlation_id: int = 1, client_id: str | None = "test") -> bytes:
    """A whole request as it goes over the wire."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return sized(encode(header) + encode(request))


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def parse_response(response_type: Any, correlation_id: int, data: bytes) -> Any:
    """The response in a frame. It must be the one expected, and all there is."""
    header, position = kio.serial.entity_reader(response_type.__header_schema__)(data, 0)
    assert header.correlation_id == correlation_id, "an answer is out of order"
    response, size = kio.serial.entity_reader(response_type)(data, position)
    assert position + size == len(data), "there are bytes behind the response"
    return response


def encode(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        kio.serial.entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def decode(entity_type: Any, data: bytes) -> Any:
    entity, size = kio.serial.entity_reader(entity_type)(data, 0)
    assert size == len(data), f"{len(data) - size} bytes are left over"
    return entity


def must_equal(found: Any, expected: Any) -> None:
    """As `assert found == expected`, without the comparison, line by line, of what may be huge."""
    if found != expected:
        raise AssertionError(f"{str(found)[:500]} is not {str(expected)[:500]}")


# Requests of every version from plain values


def request(api: str, version: int, /, **values: Any) -> Any:
    """A request with these values; what the version lacks is left out, the rest is kio's default.

    Nested entities are dicts, times are milliseconds.
    """
    return build(kio.index.load_request_schema(API_KEYS[api], version), values)


def build(entity_type: Any, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(entity_type)
    arguments = {}
    for item in fields(entity_type):
        kafka_type = item.metadata.get("kafka_type")
        if item.name in values:
            arguments[item.name] = _convert(hints[item.name], kafka_type, values[item.name])
        elif item.default is MISSING:
            arguments[item.name] = _plain_default(hints[item.name], kafka_type)
    return entity_type(**arguments)


def _convert(annotation: Any, kafka_type: str | None, value: Any) -> Any:
    if value is None:
        return None
    inner = next(iter(choices(annotation)))
    if typing.get_origin(inner) is tuple:
        element = typing.get_args(inner)[0]
        return tuple(_convert(element, kafka_type, item) for item in value)
    if is_dataclass(inner):
        return build(inner, value)
    if kafka_type in {"timedelta_i32", "timedelta_i64"}:
        return datetime.timedelta(milliseconds=value)
    if kafka_type == "datetime_i64":
        return None if value < 0 else _EPOCH + datetime.timedelta(milliseconds=value)
    return value


def choices(annotation: Any) -> Iterator[Any]:
    """What may stand there besides None."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        for choice in typing.get_args(annotation):
            if choice is not type(None):
                yield from choices(choice)
    else:
        yield annotation


def is_nullable(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _plain_default(annotation: Any, kafka_type: str | None) -> Any:
    if is_nullable(annotation):
        return None
    if typing.get_origin(annotation) is tuple:
        return ()
    defaults: dict[str | None, Any] = {
        "string": "",
        "bool": False,
        "bytes": b"",
        "error_code": ErrorCode.none,
        "timedelta_i32": datetime.timedelta(),
        "timedelta_i64": datetime.timedelta(),
    }
    return defaults.get(kafka_type, 0)


# The two that most tests need

Topic = str | uuid.UUID


def produce(
    version: int,
    topic: Topic,
    records: Mapping[int, bytes | None],
    *,
    acks: int = 1,
    transactional_id: str | None = None,
) -> Any:
    """A Produce request: for each partition its records."""
    data = {
        "name": topic,
        "topic_id": topic,
        "partition_data": [{"index": index, "records": item} for index, item in records.items()],
    }
    return request(
        "produce",
        version,
        acks=acks,
        timeout=30_000,
        transactional_id=transactional_id,
        topic_data=[data],
    )


def fetch(
    version: int,
    topics: Mapping[Topic, Mapping[int, int]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    forget: Mapping[Topic, list[int]] | None = None,
    isolation_level: int = 0,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> Any:
    """A Fetch request: for each topic its partitions with the offset to begin at."""
    return request(
        "fetch",
        version,
        replica_id=-1,
        max_wait=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            {
                "topic": topic,
                "topic_id": topic,
                "partitions": [
                    {
                        "partition": index,
                        "fetch_offset": offset,
                        "partition_max_bytes": partition_bytes,
                        "current_leader_epoch": leader_epoch,
                        "last_fetched_epoch": last_fetched_epoch,
                        "log_start_offset": -1,
                    }
                    for index, offset in partitions.items()
                ],
            }
            for topic, partitions in topics.items()
        ],
        forgotten_topics_data=[
            {"topic": topic, "topic_id": topic, "partitions": indexes}
            for topic, indexes in (forget or {}).items()
        ],
    )


def topic_id(wire: Wire, topic: str) -> uuid.UUID:
    found = wire.ask(request("metadata", 12, topics=[{"topic_id": None, "name": topic}]))
    identity = found.topics[0].topic_id
    assert isinstance(identity, uuid.UUID)
    return identity


def only_partition(response: Any) -> Any:
    """The one partition that a Produce or Fetch response is about."""
    (topic,) = response.responses
    (partition,) = getattr(topic, "partition_responses", None) or topic.partitions
    return partition


def wait_until(condition: Any, what: str, timeout_s: float = TIMEOUT_S) -> None:
    """For what cannot be awaited: another process's state."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"timed out: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def wires(bootstrap: str, count: int) -> Iterator[list[Wire]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire(bootstrap)) for _ in range(count)]
