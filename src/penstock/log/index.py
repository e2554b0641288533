"""A sparse index: a file of fixed-size entries, ascending in every column.

    .index      (offset - base offset, position in the segment)    8 bytes each, big-endian
    .timeindex  (timestamp, offset - base offset)                 12 bytes each, big-endian

An index is a hint that can always be rebuilt from its segment, so it is written late: new entries wait
in memory until `flush` appends them to the file, which the log does at every recovery point. What the
file holds is mapped, never loaded: an index costs memory for its unflushed entries only.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_right
from typing import Final

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")

Entry = tuple[int, int]


class SparseIndex:
    """One index file. Not thread-safe but for `floor`, which may run beside appends."""

    __slots__ = ("_entry", "_file_count", "_map", "_path", "_tail")

    def __init__(self, path: str, entry: struct.Struct) -> None:
        self._path = path
        self._entry = entry
        self._map: mmap.mmap | None = None
        self._file_count = -1  # entries in the file; -1: not looked at yet
        self._tail: list[Entry] = []  # entries not in the file yet; all above those in it

    def __len__(self) -> int:
        return self._count_in_file() + len(self._tail)

    def last(self) -> Entry | None:
        if self._tail:
            return self._tail[-1]
        count = self._count_in_file()
        return self._read(count - 1) if count else None

    def add(self, first: int, second: int) -> None:
        self._tail.append((first, second))

    def floor(self, value: int, column: int = 0) -> Entry | None:
        """The last entry whose `column` is at most `value`: O(log n), in the file or in memory."""
        tail = self._tail
        if tail and tail[0][column] <= value:
            return tail[bisect_right(tail, value, key=lambda entry: entry[column]) - 1]
        count = self._count_in_file()
        found = bisect_right(range(count), value, key=lambda i: self._read(i)[column])
        return self._read(found - 1) if found else None

    def is_plausible(self, first_max: int, second_max: int) -> bool:
        """Whether the file is whole entries that end within these bounds, in ascending order.

        Looks at the two ends only: enough to tell a file that a power cut left short or zeroed.
        """
        try:
            size = os.path.getsize(self._path)
        except FileNotFoundError:
            return False
        count = self._count_in_file()
        if size % self._entry.size:
            return False
        if count == 0:
            return True
        last = self._read(count - 1)
        in_order = count == 1 or self._read(count - 2)[1] < last[1]
        return in_order and last[0] <= first_max and last[1] <= second_max

    def flush(self) -> None:
        """Append what waits in memory to the file. On `OSError` it goes on waiting."""
        if not self._tail:
            return
        count = self._count_in_file()
        data = b"".join(self._entry.pack(*entry) for entry in self._tail)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.pwrite(fd, data, count * self._entry.size)
        finally:
            os.close(fd)
        whole = written // self._entry.size
        del self._tail[:whole]
        self._file_count = count + whole
        self._map = None

    def truncate(self, second_max: int) -> None:
        """Drop every entry whose second column is above `second_max`."""
        self._tail = [entry for entry in self._tail if entry[1] <= second_max]
        count = self._count_in_file()
        keep = bisect_right(range(count), second_max, key=lambda i: self._read(i)[1])
        if keep < count:
            self._map = None
            os.truncate(self._path, keep * self._entry.size)
            self._file_count = keep

    def clear(self) -> None:
        """Drop every entry."""
        self._tail.clear()
        self._map = None
        self._file_count = 0
        if os.path.exists(self._path):
            os.truncate(self._path, 0)

    def sync(self) -> None:
        """Make the file durable. Blocks: runs in a thread."""
        if os.path.exists(self._path):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def release(self) -> None:
        """Give the mapping back; the next look-up maps anew."""
        self._map = None

    def _count_in_file(self) -> int:
        if self._file_count < 0:
            try:
                self._file_count = os.path.getsize(self._path) // self._entry.size
            except FileNotFoundError:
                self._file_count = 0
        return self._file_count

    def _read(self, i: int) -> Entry:
        mapped = self._map
        if mapped is None:
            with open(self._path, "rb") as file:
                mapped = self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        first, second = self._entry.unpack_from(mapped, i * self._entry.size)
        return first, second
