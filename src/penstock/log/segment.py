"""One segment: a file of record batches, with its two sparse indexes.

Offsets `[base_offset, next segment's base_offset)` live in `{base_offset:020d}.log`. Only the last
segment of a log is written to; older ones are opened when somebody reads them and closed again when
many are open (`OpenFiles`). A reader gets a `FileSlice`, which keeps the file open until it is sent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.errors import CorruptLogError
from penstock.log.files import FileSlice, LogFile
from penstock.log.index import BadIndexError, Entry
from penstock.log.indexing import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    SegmentIndexes,
    Trust,
)
from penstock.records.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header

__all__ = ["LOG_SUFFIX", "FileSlice", "LogFile", "OpenFiles", "Segment", "UncheckedGapError"]

LOG_SUFFIX: Final = ".log"
_SCAN_BYTES: Final = 8 * 1024
_READ_ENDS_MAX: Final = 64


class UncheckedGapError(Exception):
    """No record has the offset asked for, but bytes `[start, end)` that say so were not checked."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(start, end)
        self.start = start
        self.end = end


class OpenFiles:
    """Closes the longest unused segment files when more than `limit` are open. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._segments: OrderedDict[Segment, None] = OrderedDict()

    def touch(self, segment: Segment) -> None:
        unused: list[Segment] = []
        with self._lock:
            self._segments[segment] = None
            self._segments.move_to_end(segment)
            while len(self._segments) > self._limit:
                unused.append(self._segments.popitem(last=False)[0])
        for oldest in unused:
            oldest.release()

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._segments.pop(segment, None)


class Segment:
    """One segment file. Invariant: bytes `[0, size)` are whole batches in ascending offset order.

    Written to and changed on the event loop. Reading may run in a thread beside that: it is told up to
    which size, and sees nothing behind it.
    """

    __slots__ = (
        "_file",
        "_is_torn",
        "_live_from",
        "_open_files",
        "_read_ends",
        "_verified",
        "base_offset",
        "created_ms",
        "indexes",
        "is_active",
        "is_retired",
        "path",
        "size",
    )

    def __init__(self, directory: str, base_offset: int, size: int, open_files: OpenFiles) -> None:
        stem = os.path.join(directory, f"{base_offset:020d}")
        self.path = stem + LOG_SUFFIX
        self.base_offset = base_offset
        self.size = size
        self.is_active = False
        self.is_retired = False  # cut off: another segment may have its name by now
        self.created_ms = 0  # when the first batch came; known for the active segment only
        self.indexes = SegmentIndexes(stem, base_offset)
        self._file: LogFile | None = None
        self._is_torn = False  # a failed write left bytes behind `size` that could not be cut
        self._open_files = open_files
        self._read_ends: dict[int, int] = {}  # offset -> position where recent reads ended
        self._verified: list[tuple[int, int]] = []  # byte ranges whose CRCs were seen to hold
        self._live_from = size  # bytes from here on were appended since the start

    @property
    def stem(self) -> str:
        return self.path.removesuffix(LOG_SUFFIX)

    @property
    def is_indexed(self) -> bool:
        """Whether the indexes are known to be those of this segment."""
        return self.indexes.trust is Trust.TRUSTED

    @property
    def file(self) -> LogFile:
        file = self._file
        if file is None:
            file = LogFile(self.path, os.O_RDWR if self.is_active else os.O_RDONLY)
            if self.is_retired:  # looked at when the file is open: it may be another's already
                raise FileNotFoundError(errno.ENOENT, "it was cut off", self.path)
            self._file = file
        if not self.is_active:
            self._open_files.touch(self)
        return file

    def activate(self, *, is_new: bool = False) -> None:
        """Make this the segment that is written to, creating its file if need be.

        `is_new`: no file of this segment is known. Indexes that are there are left over from a removal
        that was cut short.
        """
        file = LogFile(self.path, os.O_RDWR | os.O_CREAT)
        if is_new:
            if os.fstat(file.fd).st_size:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.path)
            self.indexes.clear()
            self.indexes.trust = Trust.TRUSTED
        self._file = file
        self.is_active = True
        self._open_files.forget(self)

    def release(self) -> None:
        """Close what can be opened again."""
        if not self.is_active:
            self._file = None
            self.indexes.release()

    def append(
        self, batch: memoryview, header: BatchHeader, base_offset: int, index_interval: int
    ) -> None:
        """Write one batch at the end. On `OSError` the segment is as it was before."""
        position = self.size
        size = len(batch)
        assert self._file is not None
        if self._is_torn:
            self.cut_torn()
        try:
            written = os.pwrite(self._file.fd, batch, position)
            if written != size:
                self._write_rest(batch, position, written)
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):  # tried again before anything else is written
                self.cut_torn()
            raise
        self.size = position + size
        self.indexes.note(header, base_offset, position, index_interval)

    def append_run(
        self, batches: memoryview, headers: Sequence[BatchHeader], index_interval: int
    ) -> None:
        """Write whole batches, which have these headers, at the end, all at once. As `append`."""
        first = headers[0]
        position = self.size + first.size_bytes
        self.append(batches, first, first.base_offset, index_interval)
        note = self.indexes.note
        for header in headers[1:]:
            note(header, header.base_offset, position, index_interval)
            position += header.size_bytes

    def _write_rest(self, batch: memoryview, position: int, written: int) -> None:
        assert self._file is not None
        while written < len(batch):
            count = os.pwrite(self._file.fd, batch[written:], position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            written += count

    def cut_torn(self) -> None:
        """Cut what a failed write left, so that nobody finds half a batch with others behind it."""
        if self._is_torn:
            assert self._file is not None
            os.ftruncate(self._file.fd, self.size)
            self._is_torn = False

    def seal(self) -> None:
        """Called when the next segment takes over: the indexes are complete and on file."""
        self.indexes.finish()
        self.is_active = False
        self._open_files.touch(self)

    def largest_timestamp(self, end_offset: int | None = None) -> int | None:
        """Largest timestamp in the segment, -1 if it has none; None if the indexes cannot tell.

        With `end_offset`, the offset behind the segment, indexes from before the start will do, too,
        if they look like those of this segment.
        """
        indexes = self.indexes
        if indexes.trust is Trust.UNCHECKED:
            if end_offset is None or not indexes.is_plausible(self.size, end_offset):
                return None
        elif indexes.trust is Trust.BAD:
            return None
        if self.is_active:
            return indexes.max_timestamp
        last = indexes.times.last()
        return last[0] if last else -1

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch at `position`, with a sanity check on it."""
        return self._checked(self.file.pread(HEADER_BYTES, position), 0, position)

    def _checked(self, data: bytes, start: int, position: int) -> BatchHeader:
        if len(data) - start < HEADER_BYTES:
            raise CorruptLogError(self.path, position, "the file ends inside a batch header")
        header = read_header(data, start)
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
            raise CorruptLogError(self.path, position, "no record batch begins here")
        return header

    def _entry(self, value: int, column: int) -> Entry | None:
        """The last index entry up to `value`, seen to point at the batch that it says it does.

        Not looked at is where bytes begin that this process appended, and indexed, itself.
        """
        indexes = self.indexes
        if indexes.trust is Trust.BAD:
            return None
        try:
            entry = indexes.offsets.floor(value, column)
            if entry is None:
                return None
            relative, position = entry
            if position < self.size:
                if position >= self._live_from:
                    return entry
                header = self.header_at(position)
                if header.base_offset == self.base_offset + relative:
                    return entry
        except (BadIndexError, CorruptLogError):
            pass  # the index's fault, or not: a scan will tell
        indexes.trust = Trust.BAD
        raise BadIndexError(f"the index of {self.path} does not fit it")

    def locate(self, offset: int, size: int) -> int:
        """Position of the batch that holds `offset`, or of the first one above it; `size` if none.

        `BadIndexError` if the index turned out to be wrong; it is not used any more then.
        `UncheckedGapError` if damage could be what makes it look as if there were no such record.
        """
        known = self._read_ends.get(offset)
        if known is not None:
            return known
        entry = self._entry(offset - self.base_offset, 0)
        begin = position = entry[1] if entry else 0
        if position >= size:
            return size
        if entry and entry[0] == offset - self.base_offset:
            return position
        file = self.file
        while position < size:
            chunk = file.pread(min(_SCAN_BYTES, size - position), position)
            start = 0
            while start + HEADER_BYTES <= len(chunk):
                header = self._checked(chunk, start, position + start)
                if header.last_offset >= offset:
                    if header.base_offset > offset:
                        self._check_gap(begin, position + start)
                    return position + start
                start += header.size_bytes
            if start == 0:
                raise CorruptLogError(self.path, position, "the file ends inside a batch header")
            position += start
        self._check_gap(begin, size)
        return size

    def _check_gap(self, start: int, end: int) -> None:
        if not self.is_verified(start, end):
            raise UncheckedGapError(start, end)

    def read(self, offset: int, bytes_max: int, size: int, end_offset: int) -> FileSlice | None:
        """Whole batches from the one that holds `offset` on: at least one, else at most `bytes_max`.

        Looks at the first `size` bytes, behind whose last record comes `end_offset`. None if there is
        nothing. Raises what `locate` raises.
        """
        position = self.locate(offset, size)
        if position >= size:
            return None
        if size - position <= bytes_max:
            self.remember_end(end_offset, size)
            return FileSlice(self.file, position, size - position)
        entry = self._entry(position + bytes_max, 1)
        if entry is not None and entry[1] > position:
            self.remember_end(self.base_offset + entry[0], entry[1])
            return FileSlice(self.file, position, entry[1] - position, has_more=True)
        filled = self._fill(position, bytes_max, size)
        return FileSlice(self.file, position, filled, has_more=position + filled < size)

    def _fill(self, position: int, bytes_max: int, size: int) -> int:
        """How many bytes the batch at `position` and those behind it that fit `bytes_max` have."""
        header = self.header_at(position)
        end = position + header.size_bytes
        while end + HEADER_BYTES <= size:
            following = self.header_at(end)
            if end + following.size_bytes > min(position + bytes_max, size):
                break
            header = following
            end += header.size_bytes
        if self.is_verified(position, end):
            self.remember_end(header.last_offset + 1, end)
        return end - position

    def remember_end(self, end_offset: int, position: int) -> None:
        """The next read probably begins where this one ended: it is spared the search."""
        if len(self._read_ends) >= _READ_ENDS_MAX:
            self._read_ends = {}
        self._read_ends[end_offset] = position

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
        """Cut the file to `size` bytes, the end of a batch. Only before anybody reads it."""
        os.truncate(self.path, size)
        self.size = size
        self._live_from = min(self._live_from, size)
        self._read_ends = {}

    def end_offset_at(self, position: int) -> int:
        """The offset behind the last record before `position`, where a batch begins or the file ends.

        Raises what `locate` raises for a wrong index.
        """
        entry = self._entry(position - 1, 1) if position else None
        end_offset = self.base_offset
        for header in self._headers(entry[1] if entry else 0, position):
            end_offset = header.last_offset + 1
        return end_offset

    def _headers(self, start: int, end: int) -> Iterator[BatchHeader]:
        while start < end:
            header = self.header_at(start)
            yield header
            start += header.size_bytes

    def shortened(self, size: int, end_offset: int) -> Segment:
        """The sealed segment that is left of this one: `size` bytes, all before `end_offset`.

        Indexes are cut already, the file is not: see `cut_file`. This one is not to be used any more,
        but by those who are reading it.
        """
        shorter = Segment(os.path.dirname(self.path), self.base_offset, size, self._open_files)
        shorter.created_ms = self.created_ms
        shorter._live_from = min(self._live_from, size)
        shorter._verified = [(low, min(high, size)) for low, high in self._verified if low < size]
        indexes = shorter.indexes
        try:
            self._hand_over(shorter, end_offset)
            indexes.trust = Trust.TRUSTED
        except (BadIndexError, CorruptLogError):
            indexes.trust = Trust.BAD  # made anew when they are needed
        indexes.finish()
        return shorter

    def _hand_over(self, shorter: Segment, end_offset: int) -> None:
        """Make what is left of the indexes those of the shorter segment."""
        if not self.is_indexed:
            raise BadIndexError(f"the indexes of {self.path} are not known to be its own")
        self.indexes.flush()
        indexes, size = shorter.indexes, shorter.size
        indexes.rewind(size, end_offset)
        last = indexes.times.last()
        if last is not None:
            indexes.max_timestamp = last[0]
            indexes.max_timestamp_offset = self.base_offset + last[1]
        indexed = indexes.offsets.last()
        for header in shorter._headers(indexed[1] if indexed else 0, size):
            if header.max_timestamp > indexes.max_timestamp:
                indexes.max_timestamp = header.max_timestamp
                indexes.max_timestamp_offset = header.base_offset

    def cut_file(self) -> LogFile:
        """Cut the file to this segment's size; the file."""
        file = LogFile(self.path, os.O_RDWR)
        os.ftruncate(file.fd, self.size)
        self._file = file
        self._open_files.touch(self)
        return file

    def retire(self) -> None:
        """It is no longer part of the log. Those still reading keep the file they have open."""
        self.is_retired = True
        self.drop()

    def paths(self) -> list[str]:
        return [self.path, self.stem + OFFSET_INDEX_SUFFIX, self.stem + TIME_INDEX_SUFFIX]

    def drop(self) -> None:
        """Let go of the files; those still reading keep theirs open."""
        self._open_files.forget(self)
        self._file = None
        self.indexes.release()
