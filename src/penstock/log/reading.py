"""Reads that may wait for the disk: data not seen since the start, and look-ups by time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CorruptLogError, StorageError
from penstock.log.scan import Damage, check_at, scan
from penstock.log.segment import FileSlice, Segment
from penstock.records.batch import ATTRIBUTE_LOG_APPEND_TIME, BatchHeader
from penstock.records.decode import records_of

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class ColdRead:
    """A read from a segment that was not checked since the start, or has left the page cache.

    `run` blocks and is meant for a thread. It rebuilds the segment's indexes if they cannot be right,
    brings the bytes into the page cache and checks every batch's CRC once, so that damage on disk is
    answered with a storage error instead of being handed to a client.
    """

    __slots__ = ("_bytes_max", "_end_offset", "_log", "_offset", "_segment")

    def __init__(
        self, log: PartitionLog, segment: Segment, offset: int, bytes_max: int, end_offset: int
    ) -> None:
        self._log = log
        self._segment = segment
        self._offset = offset
        self._bytes_max = bytes_max
        self._end_offset = end_offset

    def run(self) -> FileSlice | None:
        """The slice, warm and checked; None if the segment has nothing at or above the offset."""
        segment = self._segment
        try:
            if not segment.is_active and not segment.indexes_checked:
                if not segment.check_indexes(self._end_offset):
                    rebuild_indexes(segment, self._log.config.index_interval_bytes)
                segment.indexes_checked = True
            found = segment.read(self._offset, self._bytes_max, self._end_offset)
            if found is not None:
                _verify(segment, found)
            return found
        except CorruptLogError as error:
            raise self._log.fail(f"{error}; run `penstock log verify`") from error
        except OSError as error:
            raise StorageError(f"cannot read {segment.path}: {error.strerror}") from error


def _verify(segment: Segment, found: FileSlice) -> None:
    data = memoryview(found.read())
    end = found.position + found.size
    if segment.is_verified(found.position, end):
        return
    position, next_offset = 0, segment.base_offset
    while position < len(data):
        header = check_at(data, position, next_offset)
        if not isinstance(header, BatchHeader):
            raise CorruptLogError(segment.path, found.position + position, header)
        position += header.size_bytes
        next_offset = header.last_offset + 1
    segment.mark_verified(found.position, end)


def rebuild_indexes(segment: Segment, index_interval: int) -> None:
    """Make both indexes anew from a sealed segment. Blocks; `CorruptLogError` if it is damaged."""
    segment.reset_indexes()
    for found in scan(segment.path, next_offset=segment.base_offset):
        if isinstance(found, Damage):
            raise CorruptLogError(segment.path, found.position, found.reason)
        segment.note(found.header, found.header.base_offset, found.position, index_interval)
    segment.mark_verified(0, segment.size)
    segment.seal()


def _batch_at(segment: Segment, position: int, header: BatchHeader) -> bytes:
    return os.pread(segment.file.fd, header.size_bytes, position)


def first_at_or_after(
    segment: Segment, timestamp_ms: int, offset_min: int
) -> TimestampOffset | None:
    """The segment's first record at or above `offset_min` whose time is not before `timestamp_ms`."""
    entry = segment.time_index.floor(timestamp_ms)
    offset = segment.base_offset + (entry[1] if entry else 0)
    position = segment.locate(max(offset, offset_min))
    while position < segment.size:
        header = segment.header_at(position)
        if header.max_timestamp >= timestamp_ms:
            for record in records_of(_batch_at(segment, position, header)):
                if record.timestamp >= timestamp_ms and record.offset >= offset_min:
                    return TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
        position += header.size_bytes
    return None


def record_at(segment: Segment, offset: int) -> TimestampOffset | None:
    """The record at `offset` with its time."""
    position = segment.locate(offset)
    if position >= segment.size:
        return None
    header = segment.header_at(position)
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return TimestampOffset(offset, header.max_timestamp, header.leader_epoch)
    for record in records_of(_batch_at(segment, position, header)):
        if record.offset >= offset:
            return TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
    return None
