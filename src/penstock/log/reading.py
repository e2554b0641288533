"""Reads that may wait for the disk: of data that this process has not checked, or not in memory."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.errors import ApiError, CorruptLogError, ErrorCode, StorageError
from penstock.log.files import FileSlice
from penstock.log.index import BadIndexError
from penstock.log.indexing import SegmentIndexes, Trust
from penstock.log.scan import Damage, check_at, scan
from penstock.log.segment import Segment, UncheckedGapError
from penstock.records.batch import BatchHeader

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_ATTEMPTS_MAX: Final = 5  # a wrong index, a gap to be checked, and then it must do


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Part(NamedTuple):
    """What may be seen of a segment: its first `size` bytes, behind whose last record `end_offset` is."""

    segment: Segment
    size: int
    end_offset: int
    segment_size: int  # and all there is of it
    segment_end: int


class ColdRead:
    """A read from a segment that was not checked since the start, or has left the page cache.

    `run` blocks and is meant for a thread. It rebuilds the segment's indexes if they cannot be right,
    brings the bytes into the page cache and checks every batch's CRC once, so that damage on disk is
    answered with a storage error instead of being handed to a client. It sees the log as it was when
    the read was asked for.
    """

    __slots__ = ("_bytes_max", "_cuts", "_log", "_offset", "_parts")

    def __init__(
        self, log: PartitionLog, parts: Sequence[Part], offset: int, bytes_max: int
    ) -> None:
        """`parts` are what may be read, from the one that holds `offset` on."""
        self._log = log
        self._parts = parts
        self._cuts = len(log.cut_offsets)
        self._offset = offset
        self._bytes_max = bytes_max

    def run(self) -> FileSlice | None:
        """The slice, warm and checked; None if nothing is at or above the offset."""
        if self._log.failure is not None:
            raise self._log.failure_again()
        try:
            for part in self._parts:
                found = self._read(part)
                if found is not None:
                    return found
            return None
        except CorruptLogError as error:
            self._check_not_overtaken(error)
            raise self._log.fail(f"{error}; run `penstock log verify`") from error
        except OSError as error:
            self._check_not_overtaken(error)
            raise StorageError(f"cannot read {self._log.directory}: {error.strerror}") from error

    def _read(self, part: Part) -> FileSlice | None:
        segment = part.segment
        found = insist(
            self._log,
            part,
            lambda: segment.read(self._offset, self._bytes_max, part.size, part.end_offset),
        )
        if found is not None:
            _verify(self._log, segment, found, part.segment_size, part.segment_end)
        return found

    def _check_not_overtaken(self, error: Exception) -> None:
        """If the log was cut, or its begin deleted, that its files are not what they were is no damage.

        After a cut the reader is to ask again: what it wants may be there still.
        """
        is_being_cut = any(part.segment.is_retired for part in self._parts)
        if is_being_cut or len(self._log.cut_offsets) > self._cuts:
            raise ApiError(
                ErrorCode.not_leader_or_follower, "the log was cut while it was read"
            ) from error
        if self._offset < self._log.log_start_offset:
            raise ApiError(
                ErrorCode.offset_out_of_range, f"offset {self._offset} was deleted meanwhile"
            ) from error


def insist(log: PartitionLog, part: Part, read: Callable[[], Result]) -> Result:
    """What `read` finds in a part's segment, with what is in its way mended.

    Blocks: runs in a thread. `CorruptLogError` if that is impossible.
    """
    segment = part.segment
    for _ in range(_ATTEMPTS_MAX):
        ensure_indexes(log, part)
        try:
            return read()
        except BadIndexError:
            continue  # not trusted any more: made anew, or done without
        except UncheckedGapError as gap:
            for found in scan(
                segment.path, start=gap.start, end=gap.end, next_offset=segment.base_offset
            ):
                if isinstance(found, Damage):
                    raise CorruptLogError(segment.path, found.position, found.reason) from None
            segment.mark_verified(gap.start, gap.end)
    raise CorruptLogError(segment.path, 0, "it changes while it is read")


def _verify(
    log: PartitionLog, segment: Segment, found: FileSlice, size: int, end_offset: int
) -> None:
    """Check each batch's CRC, and that its offsets fit between those around it."""
    data = memoryview(found.read())
    end = found.position + found.size
    if segment.is_verified(found.position, end):
        return
    position, next_offset = 0, segment.base_offset
    while position < len(data):
        header = check_at(data, position)
        if not isinstance(header, BatchHeader):
            raise CorruptLogError(segment.path, found.position + position, header)
        _check_order(segment, found.position + position, header, next_offset)
        position += header.size_bytes
        next_offset = header.last_offset + 1
    if end < size:
        _check_order(segment, end, segment.header_at(end), next_offset)
    else:
        _check_reaches(log, segment, next_offset, end_offset)
    segment.mark_verified(found.position, end)
    segment.remember_end(next_offset, end)


