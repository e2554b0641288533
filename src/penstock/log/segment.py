"""One segment: a file of record batches, with its two sparse indexes.

Offsets `[base_offset, next segment's base_offset)` live in `{base_offset:020d}.log`. Only the last
segment of a log is written to; older ones are opened when somebody reads them and closed again when
many are open (`OpenFiles`). A reader gets a `FileSlice`, which keeps the file open until it is sent.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from typing import Final

from penstock.errors import CorruptLogError
from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from penstock.records.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header

LOG_SUFFIX: Final = ".log"
_SCAN_BYTES: Final = 8 * 1024


class LogFile:
    """An open file; closed when the last one who holds it lets go, so a slice outlives a deletion."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, path: str, flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class FileSlice:
    """Bytes `[position, position + size)` of a segment file: whole batches, ready to be sent."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: LogFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def read(self) -> bytes:
        """The bytes themselves. From disk if they are not cached: see `is_cached`."""
        data = os.pread(self.file.fd, self.size, self.position)
        if len(data) != self.size:
            raise CorruptLogError("segment", self.position, "the file is shorter than the log")
        return data

    def is_cached(self) -> bool:
        """Whether the system has both ends in memory, so that sending will not wait for a disk."""
        probe = [bytearray(1)]
        try:
            for position in (self.position, self.position + self.size - 1):
                os.preadv(self.file.fd, probe, position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (AttributeError, OSError):  # a system or file system that cannot tell
            return True
        return True


class OpenFiles:
    """Closes the longest unused segment files when more than `limit` are open."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._segments: OrderedDict[Segment, None] = OrderedDict()

    def touch(self, segment: Segment) -> None:
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        while len(self._segments) > self._limit:
            oldest, _ = self._segments.popitem(last=False)
            oldest.release()

    def forget(self, segment: Segment) -> None:
        self._segments.pop(segment, None)


