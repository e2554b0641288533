"""A connection for Produce that never blocks: requests out, answers in, in the same order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.client.connection import Address, Connection
from penstock.client.errors import BadAnswer, BrokerUnreachable
from penstock.client.produce_codec import PartitionResult, decode_response, encode_request
from penstock.client.wire import MALFORMED, PRODUCE
from penstock.model import TopicPartition
from penstock.wire import INT32

IN_FLIGHT_MAX: Final = (
    5  # brokers remember so many batches of a producer: the repeated ones are known
)
_ANSWER_BYTES_MAX: Final = 16 << 20
_RECEIVE_BYTES: Final = 64 << 10
_PIECES_MAX: Final = 64  # in one system call


@dataclass(slots=True, kw_only=True)
class Batch:
    """A batch on its way. `number` counts the batches of its partition, without gaps."""

    partition: TopicPartition
    number: int
    data: bytearray
    records: int
    deadline: float  # when it counts as not delivered


@dataclass(slots=True)
class _Request:
    correlation_id: int
    batches: list[Batch]
    deadline: float


Answered = list[tuple[Batch, PartitionResult | None]]


@dataclass(slots=True)
class ProduceLink:
    """One broker's connection, used by one thread. Failures are `BrokerUnreachable` or `BadAnswer`."""

    connection: Connection
    version: int
    in_flight: deque[_Request] = field(default_factory=deque)
    _outgoing: deque[memoryview] = field(default_factory=deque)
    _incoming: bytearray = field(default_factory=bytearray)
    _answered: Answered = field(default_factory=list)

    @classmethod
    def over(cls, connection: Connection) -> ProduceLink:
        try:
            version = connection.version_of(PRODUCE)
        except BaseException:
            connection.close()
            raise
        connection.raw.setblocking(False)
        return cls(connection, version)

    @property
    def address(self) -> Address:
        return self.connection.address

    @property
    def has_room(self) -> bool:
        return len(self.in_flight) < IN_FLIGHT_MAX

    @property
    def wants_to_send(self) -> bool:
        return bool(self._outgoing)

    def submit(self, batches: list[Batch], acks: int, timeout_ms: int) -> None:
        """Take a request in; `send` sends it."""
        topics: dict[str, list[tuple[int, memoryview]]] = {}
        for batch in batches:
            topic, index = batch.partition
            topics.setdefault(topic, []).append((index, memoryview(batch.data)))
        pieces = encode_request(self.version, acks, timeout_ms, topics)
        correlation_id, frame = self.connection.frame(PRODUCE, self.version, pieces)
        self._outgoing.extend(memoryview(piece) for piece in frame)
        self.in_flight.append(
            _Request(correlation_id, batches, time.monotonic() + timeout_ms / 1000)
        )

    def send(self) -> None:
        """Send as much as the socket takes now."""
        outgoing = self._outgoing
        while outgoing:
            pieces = [outgoing[at] for at in range(min(len(outgoing), _PIECES_MAX))]
            try:
                sent = self.connection.raw.sendmsg(pieces)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(str(error)) from error
            while outgoing and sent >= len(outgoing[0]):
                sent -= len(outgoing.popleft())
            if sent:
                outgoing[0] = outgoing[0][sent:]

    def receive(self) -> None:
        """Take in what has come; `take_answered` gives what it says, even if this fails."""
        while True:
            try:
                data = self.connection.raw.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(str(error)) from error
            if not data:
                raise self._lost("the broker closed it")
            self._incoming += data
            self._take_frames()

    def take_answered(self) -> Answered:
        """What became of batches since the last call, in the order they were sent."""
        answered, self._answered = self._answered, []
        return answered

    def _take_frames(self) -> None:
        incoming = self._incoming
        while len(incoming) >= 4:
            size = INT32.unpack_from(incoming, 0)[0]
            if not 4 <= size <= _ANSWER_BYTES_MAX:
                raise BadAnswer(f"broker {self.address} announced an answer of {size} bytes")
            if len(incoming) < 4 + size:
                return
            frame = memoryview(bytes(incoming[4 : 4 + size]))
            del incoming[: 4 + size]
            self._answered += self._answer(frame)

    def _answer(self, frame: memoryview) -> Answered:
        if not self.in_flight:
            raise BadAnswer(f"broker {self.address} answered what was not asked")
        request = self.in_flight[0]
        position = self.connection.check_answer(
            PRODUCE, self.version, request.correlation_id, frame
        )
        try:
            results = decode_response(self.version, frame, position)
        except MALFORMED as error:
            raise BadAnswer(f"broker {self.address} sent a broken answer to Produce") from error
        self.in_flight.popleft()
        found = {result.partition: result for result in results}
        return [(batch, found.get(batch.partition)) for batch in request.batches]

    def check_time(self, now: float) -> None:
        """Raise if the oldest request should have been answered by now."""
        if self.in_flight and now >= self.in_flight[0].deadline:
            raise BrokerUnreachable(f"broker {self.address} did not answer in time")

    def close(self) -> Sequence[Batch]:
        """End the connection; the batches whose fate is unknown, in the order they were sent."""
        self.connection.close()
        self._outgoing.clear()
        unknown = [batch for request in self.in_flight for batch in request.batches]
        self.in_flight.clear()
        return unknown

    def _lost(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"the connection to broker {self.address} was lost: {why}")
