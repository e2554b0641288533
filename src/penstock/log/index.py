"""A sparse index: a file of fixed-size entries, ascending in every column.

    .index      (offset - base offset, position in the segment)    8 bytes each, big-endian
    .timeindex  (timestamp, offset - base offset)                 12 bytes each, big-endian

An index is a hint that can always be rebuilt from its segment, so it is written late: new entries wait
in memory until `flush` appends them to the file, which the log does at every recovery point. What the
file holds is read where it lies, a block of entries at a time, and the last block is kept for the next
look-up, which is often near: an index costs memory for that block and its unflushed entries only. It is
not memory-mapped, because an unreadable sector under a mapping kills the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from bisect import bisect_right
from typing import Final, NamedTuple

from penstock.log.files import LogFile

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")

Entry = tuple[int, int]

_BLOCK_ENTRIES: Final = 512  # read at once when a search has come this close


class BadIndexError(Exception):
    """An index does not fit its segment. Nothing is lost: it is made anew from the segment."""


class _Block(NamedTuple):
    """Entries `[start, end)` of the file, as a look-up read them."""

    start: int
    end: int
    data: bytes


_NO_BLOCK: Final = _Block(0, 0, b"")


class SparseIndex:
    """One index file. Look-ups may run in a thread beside `add` and `flush`; all else may not."""

    __slots__ = ("_block", "_count", "_entry", "_file", "_path", "_tail")

    def __init__(self, path: str, entry: struct.Struct) -> None:
        self._path = path
        self._entry = entry
        self._file: LogFile | None = None
        self._count = -1  # entries in the file; -1: not looked at yet
        self._tail: list[Entry] = []  # entries not in the file yet; all above those in it
        self._block = _NO_BLOCK

    def __len__(self) -> int:
        return self._count_in_file() + len(self._tail)

    def last(self) -> Entry | None:
        tail = self._tail
        if tail:
            return tail[-1]
        count = self._count_in_file()
        return self._read(count - 1) if count else None

    def add(self, first: int, second: int) -> None:
        self._tail.append((first, second))

    def floor(self, value: int, column: int = 0) -> Entry | None:
        """The last entry whose `column` is at most `value`: O(log n), in the file or in memory."""
        tail = self._tail
        if tail and tail[0][column] <= value:
            return tail[bisect_right(tail, value, key=lambda entry: entry[column]) - 1]
        block = self._block
        if not self._is_within(block, value, column):
            block = self._block = self._read_around(value, column)
        found = self._count_in(block.data, value, column)
        return self._entry_in(block.data, found - 1) if found else None

    def is_plausible(self, first_max: int, second_max: int) -> bool:
        """Whether the file is whole entries that end within these bounds, in ascending order.

        Looks at the two ends only: enough to tell a file that a power cut left short or zeroed.
        """
        try:
            size = os.path.getsize(self._path)
        except FileNotFoundError:
            return False
        if size % self._entry.size:
            return False
        count = self._count_in_file()
        if count == 0:
            return True
        last = self._read(count - 1)
        if count > 1:
            before = self._read(count - 2)
            in_order = before[0] < last[0] and before[1] < last[1]
        else:
            in_order = last != (0, 0)
        return in_order and last[0] <= first_max and last[1] <= second_max

    def flush(self, *, create: bool = False) -> None:
        """Append what waits in memory to the file. On `OSError` it goes on waiting.

        With `create` the file is there even if it is empty, so that it is not taken for lost.
        """
        tail = self._tail
        if not tail and not create:
            return
        count = self._count_in_file()
        data = b"".join(self._entry.pack(*entry) for entry in tail)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.pwrite(fd, data, count * self._entry.size)
        finally:
            os.close(fd)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        # In this order a look-up in a thread finds every entry, be it in both places for a moment.
        self._count = count + len(tail)
        self._tail = []

    def truncate(self, second_max: int) -> None:
        """Drop every entry whose second column is above `second_max`."""
        self._tail = [entry for entry in self._tail if entry[1] <= second_max]
        count = self._count_in_file()
        keep = self._count_up_to(second_max, 1)
        if keep < count:
            os.truncate(self._path, keep * self._entry.size)
            self._count = keep
            self._block = _NO_BLOCK

    def clear(self) -> None:
        """Drop every entry, and the file."""
        self._tail = []
        self._block = _NO_BLOCK
        self._count = 0
        self._file = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def replace(self, path: str) -> None:
        """Move the file to `path`, over the one that is there."""
        os.replace(self._path, path)
        self._path = path

    def sync(self) -> None:
        """Make the file durable. Blocks: runs in a thread."""
        with contextlib.suppress(FileNotFoundError):  # empty, or removed by retention
            LogFile(self._path, os.O_RDONLY).sync()

    def release(self) -> None:
        """Close the file; the next look-up opens it again."""
        self._file = None
        self._block = _NO_BLOCK

    def _count_in_file(self) -> int:
        if self._count < 0:
            try:
                self._count = os.path.getsize(self._path) // self._entry.size
            except FileNotFoundError:
                self._count = 0
        return self._count

    def _count_up_to(self, value: int, column: int) -> int:
        """How many entries of the file have at most `value` in their `column`."""
        low, high = self._bracket(value, column)
        return low + self._count_in(self._pread(low, high - low), value, column)

    def _read_around(self, value: int, column: int) -> _Block:
        """Entries of the file, the last one up to `value` and what comes behind it among them."""
        low, _ = self._bracket(value, column)
        start = max(low - 1, 0)
        end = min(start + _BLOCK_ENTRIES + 1, self._count_in_file())
        return _Block(start, end, self._pread(start, end - start))

    def _bracket(self, value: int, column: int) -> tuple[int, int]:
        """Bounds, at most a block apart, on how many entries have at most `value`."""
        low, high = 0, self._count_in_file()
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self._read(middle)[column] <= value:
                low = middle + 1
            else:
                high = middle
        return low, high

    def _count_in(self, block: bytes, value: int, column: int) -> int:
        size = self._entry.size
        unpack = self._entry.unpack_from
        low, high = 0, len(block) // size
        while low < high:
            middle = (low + high) // 2
            if unpack(block, middle * size)[column] <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_within(self, block: _Block, value: int, column: int) -> bool:
        """Whether the last entry up to `value` is in `block`, or that there is none can be told from it."""
        data = block.data
        if not data:
            return False
        unpack = self._entry.unpack_from
        last = len(data) - self._entry.size
        return bool(
            (block.start == 0 or unpack(data, 0)[column] <= value)
            and (block.end == self._count or value < unpack(data, last)[column])
        )

    def _entry_in(self, block: bytes, i: int) -> Entry:
        first, second = self._entry.unpack_from(block, i * self._entry.size)
        return first, second

    def _read(self, i: int) -> Entry:
        return self._entry_in(self._pread(i, 1), 0)

    def _pread(self, first: int, count: int) -> bytes:
        if count <= 0:
            return b""
        file = self._file
        try:
            if file is None:
                file = self._file = LogFile(self._path, os.O_RDONLY)
        except FileNotFoundError:
            raise BadIndexError(f"{self._path} is gone") from None
        size = self._entry.size
        try:
            data = file.pread(count * size, first * size)
        except OSError as error:
            raise BadIndexError(f"{self._path} cannot be read: {error.strerror}") from error
        if len(data) != count * size:
            raise BadIndexError(f"{self._path} is shorter than before")
        return data
