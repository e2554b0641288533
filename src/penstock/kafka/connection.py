"""One client's connection: frames in, answers out, in order and bounded.

Works on the socket itself rather than through a stream. Requests are received into buffers that all
connections share by turns, so an idle connection holds none and a busy one keeps the same memory warm;
a request is handled before its buffer is used again. Records are sent from file to socket by the kernel.

Requests are handled, and answered, in the order they came. Only Produce goes on to the next request
while it waits (for the disk): everything else is answered before the next one begins. A follower's fetch
that waits for records is answered at once when its connection's next request comes. A client that does
not read its answers is not listened to either, until it does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ProtocolError
from penstock.kafka.api import Caller, Unhurried
from penstock.kafka.buffers import BUFFER_BYTES, POOLED_BYTES_MAX, BufferPool
from penstock.log import FileSlice

if TYPE_CHECKING:
    from penstock.kafka.api import Answer
    from penstock.kafka.fetch_codec import Part
    from penstock.kafka.idle_polling import IdlePolling
    from penstock.kafka.router import KafkaDoor

logger = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")
_RESPONSE: Final = struct.Struct(">ii")  # size and correlation id
_REQUEST_BYTES_MIN: Final = 10
_ANSWERS_WAITING_MAX: Final = 64
_UNSENT_BYTES_MAX: Final = 1024 * 1024
_SENDFILE_BYTES: Final = 4 * 1024 * 1024
_SEND_TURN_BYTES: Final = 8 * 1024 * 1024  # then it is the others' turn
_SEND_PARTS_MAX: Final = 64
_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)  # Linux: do not send the last packet yet
_REASON_CHARACTERS_MAX: Final = 400


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("correlation_id", "header", "hurry", "is_work", "parts", "size")

    def __init__(self, correlation_id: int, header: bytes) -> None:
        self.correlation_id = correlation_id
        self.header = header
        self.parts: list[Part] | None = None  # None: not answered yet
        self.size = 0  # of the parts, in bytes
        self.hurry: Callable[[], None] | None = None  # if it can be answered at once
        self.is_work = False  # a handler's, which goes on without its client


class Connection:
    """Owns its socket. All methods run on the event loop."""

    __slots__ = (
        "_buffer", "_door", "_end", "_fd", "_has_hung_up", "_has_turn", "_hint", "_idle_polling",
        "_is_closing", "_is_handling", "_is_held_up", "_is_reading", "_is_writing", "_loop", "_on_close",
        "_pool", "_promised", "_request_bytes_max", "_slots", "_socket", "_start", "_unsent",
        "_unsent_bytes", "_view", "_waits_for", "active_s", "caller", "is_closed", "peer",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        peer: tuple[Any, ...],
        door: KafkaDoor,
        pool: BufferPool,
        idle_polling: IdlePolling,
        request_bytes_max: int,
        on_close: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._fd = sock.fileno()
        self._door = door
        self._pool = pool
        self._idle_polling = idle_polling
        self._request_bytes_max = request_bytes_max
        self._on_close = on_close
        self._buffer: bytearray | None = None  # held only while it has bytes not handled yet
        self._view = memoryview(b"")
        self._start = self._end = 0  # those bytes: buffer[start:end]
        self._hint = BUFFER_BYTES  # how much to receive at once: the last request's size
        self._slots: deque[_Slot] = deque()
        self._promised: set[asyncio.Future[Any]] = set()  # answers to come; each has a slot
        self._waits_for: _Slot | None = None  # the answer without which no further request begins
        self._unsent: deque[bytes | memoryview | FileSlice] = deque()
        self._unsent_bytes = 0  # in `_unsent`, and in slots that are answered but not first
        self._is_reading = False
        self._is_writing = False
        self._is_handling = False
        self._has_turn = False  # to come, for requests that are here already
        self._is_held_up = False  # requests wait until there is room for their answers
        self._is_closing = False  # no more requests; close when all answers are out
        self._has_hung_up = False  # the client sends no more; close when all requests are begun
        self.is_closed = False
        self.peer = f"{peer[0]}:{peer[1]}" if len(peer) >= 2 else "local"
        self.caller = Caller(str(peer[0]) if peer else "", sock)
        self.active_s = self._loop.time()  # when the client last sent or took something
        self._resume_reading()

    # Receiving

    def _resume_reading(self) -> None:
        if not (self._is_reading or self._is_closing or self._has_hung_up or self.is_closed):
            self._is_reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        if self._buffer is None:
            self._buffer = self._pool.take(self._hint)
            self._view = memoryview(self._buffer)
            self._start = self._end = 0
        try:
            # There is room behind `end`, or we would not be reading: see `_settle`.
            received = self._socket.recv_into(self._view[self._end : self._receive_limit()])
        except (BlockingIOError, InterruptedError):
            self._settle()
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if received == 0:
            self._on_hang_up()
            return
        self._end += received
        self.active_s = self._loop.time()
        if self._is_held_up:
            self._settle()
        else:
            self._handle_received()
        self._note_answered()

    def _note_answered(self) -> None:
        """If all that came is answered, the client may be about to send the next request."""
        if self._buffer is None and not self._slots:
            self._idle_polling.on_answered()

    def _on_hang_up(self) -> None:
        """Close, but for requests that came and wait for a handler: they are begun before."""
        waits_for = self._waits_for
        if self._has_turn or (self._is_held_up and waits_for is not None and waits_for.is_work):
            self._has_hung_up = True
            self._pause_reading()
        else:
            self.close()

    def _receive_limit(self) -> int:
        """Up to where to receive: the end of a large request that has begun, else what fits."""
        assert self._buffer is not None
        capacity = len(self._buffer)
        if self._end - self._start >= 4:
            wanted: int = 4 + _SIZE.unpack_from(self._buffer, self._start)[0]
            if wanted > BUFFER_BYTES and self._start + wanted > self._end:
                return min(self._start + wanted, capacity)
        return min(capacity, self._end + self._hint)

    def _handle_received(self) -> None:
        """Handle what was received, as far as it is whole requests whose answers have room."""
        is_turn_over = False
        failure = None
        self._is_handling = True
        try:
            is_turn_over = self._handle_requests()
        except ProtocolError as error:
            failure = str(error)
        except Exception as error:
            logger.exception("a request failed unexpectedly peer=%s", self.peer)
            failure = repr(error)
        self._is_handling = False
        if self._unsent and not self._is_writing:
            self._flush()
        if failure is not None:
            self._give_up(failure)
        elif is_turn_over:
            self._pause_reading()
            self._take_turn()
        elif self._has_hung_up:
            self._on_hang_up()
        elif not self.is_closed:
            self._settle()

    def _take_turn(self) -> None:
        """Go on with what was received when others have had their turn."""
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._has_turn = False
        if not self.is_closed:
            self._handle_received()

    def _handle_requests(self) -> bool:
        """Handle requests in order; whether to go on after others have had a turn."""
        is_turn_over = False
        self._is_held_up = False
        while self._end - self._start >= 4 and not self.is_closed and not self._is_closing:
            if self._is_blocked():
                self._is_held_up = True
                self._hurry()
                break
            assert self._buffer is not None
            size = _SIZE.unpack_from(self._buffer, self._start)[0]
            if not _REQUEST_BYTES_MIN <= size <= self._request_bytes_max:
                raise ProtocolError(f"a request of {size} bytes is not accepted")
            begin = self._start + 4
            if self._end - begin < size:
                break
            if is_turn_over:
                return True
            self._start = begin + size
            self._hint = max(BUFFER_BYTES, min(size + 4, POOLED_BYTES_MAX))
            is_turn_over = not self._handle(self._view[begin : begin + size])
        return False

    def _settle(self) -> None:
        """Receive on if there is, or can be, room behind what is not handled yet."""
        have = self._end - self._start
        if have == 0:
            self._release_buffer()
        elif self._is_held_up:
            assert self._buffer is not None
            if self._end == len(self._buffer):
                self._pause_reading()
                return
        else:
            try:
                self._make_room(have)
            except ProtocolError as error:
                self._give_up(str(error))
                return
        self._resume_reading()

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self._view.release()
            self._pool.give(self._buffer)
            self._buffer = None

    def _make_room(self, have: int) -> None:
        """See that more of the request that has begun can be received behind its beginning.

        Memory grows with what has come, not with what was announced.
        """
        assert self._buffer is not None
        needed: int = 4 if have < 4 else 4 + _SIZE.unpack_from(self._buffer, self._start)[0]
        capacity = min(needed, max(BUFFER_BYTES, 2 * have))
        if len(self._buffer) - self._start >= max(capacity, have + 1):
            return
        if len(self._buffer) >= capacity and len(self._buffer) > have:
            self._buffer[:have] = self._buffer[self._start : self._end]
        else:
            larger = self._pool.grow(self._buffer, max(capacity, have + 1))
            larger[:have] = self._view[self._start : self._end]
            self._release_buffer()
            self._buffer = larger
            self._view = memoryview(larger)
        self._start, self._end = 0, have

    def _handle(self, frame: memoryview) -> bool:
        """Begin one request, and answer it if that is done at once. Whether it was a pipelined one."""
        correlation_id, header, answer, is_pipelined = self._door.dispatch(frame, self.caller)
        if answer is None:
            return is_pipelined
        if isinstance(answer, asyncio.Future):
            slot = _Slot(correlation_id, header)
            self._slots.append(slot)
            self._promised.add(answer)
            if not is_pipelined:
                self._waits_for = slot
                slot.is_work = isinstance(answer, asyncio.Task)
                if isinstance(answer, Unhurried):
                    slot.hurry = answer.hurry
            answer.add_done_callback(lambda done: self._on_answer(slot, done))
        elif self._slots:
            slot = _Slot(correlation_id, header)
            self._slots.append(slot)
            self._fill(slot, answer)
        else:
            parts, size = _framed(correlation_id, header, answer)
            self._send(parts, size)
        return is_pipelined

    # Answering

    def _on_answer(self, slot: _Slot, done: asyncio.Future[Any]) -> None:
        self._promised.discard(done)
        error = None if done.cancelled() else done.exception()  # asked for even if nobody waits
        if self.is_closed:
            return
        if done.cancelled():
            self._give_up("a request was given up")
            return
        if error is not None:
            self._give_up(str(error) if isinstance(error, ProtocolError) else repr(error))
            return
        if self._waits_for is slot:
            self._waits_for = None
        self._fill(slot, done.result())
        while self._slots and self._slots[0].parts is not None:
            first = self._slots.popleft()
            assert first.parts is not None
            self._unsent_bytes -= first.size
            self._send(first.parts, first.size)
        self._unblock()
        self._note_answered()

    def _fill(self, slot: _Slot, answer: Answer) -> None:
        slot.parts, slot.size = _framed(slot.correlation_id, slot.header, answer)
        self._unsent_bytes += slot.size

    def _is_blocked(self) -> bool:
        return (
            self._waits_for is not None
            or len(self._slots) >= _ANSWERS_WAITING_MAX
            or self._unsent_bytes > _UNSENT_BYTES_MAX
        )

    def _hurry(self) -> None:
        """The next request is here: what waits only for want of anything better is answered."""
        if self._waits_for is not None and self._waits_for.hurry is not None:
            hurry, self._waits_for.hurry = self._waits_for.hurry, None
            hurry()

    def _unblock(self) -> None:
        """Go on with what was received, once there is room for answers.

        Not at once: an answer that leaves makes room for the next, and each would be within the one before.
        """
        if self._is_held_up and not self._is_handling and not self._is_blocked():
            self._take_turn()

    def _send(self, parts: list[Part], size: int) -> None:
        if self.is_closed:
            return
        if self._is_handling and self._end > self._start:
            # More requests came with this one: their answers leave together, with one call.
            self._unsent += parts
            self._unsent_bytes += size
            return
        if not self._unsent and len(parts) == 1:
            data = parts[0]
            assert isinstance(data, bytes)
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.close(f"the connection broke: {error.strerror}")
                return
            if sent < size:
                self._unsent.append(memoryview(data)[sent:])
                self._unsent_bytes += size - sent
                self._start_writing()
            if self._is_closing:
                self._close_when_done()
            return
        self._unsent += parts
        self._unsent_bytes += size
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        """Send until all is sent, the client's window is full, or it is the others' turn."""
        left = _SEND_TURN_BYTES
        self.active_s = self._loop.time()
        try:
            while self._unsent:
                if left <= 0:
                    self._start_writing()
                    return
                first = self._unsent[0]
                sent = self._send_file(first) if type(first) is FileSlice else self._send_memory()
                self._unsent_bytes -= sent
                left -= sent
        except (BlockingIOError, InterruptedError):
            self._start_writing()
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
        if self._is_closing:
            self._close_when_done()
        if self._is_held_up:
            self._unblock()

    def _send_file(self, part: FileSlice) -> int:
        count = min(part.size, _SENDFILE_BYTES)
        sent = os.sendfile(self._fd, part.file.fd, part.position, count)
        if sent == 0:
            logger.error("a segment file is shorter than its log position=%d", part.position)
            raise OSError(0, "a segment file is shorter than its log")
        if sent == part.size:
            self._unsent.popleft()
        else:
            self._unsent[0] = FileSlice(part.file, part.position + sent, part.size - sent)
        return sent

    def _send_memory(self) -> int:
        parts: list[bytes | memoryview] = []
        flags = 0
        for part in self._unsent:
            if isinstance(part, FileSlice):
                flags = _MSG_MORE
                break
            parts.append(part)
            if len(parts) == _SEND_PARTS_MAX:
                break
        sent = left = self._socket.sendmsg(parts, (), flags)
        for part in parts:
            size = len(part)
            if left < size:
                self._unsent[0] = memoryview(part)[left:]
                break
            self._unsent.popleft()
            left -= size
        return sent

    def _start_writing(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._fd, self._flush)

    # Closing

    def finish(self) -> None:
        """Take no more requests, and close when those taken are answered."""
        self._is_closing = True
        self._pause_reading()
        self._close_when_done()

    def _close_when_done(self) -> None:
        """For who is closing."""
        if not self._slots and not self._unsent:
            self.close()

    def _give_up(self, reason: str) -> None:
        if not self.is_closed:
            if len(reason) > _REASON_CHARACTERS_MAX:
                reason = f"{reason[:_REASON_CHARACTERS_MAX]}…"
            logger.warning("closing peer=%s reason=%s", self.peer, reason)
            self.close()

    def close(self, reason: str | None = None) -> None:
        """Close now. What waits for an answer is given up; group members stay until they time out."""
        if self.is_closed:
            return
        self.is_closed = True
        if reason:
            logger.debug("closed peer=%s reason=%s", self.peer, reason)
        self._pause_reading()
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        self._socket.close()
        for promise in self._promised:
            if not isinstance(promise, asyncio.Task):  # a handler is not stopped half-way
                promise.cancel()
        self.caller.close()
        self._slots.clear()
        self._unsent.clear()
        self._is_held_up = False
        self._start = self._end = 0
        self._release_buffer()
        self._on_close(self)


def _framed(correlation_id: int, header: bytes, answer: Answer) -> tuple[list[Part], int]:
    """An answer with its size and header in front, and how many bytes that is."""
    if isinstance(answer, bytes):
        size = 4 + len(header) + len(answer)
        return [_RESPONSE.pack(size, correlation_id) + header + answer], size + 4
    assert isinstance(answer, list)
    size = 4 + len(header)
    for part in answer:
        size += part.size if isinstance(part, FileSlice) else len(part)
    first = answer[0]
    assert isinstance(first, bytes)
    return [_RESPONSE.pack(size, correlation_id) + header + first, *answer[1:]], size + 4
