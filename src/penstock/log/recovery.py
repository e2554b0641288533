"""Opening a log directory: what is there, and what has to be scanned before it can be trusted.

After a clean stop the recovery point is the end of the log and nothing is scanned. After a crash the
batches behind the recovery point are checked one by one and indexed anew, and a torn tail, which is
what a cut-off write leaves, is cut. Damage with sound batches behind it is not a torn tail: it raises
`CorruptLogError`, and no segment is changed.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.errors import CorruptLogError
from penstock.log import checkpoint
from penstock.log.checkpoint import SYNC_FAILED, Checkpoint, Position
from penstock.log.epochs import LeaderEpochs
from penstock.log.indexing import Trust
from penstock.log.plans import Saved
from penstock.log.producers import ProducerStates
from penstock.log.scan import Damage, ScannedBatch, scan
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
    saved: Saved | None  # what the checkpoint on file says
    last_epoch: int  # of the last record; -1 if there never was one
    high_watermark: int  # as last noted; may be too low
    gaps: list[tuple[int, int]] = field(default_factory=list)  # lost offsets between segments
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
    start = _start_position(directory, segments, saved)
    if not segments or (start.byte == 0 and segments[-1].base_offset < start.segment):
        segments.append(Segment(directory, start.segment, 0, open_files))
        segments[-1].activate(is_new=True)
    state = Recovered(
        segments=segments,
        log_start_offset=max(saved.log_start_offset if saved else 0, segments[0].base_offset),
        log_end_offset=start.offset,
        durable=saved.durable if saved else start,
        epochs=LeaderEpochs(saved.epochs if saved else ()),
        producers=ProducerStates.from_json(saved.producers if saved else ()),
        saved=_noted(saved) if saved else None,
        gaps=list(saved.gaps) if saved else [],
        last_epoch=-1,
        high_watermark=0,
    )
    if saved is not None and start.offset < saved.written.offset:
        state.producers.truncate(start.offset)
    _restore_epochs(state, start, saved)
    to_scan = [segment for segment in segments if segment.base_offset >= start.segment]
    if saved is not None and saved.boot == SYNC_FAILED:
        _forget_cached(to_scan)
    for segment in to_scan:
        begin = start.byte if segment.base_offset == start.segment else 0
        _restore(segment, begin, start, saved)
        # Only a repair leaves gaps between batches, and it writes a recovery point behind them.
        has_gaps = saved is None or start.segment != saved.start_point().segment
        _scan_segment(state, segment, begin, clock.wall_ms(), index_interval, has_gaps)
    if state.log_end_offset < state.log_start_offset:
        _begin_at_start(state, directory, open_files)
    state.high_watermark = _high_watermark(state, start, saved)
    segments[-1].activate()
    if state.scanned_bytes:
        logger.info(
            "recovered directory=%s scanned_bytes=%d cut_bytes=%d log_end_offset=%d",
            directory, state.scanned_bytes, state.cut_bytes, state.log_end_offset,
        )  # fmt: skip
    return state


def _noted(saved: Checkpoint) -> Saved:
    latest_epoch = saved.epochs[-1][0] if saved.epochs else -1
    return Saved(saved.written, saved.log_start_offset, saved.high_watermark, latest_epoch)


def _restore_epochs(state: Recovered, start: Position, saved: Checkpoint | None) -> None:
    """The epochs as they were at `start`, with those that had begun there and written nothing."""
    is_as_saved = saved is not None and saved.written.offset == start.offset
    # The epoch in force where a log without records begins stays known.
    end_offset = start.offset + 1 if is_as_saved else start.offset
    state.epochs.trim_end(max(end_offset, state.log_start_offset + 1))
    if saved is not None and is_as_saved and saved.last_epoch is not None:
        state.last_epoch = saved.last_epoch
    else:
        state.last_epoch = state.epochs.epoch_at(start.offset - 1)


def _high_watermark(state: Recovered, start: Position, saved: Checkpoint | None) -> int:
    """Behind a power cut no more than what was synced: the rest may be of another history."""
    noted = saved.high_watermark if saved else None
    if noted is None or saved is None:
        return state.log_start_offset
    if start != saved.written:
        noted = min(noted, start.offset)
    return min(max(noted, state.log_start_offset), state.log_end_offset)


def _start_position(directory: str, segments: list[Segment], saved: Checkpoint | None) -> Position:
    """Where to begin: all before it is sound. `CorruptLogError` if what was there is not."""
    first_offset = segments[0].base_offset if segments else 0
    from_the_first = Position(segment=first_offset, byte=0, offset=first_offset)
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
    if segments and first_offset > point.segment:  # retention removed the segment since
        return from_the_first
    if point.byte == 0:  # an empty one, whose name alone was lost
        return point
    raise CorruptLogError(directory, 0, f"segment {point.segment:020d} is missing")


def _forget_cached(segments: list[Segment]) -> None:
    """Make the system read these files from the disk, which may not have what it should."""
    if hasattr(os, "posix_fadvise"):
        for segment in segments:
            file = segment.file
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _restore(segment: Segment, begin: int, start: Position, saved: Checkpoint | None) -> None:
    """What is known of the segment up to `begin`, before what comes behind it is noted."""
    indexes = segment.indexes
    indexes.trust = Trust.TRUSTED
    if begin == 0:
        indexes.clear()
    elif saved is None or not saved.are_indexes_whole:
        # A power cut may have taken any part of them, and only a scan from 0 could tell.
        indexes.clear()
        indexes.trust = Trust.BAD
    elif begin < segment.size:
        indexes.rewind(begin, start.offset)
    if saved is not None and segment.base_offset == start.segment == saved.written.segment:
        segment.created_ms = saved.segment_created_ms
        if begin > 0:
            # Behind a power cut this may be the time of a record that was lost: never too small.
            indexes.max_timestamp = saved.max_timestamp
            indexes.max_timestamp_offset = saved.max_timestamp_offset


def _scan_segment(
    state: Recovered,
    segment: Segment,
    begin: int,
    now_ms: int,
    index_interval: int,
    has_gaps: bool,
) -> None:
    """Check what lies behind the recovery point in one segment, and note it as appends would."""
    if begin == 0 and segment.base_offset != state.log_end_offset:
        if segment.base_offset < state.log_end_offset:
            _drop_empty(state, segment)
            return
        if segment is not state.segments[0]:
            gap = (state.log_end_offset, segment.base_offset)
            logger.warning("offsets %d to %d are lost path=%s", *gap, segment.path)
            if gap not in state.gaps:
                state.gaps.append(gap)
        state.log_end_offset = segment.base_offset
    segment.created_ms = segment.created_ms or now_ms
    state.scanned_bytes += segment.size - begin
    for found in scan(
        segment.path, start=begin, next_offset=state.log_end_offset, has_gaps=has_gaps
    ):
        if isinstance(found, Damage):
            _cut_torn_tail(state, segment, found)
            break
        _replay(state, found.header, now_ms)
        segment.indexes.note(found.header, found.header.base_offset, found.position, index_interval)
    segment.mark_verified(begin, segment.size)
    if segment is not state.segments[-1]:
        _seal(segment)


def _begin_at_start(state: Recovered, directory: str, open_files: OpenFiles) -> None:
    """A power cut took records that were deleted already: their offsets are not used again."""
    _seal(state.segments[-1])
    state.gaps.append((state.log_end_offset, state.log_start_offset))
    state.log_end_offset = state.log_start_offset
    state.segments.append(Segment(directory, state.log_start_offset, 0, open_files))
    state.segments[-1].activate(is_new=True)


def _seal(segment: Segment) -> None:
    try:
        segment.seal()
    except OSError as error:  # a full disk must not keep the log from being read
        logger.warning("no index on file path=%s error=%s", segment.path, error)
        segment.indexes.trust = Trust.BAD
        segment.seal()


def _drop_empty(state: Recovered, segment: Segment) -> None:
    """A file without records, made for a segment that never came to be."""
    if segment.size:
        raise CorruptLogError(segment.path, 0, "its offsets overlap the segment before it")
    logger.warning("removing an empty segment that is in the way path=%s", segment.path)
    os.unlink(segment.path)
    state.segments.remove(segment)


def _cut_torn_tail(state: Recovered, segment: Segment, damage: Damage) -> None:
    """Cut damage that nothing sound follows, in this file or in one behind it."""
    later = state.segments[state.segments.index(segment) + 1 :]
    if not damage.is_torn_tail or any(_holds_batches(item) for item in later):
        raise CorruptLogError(segment.path, damage.position, damage.reason)
    cut = segment.size - damage.position
    logger.warning(
        "cutting a torn tail path=%s position=%d bytes=%d reason=%s",
        segment.path, damage.position, cut, damage.reason,
    )  # fmt: skip
    state.cut_bytes += cut
    segment.truncate(damage.position)


def _holds_batches(segment: Segment) -> bool:
    found = scan(segment.path, next_offset=segment.base_offset)
    return any(isinstance(item, ScannedBatch) for item in found)


def _replay(state: Recovered, header: BatchHeader, now_ms: int) -> None:
    if header.producer_id > NO_PRODUCER:
        state.producers.record(header, header.base_offset, now_ms)
    state.epochs.assign(header.leader_epoch, header.base_offset)
    state.last_epoch = header.leader_epoch
    state.log_end_offset = header.last_offset + 1
