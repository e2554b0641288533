"""A connection to the leader of one partition, with at most one Fetch under way."""

from __future__ import annotations

import threading
import uuid
from typing import Final

from penstock.client.buffers import BufferPool
from penstock.client.cluster import Cluster
from penstock.client.connection import FETCH_FRAME_BYTES_MAX, Connection
from penstock.client.errors import BadAnswer, BrokerUnreachable, UnknownTopic
from penstock.client.fetch_codec import (
    TOPIC_IDS_FROM,
    FetchRequest,
    PartitionData,
    decode_response,
    encode_request,
)
from penstock.client.local_files import LocalFiles
from penstock.client.topology import Leader
from penstock.client.wire import FETCH, MALFORMED
from penstock.errors import ErrorCode
from penstock.model import TopicPartition
from penstock.sockets import is_within_this_machine

_WORTH_KEEPING_BYTES: Final = 64 << 10  # an answer without records is no use of a kept buffer
_TOLD_AT_ONCE: Final = 8  # times what is read at once: being told of more costs no memory
_WAIT_MS: Final = 500  # how long a broker may wait for a record before it says that there is none


class FetchConnection:
    """Used by one thread; `close` may come from any. After `drop` the leader is looked up anew."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        pool: BufferPool,
        *,
        is_committed: bool,
        reads_files: bool,
        stop: threading.Event,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._pool = pool
        self._is_committed = is_committed
        self._stop = stop
        self._files = LocalFiles() if reads_files else None
        self.reads_files = False  # whether the last answer's records came from a file
        self._connection: Connection | None = None
        self._is_beside_us = False  # the broker that it leads to
        self._leader: Leader | None = None
        self._is_leader_suspect = False
        self._topic_id: uuid.UUID | None = None  # of the topic that the first records came from
        self._version = 0
        self._asked: tuple[int, int] | None = None  # correlation id and offset of what is under way
        self._told: tuple[int, PartitionData] | None = None  # an offset, and where its records are

    @property
    def broker(self) -> str:
        return "the broker" if self._leader is None else f"broker {self._leader.address}"

    def readable_end(self, answer: PartitionData) -> int:
        """Up to where this reader may read."""
        return answer.last_stable if self._is_committed else answer.high_watermark

    def fetch(self, offset: int, bytes_max: int, piece_bytes: int) -> PartitionData:
        """The answer to a Fetch at `offset`: the one under way, or a new one.

        Of a broker on this machine we ask where the records are, and read them there ourselves, at most
        `piece_bytes` at once. If that can not be done, be it once, it sends them as every broker does.
        """
        if self._told is not None and self._told[0] == offset:
            answer = self._told[1]
        else:
            answer = self._receive(offset, bytes_max)
        self._told = None
        self.reads_files = False
        if answer.reference is None:
            return answer
        size = answer.reference.size
        if not answer.aborted:  # those are told for all of it: a part would not know which are over
            size = min(size, piece_bytes)
        if self._files is None or size > FETCH_FRAME_BYTES_MAX:
            raise BadAnswer(f"{self.broker} told of records in a way that nobody asked for")
        records = self._pool.take(size)
        if self._files.read(answer.reference, records):
            self.reads_files = True
            self._told = offset, answer
            return answer._replace(records=records)
        del records
        self.close_files()
        return self._receive(offset, bytes_max)

    def go_on(self, used: int, offset: int, bytes_max: int) -> None:
        """Have what comes at `offset` ready, or under way: it is behind `used` bytes of the last answer."""
        told = self._told[1] if self._told is not None else None
        if told is not None and told.reference is not None:
            rest = told.reference.behind(used)
            self._told = (offset, told._replace(reference=rest)) if rest is not None else None
        if self._told is None:
            self._ask(offset, bytes_max)

    def _receive(self, offset: int, bytes_max: int) -> PartitionData:
        if self._asked is None or self._asked[1] != offset:
            self._open()
            self._send(offset, bytes_max)
        connection, asked = self._connection, self._asked
        assert connection is not None
        assert asked is not None
        self._asked = None
        size = connection.receive_size(FETCH_FRAME_BYTES_MAX)
        is_small = size < _WORTH_KEEPING_BYTES
        frame = memoryview(bytearray(size)) if is_small else self._pool.take(size)
        connection.receive_into(frame)
        position = connection.check_answer(FETCH, self._version, asked[0], frame)
        try:
            answer = decode_response(self._version, frame, position)
        except MALFORMED as error:
            raise BadAnswer(
                f"{self.broker} sent an answer to Fetch that cannot be read: {error}"
            ) from error
        if not answer.error_code and self._leader is not None:
            self._topic_id = self._leader.topic_id
        return answer

    def _ask(self, offset: int, bytes_max: int) -> None:
        """Send the request for `offset` ahead. If that fails, `fetch` will try again and say so."""
        try:
            self._send(offset, bytes_max)
        except BrokerUnreachable:
            self._hang_up()

    def _send(self, offset: int, bytes_max: int) -> None:
        connection, leader = self._connection, self._leader
        assert connection is not None
        assert leader is not None
        # Not of committed records: where transactions were aborted, all that is told of is read at once.
        if self.reads_files and not self._is_committed:
            bytes_max = min(bytes_max * _TOLD_AT_ONCE, FETCH_FRAME_BYTES_MAX)
        request = FetchRequest(
            self._partition.topic,
            leader.topic_id,
            self._partition.partition,
            leader.epoch,
            offset,
            bytes_max,
            min(_WAIT_MS, connection.timeout_ms // 2),
            int(self._is_committed),
            self._files is not None and self._is_beside_us,
        )
        correlation_id = connection.send(
            FETCH, self._version, [encode_request(self._version, request)]
        )
        self._asked = correlation_id, offset

    def _open(self) -> None:
        if self._connection is not None:
            if self._asked is None:
                return
            self._hang_up()  # the answer to another request would come first
        if self._leader is None:
            self._find_leader()
        assert self._leader is not None
        connection = self._cluster.network.connect(self._leader.address)
        self._connection = connection
        self._is_beside_us = is_within_this_machine(connection.raw)
        self.reads_files = False  # it may be another broker
        self._version = connection.version_of(FETCH)
        if self._leader.topic_id is None:
            self._version = min(self._version, TOPIC_IDS_FROM - 1)
        if self._stop.is_set():  # `close` came in between, and did not see this connection
            self.close()
            raise BrokerUnreachable("the reader was closed")

    def _find_leader(self) -> None:
        leader = self._cluster.topology.leader(self._partition, fresh=self._is_leader_suspect)
        if self._topic_id is not None and leader.topic_id != self._topic_id:
            raise UnknownTopic(
                f"topic {self._partition.topic!r} was deleted and created again while it was read: "
                "its offsets are no longer the same records",
                ErrorCode.inconsistent_topic_id,
            )
        self._leader = leader

    def drop(self) -> None:
        """Something failed: hang up, and ask who leads before the next try."""
        self._hang_up()
        self._leader = None
        self._told = None
        self._is_leader_suspect = True

    def _hang_up(self) -> None:
        self._asked = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close_files(self) -> None:
        """And read no more of them. For the thread that fetches."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def close(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.close()
