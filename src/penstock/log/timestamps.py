"""Finding records by their time. Everything here blocks on the disk and is meant for a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.errors import CorruptLogError
from penstock.log.index import BadIndexError, Entry
from penstock.log.indexing import Trust
from penstock.log.reading import Part, TimestampOffset, insist
from penstock.log.scan import check_at
from penstock.log.segment import Segment
from penstock.records.batch import ATTRIBUTE_LOG_APPEND_TIME, BatchHeader
from penstock.records.compression import CompressionError
from penstock.records.decode import BadRecordError, records_of

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


def first_at_or_after(
    log: PartitionLog, parts: Sequence[Part], timestamp_ms: int
) -> TimestampOffset | None:
    """The log's first record whose time is not before `timestamp_ms`."""
    for part in parts:
        try:
            if _largest(log, part) >= timestamp_ms:
                found = _first_in(log, part, timestamp_ms)
                if found is not None:
                    return found
        except FileNotFoundError:
            if part.segment.base_offset >= log.log_start_offset:
                raise  # not removed by retention
    return None


def newest_record(log: PartitionLog, parts: Sequence[Part]) -> TimestampOffset | None:
    """The first record with the largest time of all."""
    newest: TimestampOffset | None = None
    for part in parts:
        try:
            largest = _largest(log, part)
            if largest < 0 or (newest is not None and largest <= newest.timestamp_ms):
                continue
            found = _first_in(log, part, largest)
            if found is None:  # not to be seen: the newest of those that are is another one
                found = _newest_in(log, part)
        except FileNotFoundError:
            if part.segment.base_offset >= log.log_start_offset:
                raise
            continue
        if found is not None and (newest is None or found.timestamp_ms > newest.timestamp_ms):
            newest = found
    return newest


def record_at(log: PartitionLog, parts: Sequence[Part], offset: int) -> TimestampOffset | None:
    """The record at `offset`, or the first one behind it."""
    for part in parts:
        if part.end_offset > offset:
            for position, header in _batches(log, part, offset):
                for found in _records(part.segment, position, header):
                    if found.offset >= offset:
                        return found
    return None


def _largest(log: PartitionLog, part: Part) -> int:
    """The segment's largest time, or as good as infinite if only looking can tell.

    It may be that of a record behind the part that may be seen.
    """
    segment = part.segment
    if not part.size:
        return -1

    def look() -> int:
        with _distrusting(segment):
            largest = segment.largest_timestamp()
        return 2**63 - 1 if largest is None else largest

    return insist(log, part, look)


def _first_in(log: PartitionLog, part: Part, timestamp_ms: int) -> TimestampOffset | None:
    segment, offset_min = part.segment, log.log_start_offset
    offset = insist(log, part, lambda: _offset_before(part, timestamp_ms))
    for position, header in _batches(log, part, max(offset, offset_min)):
        if header.max_timestamp >= timestamp_ms:
            for found in _records(segment, position, header):
                if found.timestamp_ms >= timestamp_ms and found.offset >= offset_min:
                    return found
    return None


def _offset_before(part: Part, timestamp_ms: int) -> int:
    """An offset before which the segment has no record that is as new as this."""
    segment = part.segment
    if not segment.is_indexed:
        return segment.base_offset
    with _distrusting(segment):
        return _offset_of_entry(part, segment.indexes.times.floor(timestamp_ms))


def _offset_of_newest(part: Part) -> int:
    """An offset before which all that may be seen is older than something behind it."""
    segment = part.segment
    if not segment.is_indexed:
        return segment.base_offset
    with _distrusting(segment):
        last = part.end_offset - 1 - segment.base_offset
        return _offset_of_entry(part, segment.indexes.times.floor(last, 1))


def _offset_of_entry(part: Part, entry: Entry | None) -> int:
    """The offset in an entry of the time index, seen to be that of a batch of that time."""
    segment = part.segment
    if entry is None:
        return segment.base_offset
    time, offset = entry[0], segment.base_offset + entry[1]
    if offset < part.end_offset:
        header = segment.header_at(segment.locate(offset, part.size))
        if (header.base_offset, header.max_timestamp) != (offset, time):
            raise BadIndexError(f"the time index of {segment.path} does not fit it")
    return offset


@contextlib.contextmanager
def _distrusting(segment: Segment) -> Iterator[None]:
    """While the indexes are used: if they turn out to be wrong, they are not trusted any more."""
    indexes = segment.indexes
    try:
        yield
    except BadIndexError:
        indexes.trust = Trust.BAD
        raise


def _newest_in(log: PartitionLog, part: Part) -> TimestampOffset | None:
    newest: TimestampOffset | None = None
    offset = insist(log, part, lambda: _offset_of_newest(part))
    for position, header in _batches(log, part, max(offset, log.log_start_offset)):
        if newest is None or header.max_timestamp > newest.timestamp_ms:
            for found in _records(part.segment, position, header):
                if found.offset >= log.log_start_offset and (
                    newest is None or found.timestamp_ms > newest.timestamp_ms
                ):
                    newest = found
    return newest


def _batches(log: PartitionLog, part: Part, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from the one that holds `offset` on."""
    segment, size = part.segment, part.size
    position = insist(log, part, lambda: segment.locate(offset, size))
    while position < size:
        header = segment.header_at(position)
        yield position, header
        position += header.size_bytes


def _records(segment: Segment, position: int, header: BatchHeader) -> Iterator[TimestampOffset]:
    """The records of one batch. If a producer packed nonsense into it, all have the batch's time."""
    epoch = header.leader_epoch
    offsets = range(header.base_offset, header.last_offset + 1)
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        yield from (TimestampOffset(offset, header.max_timestamp, epoch) for offset in offsets)
        return
    batch = segment.file.pread(header.size_bytes, position)
    checked = check_at(memoryview(batch), 0)
    if isinstance(checked, str):
        raise CorruptLogError(segment.path, position, checked)
    try:
        for record in records_of(batch):
            yield TimestampOffset(record.offset, record.timestamp, epoch)
    except (BadRecordError, CompressionError):
        yield from (TimestampOffset(offset, header.max_timestamp, epoch) for offset in offsets)
