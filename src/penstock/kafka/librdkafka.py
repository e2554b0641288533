"""What is done for the sake of librdkafka, the library in most clients that are not Java's.

One thread of it takes an answer and makes a message of each record; another gives them to the application
and frees them. Both need the one lock of the C library's malloc, and while both are at it each takes twice
the processor time, or sleeps: a consumer of small messages gets half of what it could. Two things keep them
apart. An answer holds about one partition's share, for it is handed over partition by partition: messages
of the first would be freed while those of the second are made. And an answer that could leave at once lets
the application get through with the messages of the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CorruptLogError
from penstock.log import FileSlice
from penstock.records.batch import read_header

if TYPE_CHECKING:
    from penstock.broker.fetching import Found
    from penstock.kafka.fetch_codec import FetchPartition, FetchRequest, Part
    from penstock.kafka.primitives import Topic
    from penstock.kafka.short_timer import ShortTimer

_ANSWER_BYTES: Final = 1024 * 1024  # a partition's share, unless the client asks for more of each
_ANSWER_MESSAGES: Final = 1_000  # so few are made and freed too soon to be in each other's way
_PARTITIONS_MAX: Final = 256  # to ask for more of them again and again costs more than it gains
_NETWORK_BYTES_PER_S: Final = 1_000_000_000
_REST_S_PER_MESSAGE: Final = 10e-9
_REST_S_MIN: Final = 50e-6  # less is not worth the timer
_REST_S_MAX: Final = 500e-6

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)  # Linux
# tcpi_min_rtt in struct tcp_info: tcpi_rtt grows with every pause of a client that acknowledges late.
_ROUND_TRIP_US: Final = struct.Struct("148xI")
_NOT_MEASURED: Final = 2**32 - 1


def is_librdkafka(name: str, version: str) -> bool:
    """By what a client says of itself; those built upon librdkafka have it in their version."""
    return "librdkafka" in name or "librdkafka" in version


class Pace:
    """How much one librdkafka client gets at once, and when."""

    __slots__ = ("_last_read", "_message_bytes", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._last_read: tuple[Topic, int, int] | None = None  # topic, partition, offset
        self._message_bytes = 0.0  # on average, in a batch that it got not long ago

    def bounded(self, request: FetchRequest) -> FetchRequest:
        """The request with no more bytes than its client had better get at once."""
        if sum(len(partitions) for _, partitions in request.topics) > _PARTITIONS_MAX:
            return request
        share = max(
            (partitions[0].bytes_max for _, partitions in request.topics if partitions), default=0
        )
        wanted = max(self.answer_bytes_max(share), request.min_bytes)
        return request._replace(max_bytes=min(request.max_bytes, wanted))

    def answer_bytes_max(self, partition_bytes_max: int) -> int:
        """How much of several partitions to give at once.

        Large messages are few, so there may be more of them. And there must be enough to keep the network
        busy: who is far away asks seldom.
        """
        of_few_messages = int(self._message_bytes * _ANSWER_MESSAGES)
        on_the_way = int(self._round_trip_s() * _NETWORK_BYTES_PER_S)
        return max(_ANSWER_BYTES, partition_bytes_max, of_few_messages, on_the_way)

    def learn_from(self, found: list[Found]) -> None:
        """See how large the messages are that this client reads."""
        records = next(
            (item.records for item in found if isinstance(item.records, FileSlice)), None
        )
        if records is not None:
            with contextlib.suppress(CorruptLogError, OSError):  # said when the records are sent
                header = read_header(records.header())
                self._message_bytes = header.size_bytes / max(1, header.record_count)

    def _round_trip_s(self) -> float:
        if _TCP_INFO is None:
            return 1.0
        with contextlib.suppress(OSError):
            found = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _ROUND_TRIP_US.size)
            if len(found) == _ROUND_TRIP_US.size:
                round_trip_us: int = _ROUND_TRIP_US.unpack(found)[0]
                return 0.0 if round_trip_us == _NOT_MEASURED else round_trip_us / 1e6
        return 1.0

    def rested(
        self, timer: ShortTimer, topic: Topic, asked: FetchPartition, answer: list[Part]
    ) -> list[Part] | asyncio.Future[Any]:
        """The answer, or a promise of it if the client has just got many messages of this partition."""
        last, self._last_read = self._last_read, (topic, asked.partition, asked.offset)
        if last is None or last[:2] != (topic, asked.partition):
            return answer
        rest_s = (asked.offset - last[2]) * _REST_S_PER_MESSAGE
        if not rest_s >= _REST_S_MIN:
            return answer
        promise = asyncio.get_running_loop().create_future()
        if not timer.call_later(min(rest_s, _REST_S_MAX), lambda: _keep(promise, answer)):
            return answer
        return promise


def _keep(promise: asyncio.Future[Any], answer: list[Part]) -> None:
    if not promise.done():  # cancelled, when its connection is closed
        promise.set_result(answer)
