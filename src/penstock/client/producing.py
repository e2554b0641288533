"""A producer of encoded batches: idempotent, pipelined, in order for each partition."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from penstock.client.cluster import Cluster
from penstock.client.errors import ProducerClosed
from penstock.client.produce_codec import stamp
from penstock.client.produce_link import Batch
from penstock.client.sender import Sender
from penstock.errors import ConfigError
from penstock.model import TopicPartition
from penstock.records.batch import HEADER_BYTES

_SEQUENCE_MODULUS: Final = 2**31
_JOIN_TIMEOUT_S: Final = 5.0


class IdempotentProducer:
    """Sends batches so that each is in its log exactly once and in the order of `send`.

    Up to five requests are in flight at each broker. What passes is tried again, with the same sequence
    numbers, until `delivery_timeout_ms` after `send`. The first failure that does not pass ends the
    producer: every later call raises it. What was not acknowledged by then may or may not be in the log.

    Methods may be called from any thread. Nothing is opened before the first `send`; a process that is
    forked after it must make a producer of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        in_flight_bytes_max: int = 64 << 20,
    ) -> None:
        if acks not in (-1, 1):
            raise ConfigError(f"acks of an idempotent producer is -1 (all) or 1, not {acks}")
        self._cluster = cluster
        self._acks = acks
        self._request_timeout_ms = request_timeout_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._bytes_max = in_flight_bytes_max
        self._changed = threading.Condition()
        # All below is guarded by `_changed`.
        self._arrived: deque[Batch] = deque()
        self._unsettled = 0  # batches
        self._unsettled_bytes = 0  # <= _bytes_max, unless one batch alone is larger
        self._places: dict[TopicPartition, tuple[int, int]] = {}  # next number, next sequence
        self._last_offsets: dict[TopicPartition, int] = {}
        self._failure: BaseException | None = None
        self._is_closed = False
        self._process_id = 0
        self._producer = (-1, -1)  # id and epoch
        self._thread: threading.Thread | None = None
        self._waker: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def send(self, partition: TopicPartition, batch: bytearray, records: int) -> None:
        """Send a record batch with a sound header; blocks while too much is in flight.

        The batch is the producer's from now on, which writes into its header and keeps it until it is
        acknowledged.
        """
        if len(batch) < HEADER_BYTES or records < 1:
            raise ValueError(f"no record batch: {len(batch)} bytes, {records} records")
        self._check_process()
        with self._changed:
            self._start()
            self._check()
            while self._unsettled and self._unsettled_bytes + len(batch) > self._bytes_max:
                self._changed.wait()
                self._check()
            number, sequence = self._places.get(partition, (0, 0))
            stamp(batch, *self._producer, sequence)
            self._places[partition] = number + 1, (sequence + records) % _SEQUENCE_MODULUS
            deadline = time.monotonic() + self._delivery_timeout_ms / 1000
            self._arrived.append(
                Batch(
                    partition=partition,
                    number=number,
                    data=batch,
                    records=records,
                    deadline=deadline,
                )
            )
            self._unsettled += 1
            self._unsettled_bytes += len(batch)
            if len(self._arrived) == 1:
                self._wake()

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until all is acknowledged; the last offset in each partition that was written to.

        An offset that the broker has forgotten, because the batch was repeated too late, is missing.
        """
        self._check_process()
        with self._changed:
            self._check()
            while self._unsettled:
                self._changed.wait()
                self._check()
            return dict(self._last_offsets)

    def close(self) -> None:
        """End at once, without waiting for what is in flight: `flush` does that. May be repeated."""
        if self._is_inherited():
            return
        with self._changed:
            self._is_closed = True
            self._wake()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise ProducerClosed("the producer is closed")

    def _is_inherited(self) -> bool:
        """Whether we were forked since it began: then its thread is not here, its lock never free."""
        return self._process_id not in (0, os.getpid())

    def _check_process(self) -> None:
        if self._is_inherited():
            raise ProducerClosed(
                "the producer belongs to the process that this one was forked from; make another one"
            )

    # The thread

    def _start(self) -> None:
        if self._thread is not None or self._is_closed:
            return
        self._producer = self._cluster.new_producer_id()
        self._process_id = os.getpid()
        self._waker, woken = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, args=(woken,), name="penstock producer", daemon=True
        )
        self._thread.start()

    def _run(self, woken: socket.socket) -> None:
        sender = Sender(self._cluster, self, woken, self._acks, self._request_timeout_ms)
        try:
            sender.run()
        except BaseException as error:
            with self._changed:
                self._failure = error
        finally:
            woken.close()
            with self._changed:
                self._is_closed = True
                self._arrived.clear()
                self._changed.notify_all()
                if self._waker is not None:
                    self._waker.close()
                    self._waker = None

    def _wake(self) -> None:
        if self._waker is not None:
            try:
                self._waker.send(b"\x00")
            except BlockingIOError:
                return  # it has more than enough reason to wake

    def take(self) -> list[Batch] | None:
        """For the sender: what was sent since the last call; None when it is to end."""
        with self._changed:
            if self._is_closed:
                return None
            batches = list(self._arrived)
            self._arrived.clear()
            return batches

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        """For the sender: a batch is in the log; an offset of -1 is not known."""
        with self._changed:
            self._unsettled -= 1
            self._unsettled_bytes -= len(batch.data)
            if base_offset >= 0:
                self._last_offsets[batch.partition] = base_offset + batch.records - 1
            self._changed.notify_all()
