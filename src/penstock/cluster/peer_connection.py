"""A connection to another broker: requests out, answers in, many under way at once.

Answers are received into one buffer that is used again and grows with what has come, and are handed out
as views of it: what somebody wants to keep, they copy. A large answer is received to its exact end, so
its records are never moved. Whatever ends the connection, everybody who waits for an answer is told.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from penstock.errors import PenstockError, ProtocolError
from penstock.sockets import tune
from penstock.wire import INT32, REQUEST_HEADER, skip_tags

__all__ = ["OnAnswer", "OnLost", "PeerConnection", "PeerError"]

logger = logging.getLogger(__name__)

_BUFFER_BYTES: Final = 64 * 1024
_ANSWER_BYTES_MIN: Final = 5  # correlation id, tags
_REQUESTS_MAX: Final = 1_024  # under way at once
_SMALL_ANSWERS_MAX: Final = 256  # then a large buffer is given back
_CORRELATION_ID_MAX: Final = 2**31 - 1

# What reading bytes that are no answer can raise.
_MALFORMED: Final = (ProtocolError, IndexError, struct.error, ValueError, OverflowError)


class PeerError(PenstockError):
    """Another broker can not be reached, or was lost before it answered. It may have done what it was
    asked to."""


OnAnswer = Callable[[memoryview], None]
"""Gets the body of the answer, which is valid until it returns. `ProtocolError`, or what reading too
short a buffer raises, closes the connection; other errors are the callback's own business."""

OnLost = Callable[[PeerError], None]


class _Pending(NamedTuple):
    on_answer: OnAnswer
    on_lost: OnLost
    timer: asyncio.TimerHandle


class PeerConnection(asyncio.BufferedProtocol):
    """Lives on one event loop. Requests and answers have flexible headers."""

    def __init__(
        self,
        peer: str,
        client_id: str,
        answer_bytes_max: int,
        on_end: Callable[[PeerConnection, str], None],
    ) -> None:
        self.peer = peer
        self.has_answered = False  # sensibly, at least once
        self.is_lost = False
        self._client_id = client_id.encode()
        self._answer_bytes_max = answer_bytes_max
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, _Pending] = {}
        self._correlation_ids = itertools.count(1)
        self._received_s = 0.0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # what is not handled yet: buffer[start:end]
        self._small_answers = 0  # in a row, received into a large buffer

    # Asking

    def send(
        self,
        key: int,
        version: int,
        body: bytes,
        on_answer: OnAnswer,
        on_lost: OnLost,
        *,
        timeout_s: float,
    ) -> None:
        """Ask. One of the two is called, later; `PeerError` at once if there is no connection.

        The peer is given up when nothing at all has come from it for `timeout_s`.
        """
        if self.is_lost or self._transport is None:
            raise PeerError(f"{self.peer} is not connected")
        if len(self._pending) >= _REQUESTS_MAX:
            raise PeerError(f"{self.peer} has {len(self._pending)} requests to answer already")
        correlation_id = next(self._correlation_ids) & _CORRELATION_ID_MAX
        head = REQUEST_HEADER.pack(key, version, correlation_id, len(self._client_id))
        size = len(head) + len(self._client_id) + 1 + len(body)
        timer = self._loop.call_later(
            timeout_s, self._check, correlation_id, self._loop.time(), timeout_s
        )
        self._pending[correlation_id] = _Pending(on_answer, on_lost, timer)
        self._transport.write(b"".join((INT32.pack(size), head, self._client_id, b"\x00", body)))

    def _check(self, correlation_id: int, since_s: float, timeout_s: float) -> None:
        """An answer is overdue: give up, unless something still comes."""
        pending = self._pending.get(correlation_id)
        if pending is None:
            return
        heard_s = max(since_s, self._received_s)
        if self._loop.time() - heard_s >= timeout_s * 0.99:
            self.lose(f"nothing came for {timeout_s:.1f} s")
            return
        timer = self._loop.call_at(
            heard_s + timeout_s, self._check, correlation_id, since_s, timeout_s
        )
        self._pending[correlation_id] = pending._replace(timer=timer)

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        if self._end - self._start >= INT32.size:
            stop = self._start + INT32.size + self._announced()
            if stop - self._start > _BUFFER_BYTES and stop <= len(self._buffer):
                return self._view[self._end : stop]
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._received_s = self._loop.time()
        while self._end - self._start >= INT32.size and not self.is_lost:
            size = self._announced()
            if not _ANSWER_BYTES_MIN <= size <= self._answer_bytes_max:
                self._refuse(f"an answer of {size} bytes")
                return
            begin = self._start + INT32.size
            if self._end - begin < size:
                break
            self._start = begin + size
            if size > _BUFFER_BYTES:
                self._small_answers = 0
            self._handle(self._view[begin : begin + size])
        if not self.is_lost:
            self._make_room()

    def _announced(self) -> int:
        size: int = INT32.unpack_from(self._buffer, self._start)[0]
        return size

    def _handle(self, frame: memoryview) -> None:
        pending = None
        try:
            correlation_id = INT32.unpack_from(frame)[0]
            pending = self._pending.pop(correlation_id, None)
            if pending is None:
                raise ProtocolError("it answers what nobody asked")
            pending.timer.cancel()
            body = skip_tags(frame, INT32.size)
            pending.on_answer(frame[body:])
            self.has_answered = True
        except _MALFORMED as error:
            self._refuse(f"a malformed answer: {error}", pending)
        except Exception:
            logger.exception("an answer could not be handled peer=%s", self.peer)
            self._refuse("an answer could not be handled", pending)

    def _make_room(self) -> None:
        """See that more can be received. Memory grows with what has come, not with what was announced."""
        have = self._end - self._start
        if have == 0:
            self._start = self._end = 0
            self._shrink_if_idle()
            return
        needed = INT32.size if have < INT32.size else INT32.size + self._announced()
        capacity = max(min(needed, max(_BUFFER_BYTES, 2 * have)), have + 1)
        if len(self._buffer) - self._start >= capacity:
            return
        if len(self._buffer) >= capacity:
            self._view[:have] = bytes(self._view[self._start : self._end])
        else:
            larger = bytearray(1 << (capacity - 1).bit_length())
            larger[:have] = self._view[self._start : self._end]
            self._use(larger)
        self._start, self._end = 0, have

    def _shrink_if_idle(self) -> None:
        if len(self._buffer) == _BUFFER_BYTES:
            return
        self._small_answers += 1
        if self._small_answers > _SMALL_ANSWERS_MAX:
            self._use(bytearray(_BUFFER_BYTES))

    def _use(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._small_answers = 0

    # Ending

    def eof_received(self) -> bool:
        self.lose("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose("the connection broke" + (f": {exc}" if exc is not None else ""))

    def _refuse(self, reason: str, asker: _Pending | None = None) -> None:
        """What came is no answer. `asker` is who waited for it, and is told, too."""
        if not self.is_lost:
            logger.warning("closing peer=%s reason=%s", self.peer, reason)
        if asker is not None:
            asker.on_lost(PeerError(f"{self.peer}: {reason}"))
        self.lose(reason)

    def lose(self, reason: str) -> None:
        """End the connection, and tell all who wait. Idempotent."""
        if self.is_lost:
            return
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, {}
        self._on_end(self, reason)
        for item in pending.values():
            item.timer.cancel()
            item.on_lost(PeerError(f"{self.peer} was lost: {reason}"))
