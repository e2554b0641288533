"""Opening a log directory: what is there, and what has to be scanned before it can be trusted.

After a clean stop the recovery point is the end of the log and nothing is scanned. After a crash the
batches behind the recovery point are checked one by one and indexed anew, and a torn tail, which is
what a cut-off write leaves, is cut. Damage with sound batches behind it is not a torn tail: it raises
`CorruptLogError`, and nothing on disk is changed.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.errors import CorruptLogError
from penstock.log import checkpoint
from penstock.log.checkpoint import Checkpoint, Position
from penstock.log.epochs import LeaderEpochs
from penstock.log.producers import ProducerStates
from penstock.log.scan import Damage, scan
from penstock.log.segment import LOG_SUFFIX, OpenFiles, Segment
from penstock.records.batch import NO_PRODUCER, BatchHeader

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Recovered:
    """A log's state as recovery found it; the last segment is active."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    durable: Position
    epochs: LeaderEpochs
    producers: ProducerStates
    scanned_bytes: int = 0
    cut_bytes: int = 0


def list_segments(directory: str, open_files: OpenFiles) -> list[Segment]:
    """The directory's segments in order. Looks at names and sizes only, never at contents."""
    found: list[Segment] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            stem = entry.name.removesuffix(LOG_SUFFIX)
            if stem != entry.name and stem.isdigit():
                found.append(Segment(directory, int(stem), entry.stat().st_size, open_files))
    found.sort(key=lambda segment: segment.base_offset)
    return found


def recover(directory: str, clock: Clock, open_files: OpenFiles, index_interval: int) -> Recovered:
    """Open the log in `directory`, which must exist. Blocks for as long as the scan takes."""
    saved = checkpoint.load(directory)
    segments = list_segments(directory, open_files)
    if not segments:
        return _empty(directory, saved, open_files)
    start = _start_position(segments, saved)
    state = Recovered(
        segments=segments,
        log_start_offset=max(saved.log_start_offset if saved else 0, segments[0].base_offset),
        log_end_offset=start.offset,
        durable=saved.durable if saved else start,
        epochs=LeaderEpochs(saved.epochs if saved else ()),
        producers=ProducerStates.from_json(saved.producers if saved else ()),
    )
    state.producers.truncate(start.offset)
    _restore_active(segments, saved, start)
    for segment in [item for item in segments if item.base_offset >= start.segment]:
        _scan_segment(state, segment, start, clock.wall_ms(), index_interval)
    segments[-1].activate()
    if state.scanned_bytes:
        logger.info(
            "recovered directory=%s scanned_bytes=%d cut_bytes=%d log_end_offset=%d",
            directory, state.scanned_bytes, state.cut_bytes, state.log_end_offset,
        )  # fmt: skip
    return state


def _empty(directory: str, saved: Checkpoint | None, open_files: OpenFiles) -> Recovered:
    """A log with no segments: new, or with all its records deleted and its offsets remembered."""
    offset = saved.start_point().offset if saved else 0
    segment = Segment(directory, offset, 0, open_files)
    segment.activate()
    return Recovered(
        segments=[segment],
        log_start_offset=offset,
        log_end_offset=offset,
        durable=Position(segment=offset, byte=0, offset=offset),
        epochs=LeaderEpochs(saved.epochs if saved else ()),
        producers=ProducerStates.from_json(saved.producers if saved else ()),
    )


def _start_position(segments: list[Segment], saved: Checkpoint | None) -> Position:
    first = segments[0]
    from_the_first = Position(segment=first.base_offset, byte=0, offset=first.base_offset)
    if saved is None:
        return from_the_first
    point = saved.start_point()
    for segment in segments:
        if segment.base_offset == point.segment:
            if segment.size < point.byte:
                raise CorruptLogError(
                    segment.path, segment.size, f"the file was {point.byte} bytes long before"
                )
            return point
    if first.base_offset > point.segment:  # retention removed the segment since
        return from_the_first
    raise CorruptLogError(
        os.path.dirname(first.path), 0, f"segment {point.segment:020d} is missing"
    )


def _restore_active(segments: list[Segment], saved: Checkpoint | None, start: Position) -> None:
    """What the checkpoint knows of the segment it was taken in, if that is where we start."""
    for segment in segments:
        if saved is not None and segment.base_offset == start.segment == saved.written.segment:
            segment.created_ms = saved.segment_created_ms
            if start == saved.written:
                segment.max_timestamp = saved.max_timestamp
                segment.max_timestamp_offset = saved.max_timestamp_offset


def _scan_segment(
    state: Recovered, segment: Segment, start: Position, now_ms: int, index_interval: int
) -> None:
    """Check what lies behind the recovery point in one segment, and note it as appends would."""
    is_last = segment is state.segments[-1]
    begin = start.byte if segment.base_offset == start.segment else 0
    if begin == 0:
        segment.reset_indexes()
        if segment.base_offset < state.log_end_offset:
            raise CorruptLogError(segment.path, 0, "its offsets overlap the segment before it")
        state.log_end_offset = segment.base_offset
    elif begin < segment.size:
        segment.rewind_indexes(begin, start.offset)
    segment.created_ms = segment.created_ms or now_ms
    state.scanned_bytes += segment.size - begin
    for found in scan(segment.path, start=begin, next_offset=state.log_end_offset):
        if isinstance(found, Damage):
            if not (found.is_torn_tail and is_last):
                raise CorruptLogError(segment.path, found.position, found.reason)
            logger.warning(
                "cutting a torn tail path=%s position=%d bytes=%d reason=%s",
                segment.path, found.position, segment.size - found.position, found.reason,
            )  # fmt: skip
            state.cut_bytes = segment.size - found.position
            segment.truncate(found.position)
            break
        _replay(state, found.header, now_ms)
        segment.note(found.header, found.header.base_offset, found.position, index_interval)
    segment.mark_verified(begin, segment.size)
    if not is_last:
        segment.seal()


def _replay(state: Recovered, header: BatchHeader, now_ms: int) -> None:
    if header.producer_id != NO_PRODUCER:
        state.producers.record(header, header.base_offset, now_ms)
    state.epochs.assign(header.leader_epoch, header.base_offset)
    state.log_end_offset = header.last_offset + 1
