"""The few Kafka requests the harness sends itself, on one blocking socket.

All in the newest version without tagged fields that Kafka 4 still serves, so that the same
bytes go to both brokers. The load itself comes from librdkafka and from Kafka's own tools.
"""

import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 18, 19, 20
DESCRIBE_QUORUM = 55
TOPIC_ALREADY_EXISTS = 36
_QUORUM_TOPIC = "__cluster_metadata"


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

    def numbers(self) -> tuple[int, ...]:
        """An array of int32."""
        count = max(0, self.number("i"))
        self._at += 4 * count
        return struct.unpack_from(f">{count}i", self._data, self._at - 4 * count)

    def check(self) -> None:
        if code := self.number("h"):
            raise KafkaError(f"error code {code}")


class PartitionState(NamedTuple):
    """A partition as a broker's metadata has it. `leader` is -1 where there is none."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A broker's view: the brokers that are up, by id, the controller, the partitions asked for."""

    brokers: tuple[int, ...]
    controller: int
    partitions: list[PartitionState]


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
        self.request_topics([topic], partitions, settings=settings)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.record_count(topic, partitions)
                return
            except KafkaError as error:
                if time.monotonic() > deadline:
                    raise KafkaError(f"{topic} is not ready after 60 s: {error}") from error
                time.sleep(0.002)

    def request_topics(
        self,
        topics: Sequence[str],
        partitions: int,
        *,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create those that are not there, all alike, in one request; return when it is answered."""
        configs = array([string(key) + string(value) for key, value in (settings or {}).items()])
        alike = struct.pack(">ih", partitions, replicas) + array([]) + configs
        body = array([string(topic) + alike for topic in topics])
        reader = self.call(self.frame(CREATE_TOPICS, 2, body + struct.pack(">i?", 60_000, False)))
        reader.number("i")
        for _ in range(reader.number("i")):
            topic = reader.bytes("h").decode()
            code, message = reader.number("h"), reader.bytes("h").decode()
            if code not in (0, TOPIC_ALREADY_EXISTS):
                raise KafkaError(f"creating {topic}: error code {code} {message}")

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
        return sum(self.end_offsets(topic, range(partitions)))

    def end_offsets(self, topic: str, partitions: Iterable[int]) -> list[int]:
        """Where consumers find the end of each; all must be led by the broker that is asked."""
        asked = array([struct.pack(">iq", index, -1) for index in partitions])
        body = struct.pack(">i", -1) + array([string(topic) + asked])
        reader = self.call(self.frame(LIST_OFFSETS, 1, body))
        reader.number("i"), reader.bytes("h")
        offsets = []
        for _ in range(reader.number("i")):
            reader.number("i")
            reader.check()
            reader.number("q")
            offsets.append(reader.number("q"))
        return offsets

    def metadata(self, topics: Sequence[str]) -> Metadata:
        """What this broker knows of the cluster and of these topics; creates none."""
        body = array([string(topic) for topic in topics]) + struct.pack(">?", False)
        reader = self.call(self.frame(METADATA, 7, body))
        reader.number("i")
        brokers = []
        for _ in range(reader.number("i")):
            brokers.append(reader.number("i"))
            reader.bytes("h"), reader.number("i"), reader.bytes("h")
        reader.bytes("h")
        controller = reader.number("i")
        partitions = []
        for _ in range(reader.number("i")):
            reader.check()
            topic = reader.bytes("h").decode()
            reader.number("?")
            partitions += [_partition(reader, topic) for _ in range(reader.number("i"))]
        return Metadata(brokers=tuple(brokers), controller=controller, partitions=partitions)

    def quorum(self) -> tuple[int, int]:
        """Of Kafka's controllers: who leads, and up to where their log is decided.

        Brokers name any of them as the controller in their metadata, not the active one.
        """
        compact = bytes([len(_QUORUM_TOPIC) + 1]) + _QUORUM_TOPIC.encode()
        # One topic with one partition, in arrays that count from one; the rest are empty tags.
        body = b"\x02" + compact + b"\x02" + struct.pack(">i", 0) + b"\0\0\0"
        reader = self.call(self.frame(DESCRIBE_QUORUM, 0, b"\0" + body))
        reader.number("b")
        reader.check()
        reader.number("b")
        for _ in range(reader.number("b") - 1):  # the name of the topic
            reader.number("b")
        reader.number("b"), reader.number("i")
        reader.check()
        leader = reader.number("i")
        reader.number("i")
        return leader, reader.number("q")


def _partition(reader: Reader, topic: str) -> PartitionState:
    code, index, leader, _epoch = (reader.number(kind) for kind in "hiii")
    replicas, isr, _offline = (reader.numbers() for _ in range(3))
    return PartitionState(topic, index, leader if code == 0 else -1, replicas, isr)