def _check_order(segment: Segment, position: int, header: BatchHeader, next_offset: int) -> None:
    if header.base_offset < next_offset:
        raise CorruptLogError(
            segment.path, position, f"offset {header.base_offset} behind offset {next_offset - 1}"
        )


def ensure_indexes(log: PartitionLog, part: Part) -> None:
    """Check a sealed segment's indexes once, or make them anew. Blocks: runs in a thread.

    `CorruptLogError` if its records do not reach up to the next segment, or are damaged. The segment
    that is written to is left alone: bad indexes of it are not used, until it is sealed.
    """
    segment = part.segment
    if segment.is_active or segment.is_indexed:
        return
    with log.index_lock:
        if segment.is_indexed:
            return  # another thread was faster
        end_offset = _end_of(log, part)
        next_offset = _end_by_indexes(segment, end_offset)
        if next_offset is None:
            next_offset = rebuild_indexes(log, segment)
        _check_reaches(log, segment, next_offset, end_offset)
        segment.indexes.trust = Trust.TRUSTED


def _end_of(log: PartitionLog, part: Part) -> int:
    """The offset behind a sealed segment, which may have grown before it was sealed."""
    end_offset = log.end_behind(part.segment)
    if end_offset is not None:
        return end_offset
    if part.segment.size > part.segment_size:
        raise FileNotFoundError(errno.ENOENT, "it was deleted meanwhile", part.segment.path)
    return part.segment_end


def _end_by_indexes(segment: Segment, end_offset: int) -> int | None:
    """The offset behind the segment's last record, if the indexes are good enough to find that."""
    indexes = segment.indexes
    if indexes.trust is Trust.BAD or not indexes.is_plausible(segment.size, end_offset):
        return None
    try:
        last = indexes.offsets.last()
        position = last[1] if last else 0
        next_offset = segment.base_offset
        while position < segment.size:
            header = segment.header_at(position)
            next_offset = header.last_offset + 1
            position += header.size_bytes
    except (BadIndexError, CorruptLogError):
        return None
    return next_offset


def _check_reaches(log: PartitionLog, segment: Segment, next_offset: int, end_offset: int) -> None:
    if next_offset > end_offset:
        raise CorruptLogError(
            segment.path,
            segment.size,
            f"offset {next_offset - 1} where the log ends at {end_offset}",
        )
    if next_offset < end_offset and not log.is_known_gap(next_offset, end_offset):
        raise CorruptLogError(
            segment.path, segment.size, f"offsets {next_offset} to {end_offset - 1} are missing"
        )


def rebuild_indexes(log: PartitionLog, segment: Segment) -> int:
    """Make both indexes anew from a sealed segment; the offset behind its last record.

    Blocks; `CorruptLogError` if the segment is damaged. Others go on with the old ones meanwhile.
    """
    indexes = SegmentIndexes(segment.stem, segment.base_offset, ".new")
    indexes.clear()
    indexes.trust = Trust.TRUSTED  # so that it takes notes
    next_offset = segment.base_offset
    index_interval = log.config.index_interval_bytes
    for found in scan(segment.path, next_offset=segment.base_offset):
        if isinstance(found, Damage):
            raise CorruptLogError(segment.path, found.position, found.reason)
        indexes.note(found.header, found.header.base_offset, found.position, index_interval)
        next_offset = found.header.last_offset + 1
    try:
        indexes.finish()
        with log.index_files_lock:
            if segment.is_retired:
                raise CorruptLogError(segment.path, segment.size, "it was cut off")
            indexes.take_place()
    except OSError as error:  # a full disk: they stay in memory, and reads go on
        logger.warning("no index on file path=%s error=%s", segment.path, error)
    segment.indexes = indexes
    segment.mark_verified(0, segment.size)
    return next_offset
