"""The few Kafka requests the harness sends itself, on one blocking socket.

All in the newest version without tagged fields that Kafka 4 still serves, so that the same
bytes go to both brokers. The load itself comes from librdkafka and from Kafka's own tools.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 18, 19, 20
TOPIC_ALREADY_EXISTS = 36


class KafkaError(Exception):
    """The broker answered with an error code."""


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(f">h{len(raw)}s", len(raw), raw)


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record_batch(payload: bytes) -> bytes:
    """A record batch v2 with one record: no key, no headers, no producer id."""
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(len(payload)) + payload + varint(0)
    records = varint(len(body)) + body
    now_ms = time.time_ns() // 1_000_000
    checked = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + records
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


class Reader:
    """Reads big-endian fields off a response, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(">" + code, self._data, self._at)
        self._at += struct.calcsize(code)
        return int(value)

    def bytes(self, size_code: str) -> bytes:
        size = max(0, self.number(size_code))
        self._at += size
        return self._data[self._at - size : self._at]

    def check(self) -> None:
        if code := self.number("h"):
            raise KafkaError(f"error code {code}")


class Connection:
    """One connection, one request at a time. `OSError` when the broker goes away."""

    def __init__(self, port: int, *, timeout_s: float = 60.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    @staticmethod
    def frame(api: int, version: int, body: bytes) -> bytes:
        header = struct.pack(">hhi", api, version, 1) + string("bench")
        return struct.pack(">i", len(header) + len(body)) + header + body

    def call(self, frame: bytes) -> Reader:
        """Send a prepared frame and return a reader past the response's correlation id."""
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._read(4))
        reader = Reader(self._read(size))
        reader.number("i")
        return reader

    def _read(self, size: int) -> bytes:
        data = self._socket.recv(size)
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data

    def api_versions(self) -> None:
        self.call(self.frame(API_VERSIONS, 0, b"")).check()

    def create_topic(
        self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create (unless it is there), and return when every partition's leader answers."""
        configs = array([string(key) + string(value) for key, value in (settings or {}).items()])
        wanted = string(topic) + struct.pack(">ih", partitions, 1) + array([]) + configs
        body = array([wanted]) + struct.pack(">i?", 60_000, False)
        reader = self.call(self.frame(CREATE_TOPICS, 2, body))
        reader.number("i"), reader.number("i"), reader.bytes("h")
        code, message = reader.number("h"), reader.bytes("h").decode()
        if code not in (0, TOPIC_ALREADY_EXISTS):
            raise KafkaError(f"creating {topic}: error code {code} {message}")
        deadline = time.monotonic() + 60
        while True:
            try:
                self.record_count(topic, partitions)
                return
            except KafkaError as error:
                if time.monotonic() > deadline:
                    raise KafkaError(f"{topic} is not ready after 60 s: {error}") from error
                time.sleep(0.002)

    def delete_topic(self, topic: str) -> None:
        reader = self.call(
            self.frame(DELETE_TOPICS, 1, array([string(topic)]) + struct.pack(">i", 60_000))
        )
        reader.number("i"), reader.number("i"), reader.bytes("h")
        reader.check()

    @classmethod
    def produce_frame(cls, topic: str, batch: bytes, acks: int) -> bytes:
        one = struct.pack(">ii", 0, len(batch)) + batch
        body = struct.pack(">hhi", -1, acks, 30_000) + array([string(topic) + array([one])])
        return cls.frame(PRODUCE, 7, body)

    def produce(self, frame: bytes) -> int:
        """Send a frame of `produce_frame`; the base offset that the broker gave it."""
        reader = self.call(frame)
        reader.number("i"), reader.bytes("h"), reader.number("i"), reader.number("i")
        reader.check()
        return reader.number("q")

    def fetch(self, topic: str, offset: int) -> int:
        """Fetch once from partition 0; how many bytes of records came."""
        one = struct.pack(">iqi", 0, offset, 1 << 20)
        limits = struct.pack(">iiiib", -1, 1_000, 1, 1 << 20, 0)
        reader = self.call(self.frame(FETCH, 4, limits + array([string(topic) + array([one])])))
        reader.number("i"), reader.number("i"), reader.bytes("h"), reader.number("i")
        reader.number("i")
        reader.check()
        reader.number("q"), reader.number("q")
        for _ in range(max(0, reader.number("i"))):
            reader.number("q"), reader.number("q")
        return len(reader.bytes("i"))

    def record_count(self, topic: str, partitions: int = 1) -> int:
        """The sum of all end offsets: what a fresh topic holds."""
        asked = array([struct.pack(">iq", index, -1) for index in range(partitions)])
        body = struct.pack(">i", -1) + array([string(topic) + asked])
        reader = self.call(self.frame(LIST_OFFSETS, 1, body))
        reader.number("i"), reader.bytes("h")
        total = 0
        for _ in range(reader.number("i")):
            reader.number("i")
            reader.check()
            reader.number("q")
            total += reader.number("q")
        return total