class Segment:
    """One segment file. Invariant: bytes `[0, size)` are whole batches in ascending offset order."""

    __slots__ = (
        "_bytes_since_index",
        "_file",
        "_live_from",
        "_open_files",
        "_read_ends",
        "_verified",
        "base_offset",
        "created_ms",
        "index",
        "indexes_checked",
        "is_active",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "size",
        "time_index",
    )

    def __init__(self, directory: str, base_offset: int, size: int, open_files: OpenFiles) -> None:
        stem = os.path.join(directory, f"{base_offset:020d}")
        self.path = stem + LOG_SUFFIX
        self.base_offset = base_offset
        self.size = size
        self.is_active = False
        self.created_ms = 0  # when the first batch came; known for the active segment only
        self.max_timestamp = -1  # of the active segment; older ones have it in their time index
        self.max_timestamp_offset = base_offset
        self.index = SparseIndex(stem + ".index", OFFSET_ENTRY)
        self.time_index = SparseIndex(stem + ".timeindex", TIME_ENTRY)
        self._file: LogFile | None = None
        self._open_files = open_files
        self._bytes_since_index = 0
        self.indexes_checked = False
        self._read_ends: dict[int, int] = {}  # offset -> position where recent reads ended
        self._verified: list[tuple[int, int]] = []  # byte ranges whose CRCs were seen to hold
        self._live_from = size  # bytes from here on were appended since the start

    @property
    def file(self) -> LogFile:
        if self._file is None:
            self._file = LogFile(self.path, os.O_RDWR if self.is_active else os.O_RDONLY)
        if not self.is_active:
            self._open_files.touch(self)
        return self._file

    def activate(self) -> None:
        """Make this the segment that is written to, creating its file if need be."""
        self.is_active = True
        self._open_files.forget(self)
        self._file = LogFile(self.path, os.O_RDWR | os.O_CREAT)

    def release(self) -> None:
        """Close what can be opened again."""
        if not self.is_active:
            self._file = None
            self.index.release()
            self.time_index.release()

    def append(
        self, batch: memoryview, header: BatchHeader, base_offset: int, index_interval: int
    ) -> None:
        """Write one batch at the end. On `OSError` the segment is as it was before."""
        position = self.size
        size = len(batch)
        assert self._file is not None
        try:
            written = os.pwrite(self._file.fd, batch, position)
            if written != size:
                self._write_rest(batch, position, written)
        except OSError:
            self._cut_file(position)
            raise
        self.size = position + size
        self.note(header, base_offset, position, index_interval)

    def _write_rest(self, batch: memoryview, position: int, written: int) -> None:
        assert self._file is not None
        while written < len(batch):
            count = os.pwrite(self._file.fd, batch[written:], position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            written += count

    def _cut_file(self, size: int) -> None:
        assert self._file is not None
        try:
            os.ftruncate(self._file.fd, size)
        except OSError:
            return  # the next append overwrites the same bytes; recovery cuts a torn tail

    def note(
        self, header: BatchHeader, base_offset: int, position: int, index_interval: int
    ) -> None:
        """Index a batch that is in the file at `position`."""
        if self._bytes_since_index > index_interval:
            self.index.add(base_offset - self.base_offset, position)
            if self.max_timestamp >= 0:
                self._index_time()
            self._bytes_since_index = 0
        self._bytes_since_index += header.length
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = base_offset

    def _index_time(self) -> None:
        last = self.time_index.last()
        relative = self.max_timestamp_offset - self.base_offset
        if last is None or (self.max_timestamp > last[0] and relative >= last[1]):
            self.time_index.add(self.max_timestamp, relative)

    def seal(self) -> None:
        """Called when the next segment takes over: the indexes are complete and on file."""
        if self.max_timestamp >= 0:
            self._index_time()
        self.index.flush()
        self.time_index.flush()
        self.indexes_checked = True
        self.is_active = False
        self._open_files.touch(self)

    def largest_timestamp(self) -> int:
        """Largest timestamp in the segment; -1 if it has none."""
        if self.is_active:
            return self.max_timestamp
        last = self.time_index.last()
        return last[0] if last else -1

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch at `position`, with a sanity check on it."""
        return self._checked(os.pread(self.file.fd, HEADER_BYTES, position), 0, position)

    def _checked(self, data: bytes, start: int, position: int) -> BatchHeader:
        if len(data) - start < HEADER_BYTES:
            raise CorruptLogError(self.path, position, "the file ends inside a batch header")
        header = read_header(data, start)
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
            raise CorruptLogError(self.path, position, "no record batch begins here")
        return header

    def locate(self, offset: int) -> int:
        """Position of the batch that holds `offset`, or of the first one above it; `size` if none."""
        known = self._read_ends.get(offset)
        if known is not None:
            return known
        entry = self.index.floor(offset - self.base_offset)
        position = entry[1] if entry else 0
        if entry and entry[0] == offset - self.base_offset:
            return position
        while position < self.size:
            chunk = os.pread(self.file.fd, _SCAN_BYTES, position)
            start = 0
            while start + HEADER_BYTES <= len(chunk):
                header = self._checked(chunk, start, position + start)
                if header.last_offset >= offset:
                    return position + start
                start += header.size_bytes
            if start == 0:
                raise CorruptLogError(self.path, position, "the file ends inside a batch header")
            position += start
        return self.size

    def read(self, offset: int, bytes_max: int, end_offset: int) -> FileSlice | None:
        """Whole batches from the one that holds `offset` on: at least one, else at most `bytes_max`.

        `end_offset` is the offset behind the segment's last record. None if there is nothing.
        """
        position = self.locate(offset)
        available = self.size - position
        if available <= 0:
            return None
        if available <= bytes_max:
            self._remember_end(end_offset)
            return FileSlice(self.file, position, available)
        entry = self.index.floor(position + bytes_max, column=1)
        if entry is not None and entry[1] > position:
            return FileSlice(self.file, position, entry[1] - position)
        size = self.header_at(position).size_bytes
        return FileSlice(self.file, position, self._fill(position, size, bytes_max))

    def _fill(self, position: int, size: int, bytes_max: int) -> int:
        """Grow a slice of one batch by the whole batches behind it that fit `bytes_max`."""
        while position + size + HEADER_BYTES <= self.size:
            following = self.header_at(position + size).size_bytes
            if size + following > bytes_max:
                break
            size += following
        return size

    def _remember_end(self, end_offset: int) -> None:
        ends = self._read_ends
        if len(ends) >= 64:
            ends.pop(next(iter(ends)))
        ends[end_offset] = self.size

    def is_verified(self, start: int, end: int) -> bool:
        """Whether these bytes were written, or checked against their CRCs, since the start."""
        end = min(end, self._live_from)
        return start >= end or any(low <= start and end <= high for low, high in self._verified)

    def mark_verified(self, start: int, end: int) -> None:
        """Note that the batches in these bytes were checked against their CRCs."""
        apart = []
        for low, high in self._verified:
            if high < start or low > end:
                apart.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        self._verified = [*apart, (start, end)]

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, the end of a batch."""
        os.truncate(self.path, size)
        self.size = size
        self._live_from = min(self._live_from, size)
        self.index.truncate(size - 1)
        self._read_ends.clear()

    def rewind_indexes(self, position: int, next_offset: int) -> None:
        """Keep the index entries of the batches before `position`, where `next_offset` begins."""
        self.index.truncate(position - 1)
        self.time_index.truncate(next_offset - self.base_offset - 1)

    def check_indexes(self, end_offset: int) -> bool:
        """Whether both indexes can belong to this segment, which ends before `end_offset`."""
        span = end_offset - self.base_offset
        timestamp_max = 2**63 - 1
        return self.index.is_plausible(span, self.size) and self.time_index.is_plausible(
            timestamp_max, span
        )

    def reset_indexes(self) -> None:
        """Forget what the indexes hold, before the whole segment is noted anew."""
        self.index.clear()
        self.time_index.clear()
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self._bytes_since_index = 0

    def paths(self) -> list[str]:
        stem = self.path.removesuffix(LOG_SUFFIX)
        return [self.path, stem + ".index", stem + ".timeindex"]

    def drop(self) -> None:
        """Let go of the files; those still reading keep theirs open."""
        self._open_files.forget(self)
        self._file = None
        self.index.release()
        self.time_index.release()
