"""Both indexes of one segment, and how far they can be trusted."""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from penstock.records.batch import BatchHeader

OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
_TIMESTAMP_MAX: Final = 2**63 - 1


class Trust(Enum):
    UNCHECKED = "files as they were found at the start"
    TRUSTED = "made or checked by this process"
    BAD = "not to be used: to be made anew once the segment is no longer written to"


class SegmentIndexes:
    """Finds batches by offset and by time. Extended batch by batch, as the segment is written."""

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_stem",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "times",
        "trust",
    )

    def __init__(self, stem: str, base_offset: int, suffix: str = "") -> None:
        """The indexes of the segment whose path without `.log` is `stem`."""
        self._stem = stem
        self._base_offset = base_offset
        self._bytes_since_entry = 0
        self.max_timestamp = -1  # of the batches noted; -1: none has a time
        self.max_timestamp_offset = base_offset  # base offset of the first batch with that time
        self.offsets = SparseIndex(stem + OFFSET_INDEX_SUFFIX + suffix, OFFSET_ENTRY)
        self.times = SparseIndex(stem + TIME_INDEX_SUFFIX + suffix, TIME_ENTRY)
        self.trust = Trust.UNCHECKED

    def note(self, header: BatchHeader, base_offset: int, position: int, interval: int) -> None:
        """Index a batch that is in the segment at `position`."""
        if self._bytes_since_entry > interval:
            if self.trust is Trust.TRUSTED:
                self.offsets.add(base_offset - self._base_offset, position)
                self._note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.length
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = base_offset

    def _note_time(self) -> None:
        """An entry (time, offset) says: every batch before that offset is older than that time."""
        if self.max_timestamp < 0:
            return
        last = self.times.last()
        if last is None or self.max_timestamp > last[0]:
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self._base_offset)

    def finish(self) -> None:
        """The segment is complete: so are the indexes, on file. `OSError` if that is impossible."""
        if self.trust is Trust.BAD:
            self.clear()
            return
        self._note_time()
        self.offsets.flush(create=True)
        self.times.flush(create=True)

    def flush(self) -> None:
        """Bring what waits in memory to the files."""
        if self.trust is not Trust.BAD:
            self.offsets.flush()
            self.times.flush()

    def sync(self) -> None:
        """Make the files durable. Blocks: runs in a thread."""
        self.offsets.sync()
        self.times.sync()

    def clear(self) -> None:
        """Drop both files. What is noted from now on makes no index unless all of it is noted."""
        self.offsets.clear()
        self.times.clear()

    def release(self) -> None:
        self.offsets.release()
        self.times.release()

    def rewind(self, position: int, next_offset: int) -> None:
        """Keep the entries of the batches before `position`, where `next_offset` begins."""
        self.offsets.truncate(position - 1)
        self.times.truncate(next_offset - self._base_offset - 1)

    def is_plausible(self, size: int, end_offset: int) -> bool:
        """Whether the files can belong to a segment of `size` bytes that ends before `end_offset`."""
        relative_max = end_offset - self._base_offset - 1
        return self.offsets.is_plausible(relative_max, size - 1) and self.times.is_plausible(
            _TIMESTAMP_MAX, relative_max
        )

    def take_place(self) -> None:
        """Put these files, made beside the segment's old ones, in their place."""
        self.offsets.replace(self._stem + OFFSET_INDEX_SUFFIX)
        self.times.replace(self._stem + TIME_INDEX_SUFFIX)
