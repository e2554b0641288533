"""One partition's log on local disk.

Runs on one event loop and is not thread-safe; the few methods that block on the disk say so, and are
made to run in a thread beside appends. What has been appended is in the system's page cache when
`append` returns: it survives the death of the process. It survives the death of the machine once
`durable_offset` has passed it, which `begin_sync` and `SyncPlan.run` bring about.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.errors import ApiError, CorruptLogError, ErrorCode, StorageError
from penstock.log.cutting import CuttableLog
from penstock.log.epochs import EpochEnd
from penstock.log.fetched import NO_EPOCH, check_fetched
from penstock.log.files import Directory, FileSlice
from penstock.log.index import BadIndexError
from penstock.log.plans import RemovalPlan
from penstock.log.producers import KnownProducer, ProducerSummary
from penstock.log.reading import ColdRead, Part, TimestampOffset
from penstock.log.retention import expired_count
from penstock.log.segment import OpenFiles, Segment, UncheckedGapError
from penstock.log.timestamps import first_at_or_after, newest_record, record_at
from penstock.log.watermark import Place, Watermark
from penstock.records.batch import (
    HEADER_BYTES,
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchHeader,
    assign,
    check_produced,
    read_header,
    stamp_append_time,
)
from penstock.settings import INT64_MAX, TopicConfig

_RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_WARM_TAIL_BYTES: Final = 64 * 1024 * 1024  # of the active segment: surely still in memory


class Appended(NamedTuple):
    """Where a batch went. `append_time` is -1 unless the topic stamps records on arrival."""

    base_offset: int
    append_time: int
    end_offset: int


class _ColdError(Exception):
    """What is to be read was not checked since the start, or has left the page cache."""


class PartitionLog(CuttableLog):
    """Offsets `[log_start_offset, log_end_offset)` of one partition."""

    def __init__(
        self,
        directory: str,
        config: TopicConfig,
        *,
        clock: Clock | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        """Open, or create, the log in `directory`. Scans what a crash left unchecked; in any thread.

        `CorruptLogError`: the log is damaged and was left as it is. `OSError`: the disk refused.
        """
        super().__init__(directory, config, clock or SystemClock(), open_files or OpenFiles(1000))
        self.leader_epoch = 0
        # Told how many bytes came, or may be read by now: consumers', and replicas' readers.
        self.subscribers: dict[Callable[[PartitionLog, int], None], None] = {}
        self.replica_subscribers: dict[Callable[[PartitionLog, int], None], None] = {}

    # What there is

    @property
    def high_watermark(self) -> int:
        """End of what consumers may read: what was set, or the end of the log if nothing was."""
        watermark = self._watermark
        return self.log_end_offset if watermark is None else watermark.place.offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def last_epoch(self) -> int:
        """The epoch of the last record, if that is deleted by now, too; -1 if there was none."""
        return self._last_epoch

    def begin_epoch(self, epoch: int) -> None:
        """What is appended from now on is of this epoch, which begins at the log's end."""
        self.leader_epoch = epoch
        self._epochs.assign(epoch, self.log_end_offset)
        self._dirty[self] = None

    def find_producer(self, producer_id: int) -> KnownProducer | None:
        return self._producers.find(producer_id)

    def active_producers(self) -> list[ProducerSummary]:
        return self._producers.summaries()

    def report_to(self, dirty: dict[PartitionLog, None]) -> None:
        """Put itself into `dirty` whenever it has changed since that was last emptied."""
        if self in self._dirty:
            dirty[self] = None
        self._dirty = dirty

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config

    @property
    def is_deleted(self) -> bool:
        return self.failure is not None and (
            self.failure.code is ErrorCode.unknown_topic_or_partition
        )

    def mark_deleted(self) -> None:
        """Its topic is gone: whoever still holds the log, or waits for it to grow, is told so."""
        self.failure = ApiError(ErrorCode.unknown_topic_or_partition, "the topic was deleted")
        self.abandon()
        self.wake_subscribers()

    # Appending

    def append(self, batch: memoryview) -> Appended:
        """Check one produced batch, give it its offsets and write it. `ApiError` leaves no trace.

        `batch` is patched in place, and not kept. A repetition of an idempotent batch is answered
        with the offset that it has already.
        """
        if self.failure is not None or self._cut is not None:
            self._make_writable()
        config = self.config
        header = check_produced(batch, config.max_message_bytes)
        now_ms = self._clock.wall_ms()
        append_time = -1
        if config.message_timestamp_type == "LogAppendTime":
            append_time = now_ms
            header = stamp_append_time(batch, header, now_ms)
        else:
            self._check_timestamps(header, now_ms)
        if header.producer_id > NO_PRODUCER:
            repeated = self._producers.check(header)
            if repeated is not None:
                base_offset = repeated.base_offset
                return Appended(
                    base_offset, repeated.append_time, base_offset + header.record_count
                )
        base_offset = self.log_end_offset
        end_offset = base_offset + header.record_count
        assign(batch, base_offset, self.leader_epoch)
        try:
            segment = self._segment_for(len(batch), end_offset, now_ms)
            segment.append(batch, header, base_offset, config.index_interval_bytes)
        except OSError as error:
            raise StorageError(f"cannot write to {self.directory}: {error.strerror}") from error
        self.log_end_offset = end_offset
        self._records_unsynced += header.record_count
        self._dirty[self] = None
        if header.producer_id > NO_PRODUCER:
            self._producers.record(header, base_offset, now_ms)
        self._last_epoch = self.leader_epoch
        if self.leader_epoch != self._epochs.latest:
            self._epochs.assign(self.leader_epoch, base_offset)
        if self._watermark is not None:
            self._watermark.grown(end_offset, segment)
        if self.subscribers or self.replica_subscribers:
            self._tell_of_growth(len(batch))
        return Appended(base_offset, append_time, end_offset)

    def append_fetched(self, records: memoryview) -> int:
        """Write whole batches as the leader's log has them, byte for byte; the log's end then.

        `ApiError` for one that cannot be what comes next: it, and all behind it, leave no trace.
        """
        self._make_writable()
        if self.log_start_offset == self.log_end_offset:
            self._begin_within_batch(records)
        position = 0
        try:
            while position < len(records):
                position += self._append_run(records[position:])
        except OSError as error:
            raise StorageError(f"cannot write to {self.directory}: {error.strerror}") from error
        finally:
            if self.log_end_offset < self.log_start_offset:  # it was not written
                self.restart_at(self.log_start_offset)
            if position:
                self._dirty[self] = None
                self._tell_of_growth(position)
        return self.log_end_offset

    def _begin_within_batch(self, records: memoryview) -> None:
        """The leader's log may begin within a batch: the segment has to begin with that batch."""
        offset = self.log_end_offset
        if len(records) >= HEADER_BYTES:
            header = read_header(records)
            if header.base_offset < offset <= header.last_offset:
                check_fetched(records, 0, header.base_offset, NO_EPOCH)
                self.restart_at(offset, base_offset=header.base_offset)
                self._make_writable()

    def _append_run(self, records: memoryview) -> int:
        """Write the first batches, as far as they go to one segment, at once; how many bytes."""
        now_ms = self._clock.wall_ms()
        header = check_fetched(records, 0, self.log_end_offset, self._last_epoch)
        segment = self._segment_for_fetched(header, now_ms)
        headers = [header]
        size = header.size_bytes
        room = self.config.segment_bytes - segment.size
        while size < len(records):
            next_offset = header.last_offset + 1
            try:
                header = check_fetched(records, size, next_offset, header.leader_epoch)
            except ApiError:
                break  # raised when it is its turn
            if (
                size + header.size_bytes > room
                or header.base_offset != next_offset
                or header.last_offset - segment.base_offset >= _RELATIVE_OFFSET_MAX
            ):
                break
            headers.append(header)
            size += header.size_bytes
        position = segment.size
        segment.append_run(records[:size], headers, self.config.index_interval_bytes)
        self._note_fetched(headers, segment, position, now_ms)
        return size

    def _segment_for_fetched(self, header: BatchHeader, now_ms: int) -> Segment:
        gap = (self.log_end_offset, header.base_offset)
        if gap[0] == gap[1]:
            return self._segment_for(header.size_bytes, header.last_offset + 1, now_ms)
        # Between segments, as all gaps are: within one, a damaged offset would look the same. It is known
        # before the new segment is there, for those who read in threads.
        self._gaps.append(gap)
        try:
            segment = self._roll(now_ms, header.base_offset)
        except OSError:
            self._gaps.remove(gap)
            raise
        self.log_end_offset = header.base_offset
        return segment

    def _note_fetched(
        self, headers: list[BatchHeader], segment: Segment, position: int, now_ms: int
    ) -> None:
        """These batches are in `segment` from `position` on."""
        places: list[Place] = []
        for header in headers:
            if header.producer_id > NO_PRODUCER:
                self._producers.record(header, header.base_offset, now_ms)
            if header.leader_epoch != self._epochs.latest:
                self._epochs.assign(header.leader_epoch, header.base_offset)
            position += header.size_bytes
            places.append(Place(header.last_offset + 1, segment, position))
        self._last_epoch = headers[-1].leader_epoch
        end_offset = headers[-1].last_offset + 1
        self._records_unsynced += end_offset - headers[0].base_offset
        self.log_end_offset = end_offset
        if self._watermark is not None:
            self._watermark.grown_by_run(places)

    def _tell_of_growth(self, size: int) -> None:
        if self._watermark is None:
            self._tell_readers(size)
        for notify in tuple(self.replica_subscribers):
            notify(self, size)

    def _tell_readers(self, size: int) -> None:
        """So many more bytes may be read; 0: something else has changed."""
        for notify in tuple(self.subscribers):
            notify(self, size)

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        config = self.config
        newest, oldest = header.max_timestamp, header.base_timestamp
        if newest > now_ms + config.message_timestamp_after_max_ms or (
            config.message_timestamp_before_max_ms != INT64_MAX
            and NO_TIMESTAMP < oldest < now_ms - config.message_timestamp_before_max_ms
        ):
            raise ApiError(
                ErrorCode.invalid_timestamp,
                f"timestamps {oldest} to {newest} are too far from the broker's {now_ms}",
            )

    def _segment_for(self, size: int, end_offset: int, now_ms: int) -> Segment:
        """The active segment, or a new one if this batch must not go there any more."""
        active = self._active
        if active.size == 0:
            active.created_ms = now_ms
            return active
        if (
            active.size + size > self.config.segment_bytes
            or now_ms - active.created_ms >= self.config.segment_ms
            or end_offset - active.base_offset > _RELATIVE_OFFSET_MAX
        ):
            return self._roll(now_ms)
        return active

    # The high watermark

    def track_high_watermark(self, offset: int) -> None:
        """From now on this log is a replica's: consumers see what is below the high watermark."""
        self._watermark = Watermark(self._place_for_readers(offset))

    def set_high_watermark(self, offset: int) -> None:
        """Let consumers see what is below `offset`, and no more. Only for a log that is tracked."""
        watermark = self._watermark
        assert watermark is not None, "the high watermark is not tracked"
        before = watermark.place
        if offset == before.offset:
            return
        place = watermark.pass_to(offset)
        if place is None:
            place = self._place_for_readers(offset)
            if place.offset < before.offset:
                watermark = self._watermark = Watermark(place)
        watermark.place = place
        self._dirty[self] = None
        if place.offset > before.offset and self.subscribers:
            self._tell_readers(self._bytes_between(before, place))

    def _place_for_readers(self, offset: int) -> Place:
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        first = self._segments[0]
        if offset == first.base_offset:
            return Place(offset, first, 0)
        try:
            return self.place_of(offset)
        except CorruptLogError as error:
            raise self.fail(f"{error}; run `penstock log verify`") from error
        except OSError as error:
            raise StorageError(f"cannot read {self.directory}: {error.strerror}") from error

    def _bytes_between(self, low: Place, high: Place) -> int:
        if low.segment is high.segment:
            return high.byte - low.byte
        first = self._segment_index(low.segment.base_offset)
        last = self._segment_index(high.segment.base_offset)
        return sum(item.size for item in self._segments[first:last]) - low.byte + high.byte

    def wake_subscribers(self) -> None:
        """Tell everybody to look again: not what there is has changed, but who may have it."""
        for notify in (*self.subscribers, *self.replica_subscribers):
            notify(self, 0)

    # Reading

    def read(
        self, offset: int, bytes_max: int, uncommitted: bool = False
    ) -> FileSlice | ColdRead | None:
        """Whole batches from the one that holds `offset` on; None at the end of the log.

        At least one batch, however large; else at most `bytes_max`. What has not been in memory or
        checked since the start comes as a `ColdRead`, to be run in a thread. `uncommitted`: beyond the
        high watermark, too, which is where the log ends for all but other replicas.
        """
        if self.failure is not None:
            raise self.failure_again()
        if offset == self.log_end_offset:
            return None
        watermark = None if uncommitted else self._watermark
        if watermark is not None and watermark.place.offset <= offset < self.log_end_offset:
            return None
        if not self.log_start_offset <= offset < self.log_end_offset:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}",
            )
        at = self._segment_index(offset)
        try:
            end = None if watermark is None else watermark.place
            return self._read_warm(end, at, offset, bytes_max)
        except (_ColdError, BadIndexError, UncheckedGapError):
            return ColdRead(self, self._parts(watermark, at), offset, bytes_max)
        except CorruptLogError as error:
            raise self.fail(f"{error}; run `penstock log verify`") from error
        except OSError as error:
            raise StorageError(f"cannot read {self.directory}: {error.strerror}") from error

    def _read_warm(
        self, end: Place | None, at: int, offset: int, bytes_max: int
    ) -> FileSlice | None:
        """From segment `at`, or the next with records if a gap ends it; None if a gap ends the log.

        With `end`, as if the log ended there. `_ColdError`, or what `Segment.read` raises, if the disk
        would be waited for.
        """
        last = self._segments[-1] if end is None else end.segment
        for i in range(at, len(self._segments)):
            segment = self._segments[i]
            is_last = segment is last
            _check_indexed(segment)
            size, end_offset = segment.size, self.end_of(i)
            if is_last and end is not None:
                size, end_offset = end.byte, end.offset
            found = segment.read(offset, bytes_max, size, end_offset)
            if found is not None:
                _check_warm(segment, found)
                found.has_more |= not is_last
                return found
            if is_last:
                return None
        return None

    def end_of(self, at: int) -> int:
        """The offset behind the last record of segment `at`."""
        if at + 1 < len(self._segments):
            return self._segments[at + 1].base_offset
        return self.log_end_offset

    def end_behind(self, segment: Segment) -> int | None:
        """The same of a sealed segment; None if it is no longer part of the log. For any thread."""
        # In this order, beside appends: what comes behind a sealed segment does not count for it.
        log_end = self.log_end_offset
        segments = self._segments
        following = bisect_right(segments, segment.base_offset, key=lambda one: one.base_offset)
        if following == 0 or segments[following - 1] is not segment:
            return None
        is_sealed_just_now = following == len(segments)
        return log_end if is_sealed_just_now else segments[following].base_offset

    def find_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after this time. Blocks: runs in a thread."""
        return first_at_or_after(self, self._parts(self._watermark), timestamp_ms)

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp. Blocks: runs in a thread."""
        return newest_record(self, self._parts(self._watermark))

    def timestamp_at(self, offset: int) -> TimestampOffset | None:
        """The record at `offset`, or the first behind it. Blocks: runs in a thread."""
        return record_at(self, self._parts(self._watermark), offset)

    def _parts(self, watermark: Watermark | None, start: int = 0) -> list[Part]:
        """The segments as they are now, from index `start` on; up to the high watermark if given."""
        end_offset = self.log_end_offset  # in this order, beside appends: never too much
        segments = self._segments[start:]
        ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
        parts = [
            Part(segment, segment.size, end, segment.size, end)
            for segment, end in zip(segments, ends, strict=True)
        ]
        if watermark is None:
            return parts
        place = watermark.place
        for i, part in enumerate(parts):
            if part.segment is place.segment:
                return [*parts[:i], part._replace(size=place.byte, end_offset=place.offset)]
        return parts

    def is_known_gap(self, start: int, end: int) -> bool:
        """Whether the records of `[start, end)` are known to be lost, by a crash or a repair."""
        return (start, end) in self._gaps

    # Deleting

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start up to `offset` (-1: the high watermark); the start it has then.

        It lasts once a checkpoint is written; whole segments below it go with the next retention.
        """
        if offset == -1:
            offset = self.high_watermark
        if offset > self.high_watermark or offset < 0:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is above the high watermark {self.high_watermark}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._dirty[self] = None
            self._tell_readers(0)
        return self.log_start_offset

    def expire_segments(self) -> RemovalPlan | None:
        """Take what retention no longer keeps out of the log; what is to be removed then, if any.

        Those who are still reading a removed segment finish undisturbed. `OSError` changes nothing.
        """
        now_ms = self._clock.wall_ms()
        count = expired_count(
            self._segments, self.log_start_offset, self.log_end_offset, self.high_watermark,
            self.config, now_ms,
        )  # fmt: skip
        if count == 0:
            return None
        directory = Directory(self.directory)
        if count == len(self._segments):
            self._roll(now_ms)
        # In this order, beside reads in threads: what is not there any more is below the log's start.
        self.log_start_offset = max(self.log_start_offset, self._segments[count].base_offset)
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._unsynced = [item for item in self._unsynced if item[0] not in gone]
        self._epochs.trim_start(self.log_start_offset)
        self._gaps = [gap for gap in self._gaps if gap[1] > self.log_start_offset]
        if self._watermark is not None:
            self._watermark.drop(gone, self._segments[0])
        self._dirty[self] = None
        for segment in gone:
            segment.drop()
        names = [os.path.basename(path) for segment in gone for path in segment.paths()]
        self._removal = RemovalPlan(directory=directory, names=names)
        self._tell_readers(0)
        return self._removal

    def expire_producers(self, expiry_ms: int) -> None:
        self._producers.expire(self._clock.wall_ms(), expiry_ms)


def _check_indexed(segment: Segment) -> None:
    if not segment.is_indexed:
        raise _ColdError


def _check_warm(segment: Segment, found: FileSlice) -> None:
    if not segment.is_verified(found.position, found.position + found.size):
        raise _ColdError
    is_recent = segment.is_active and found.position + _WARM_TAIL_BYTES > segment.size
    if not is_recent and not found.is_cached():
        raise _ColdError
