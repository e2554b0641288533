"""One client's connection: frames in, answers out, in order and bounded.

Works on the socket itself rather than through a stream. Requests are received into buffers that all
connections share by turns, so an idle connection holds none and a busy one keeps the same memory warm;
a request is handled before its buffer is used again. Answers leave in the order of their requests;
records are sent from file to socket by the kernel. A client that does not read its answers is not
read from either, until it does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ProtocolError
from penstock.log import FileSlice

if TYPE_CHECKING:
    from penstock.kafka.api import Answer
    from penstock.kafka.fetch_codec import Part
    from penstock.kafka.router import KafkaDoor

logger = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")
_RESPONSE: Final = struct.Struct(">ii")  # size and correlation id
_REQUEST_BYTES_MIN: Final = 8
_BUFFER_BYTES: Final = 64 * 1024
_POOLED_BYTES_MAX: Final = 2 * 1024 * 1024
_GROW_BYTES: Final = 1024 * 1024
_ANSWERS_WAITING_MAX: Final = 64
_UNSENT_BYTES_MAX: Final = 1024 * 1024
_SENDFILE_BYTES: Final = 4 * 1024 * 1024
_SEND_PARTS_MAX: Final = 64


class BufferPool:
    """Receive buffers by size, the last one returned first: it is the one still in the CPU's cache."""

    def __init__(self, count_max: int = 8) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._count_max = count_max

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes; its contents are anything."""
        capacity = max(_BUFFER_BYTES, 1 << (size - 1).bit_length())
        free = self._free.get(capacity)
        return free.pop() if free else bytearray(capacity)

    def give(self, buffer: bytearray) -> None:
        if len(buffer) <= _POOLED_BYTES_MAX:
            free = self._free.setdefault(len(buffer), [])
            if len(free) < self._count_max:
                free.append(buffer)


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("correlation_id", "future", "header", "parts")

    def __init__(self, correlation_id: int, header: bytes, future: asyncio.Future[Any]) -> None:
        self.correlation_id = correlation_id
        self.header = header
        self.future = future
        self.parts: list[Part] | None = None  # None: not answered yet


class Connection:
    """Owns its socket. All methods run on the event loop."""

    def __init__(
        self,
        sock: socket.socket,
        peer: tuple[Any, ...],
        door: KafkaDoor,
        pool: BufferPool,
        request_bytes_max: int,
        on_close: Any,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._fd = sock.fileno()
        self._door = door
        self._pool = pool
        self._request_bytes_max = request_bytes_max
        self._on_close = on_close
        self._buffer: bytearray | None = None
        self._view = memoryview(b"")
        self._start = self._end = 0  # received bytes not handled yet: buffer[start:end]
        self._hint = _BUFFER_BYTES  # how much to receive at once: the last request's size
        self._slots: deque[_Slot] = deque()
        self._unsent: deque[bytes | memoryview | FileSlice] = deque()
        self._unsent_bytes = 0
        self._is_writing = False
        self._is_reading = False
        self._is_handling = False
        self._is_closing = False  # no more requests; close when all answers are out
        self.is_closed = False
        self.peer = f"{peer[0]}:{peer[1]}" if len(peer) >= 2 else "local"
        self.host = str(peer[0]) if peer else ""
        self.heard_s = self._loop.time()  # when the client last sent something
        self._resume_reading()

    # Receiving

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing and not self.is_closed:
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
            limit = self._receive_limit()
            received = self._socket.recv_into(self._view[self._end : limit])
        except (BlockingIOError, InterruptedError):
            self._release_if_empty()
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if received == 0:
            self.close()
            return
        self._end += received
        self.heard_s = self._loop.time()
        self._handle_received()

    def _receive_limit(self) -> int:
        """Up to where to receive: the end of a large request that has begun, else what fits."""
        assert self._buffer is not None
        capacity = len(self._buffer)
        if self._end - self._start >= 4:
            wanted = self._start + 4 + _SIZE.unpack_from(self._buffer, self._start)[0]
            if wanted - self._start > _BUFFER_BYTES:
                return int(min(wanted, capacity))
        return min(capacity, self._end + self._hint)

    def _handle_received(self) -> None:
        """Handle every whole request received, until answers pile up."""
        self._is_handling = True
        try:
            while self._end - self._start >= 4 and not self.is_closed:
                if self._is_blocked():
                    self._pause_reading()
                    break
                assert self._buffer is not None
                size = _SIZE.unpack_from(self._buffer, self._start)[0]
                if not _REQUEST_BYTES_MIN <= size <= self._request_bytes_max:
                    raise ProtocolError(f"a request of {size} bytes is not accepted")
                begin = self._start + 4
                if self._end - begin < size:
                    self._make_room(size + 4)
                    break
                self._start = begin + size
                self._hint = max(_BUFFER_BYTES, min(size + 4, _POOLED_BYTES_MAX))
                self._handle(self._view[begin : begin + size])
        except ProtocolError as error:
            logger.warning("closing peer=%s reason=%s", self.peer, error)
            self.close()
            return
        finally:
            self._is_handling = False
        if 0 < self._end - self._start < 4:
            self._make_room(4)
        self._release_if_empty()

    def _release_if_empty(self) -> None:
        if self._buffer is not None and self._start == self._end:
            self._view.release()
            self._pool.give(self._buffer)
            self._buffer = None

    def _make_room(self, needed: int) -> None:
        """See that the rest of a request of `needed` bytes can be received behind its beginning.

        Memory grows with what has come, not with what was announced.
        """
        assert self._buffer is not None
        have = self._end - self._start
        capacity = min(needed, max(_GROW_BYTES, 2 * have))
        if len(self._buffer) - self._start >= max(capacity, have + 1):
            return
        if len(self._buffer) >= capacity and len(self._buffer) > have:
            self._buffer[:have] = self._buffer[self._start : self._end]
        else:
            larger = self._pool.take(max(capacity, have + 1))
            larger[:have] = self._view[self._start : self._end]
            self._view.release()
            self._pool.give(self._buffer)
            self._buffer = larger
            self._view = memoryview(larger)
        self._start, self._end = 0, have

    def _handle(self, frame: memoryview) -> None:
        correlation_id, header, answer = self._door.dispatch(frame, self.host)
        if answer is None:
            return
        if isinstance(answer, asyncio.Future):
            slot = _Slot(correlation_id, header, answer)
            self._slots.append(slot)
            answer.add_done_callback(lambda _: self._on_answer(slot))
        elif self._slots:
            slot = _Slot(correlation_id, header, _NO_FUTURE)
            slot.parts = _framed(correlation_id, header, answer)
            self._slots.append(slot)
        else:
            self._send(_framed(correlation_id, header, answer))

    # Answering

    def _on_answer(self, slot: _Slot) -> None:
        if self.is_closed or slot.future.cancelled():
            return
        error = slot.future.exception()
        if error is not None:
            reason = error if isinstance(error, ProtocolError) else f"unexpected {error!r}"
            logger.warning("closing peer=%s reason=%s", self.peer, reason)
            self.close()
            return
        slot.parts = _framed(slot.correlation_id, slot.header, slot.future.result())
        while self._slots and self._slots[0].parts is not None:
            parts = self._slots.popleft().parts
            assert parts is not None
            self._send(parts)
        self._unblock()

    def _is_blocked(self) -> bool:
        return len(self._slots) >= _ANSWERS_WAITING_MAX or self._unsent_bytes > _UNSENT_BYTES_MAX

    def _unblock(self) -> None:
        """Go on with what was received, and with receiving, once there is room for answers."""
        if self._is_reading or self._is_handling or self.is_closed or self._is_blocked():
            return
        if self._end - self._start >= 4 and self._buffer is not None:
            self._handle_received()
        if not self._is_blocked():
            self._resume_reading()

    def _send(self, parts: list[Part]) -> None:
        if self.is_closed:
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
            if sent < len(data):
                self._unsent.append(memoryview(data)[sent:])
                self._unsent_bytes += len(data) - sent
                self._start_writing()
            self._close_when_done()
            return
        for part in parts:
            self._unsent.append(part)
            self._unsent_bytes += part.size if isinstance(part, FileSlice) else len(part)
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        """Send until all is sent or the client's window is full."""
        try:
            while self._unsent:
                first = self._unsent[0]
                if isinstance(first, FileSlice):
                    self._send_file(first)
                else:
                    self._send_memory()
        except (BlockingIOError, InterruptedError):
            self._start_writing()
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
        self._close_when_done()
        self._unblock()

    def _send_file(self, part: FileSlice) -> None:
        count = min(part.size, _SENDFILE_BYTES)
        sent = os.sendfile(self._fd, part.file.fd, part.position, count)
        if sent == 0:
            raise OSError(0, "a segment file is shorter than its log")
        self._unsent_bytes -= sent
        if sent == part.size:
            self._unsent.popleft()
        else:
            self._unsent[0] = FileSlice(part.file, part.position + sent, part.size - sent)

    def _send_memory(self) -> None:
        parts: list[bytes | memoryview] = []
        flags = 0
        for part in self._unsent:
            if isinstance(part, FileSlice):
                flags = socket.MSG_MORE
                break
            parts.append(part)
            if len(parts) == _SEND_PARTS_MAX:
                break
        sent = self._socket.sendmsg(parts, (), flags)
        self._unsent_bytes -= sent
        for part in parts:
            size = len(part)
            if sent < size:
                self._unsent[0] = memoryview(part)[sent:]
                break
            self._unsent.popleft()
            sent -= size

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
        if self._is_closing and not self._slots and not self._unsent:
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
        for slot in self._slots:
            if not isinstance(slot.future, asyncio.Task):
                slot.future.cancel()
        self._slots.clear()
        self._unsent.clear()
        self._start = self._end = 0
        self._release_if_empty()
        self._on_close(self)


def _framed(correlation_id: int, header: bytes, answer: Answer) -> list[Part]:
    """An answer with its size and header in front."""
    if isinstance(answer, bytes):
        size = 4 + len(header) + len(answer)
        return [_RESPONSE.pack(size, correlation_id) + header + answer]
    assert isinstance(answer, list)
    size = 4 + len(header)
    for part in answer:
        size += part.size if isinstance(part, FileSlice) else len(part)
    first = answer[0]
    assert isinstance(first, bytes)
    return [_RESPONSE.pack(size, correlation_id) + header + first, *answer[1:]]


_NO_FUTURE: Final[Any] = None
