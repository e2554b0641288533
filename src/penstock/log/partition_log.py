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
from penstock.log.durable import DurableLog
from penstock.log.files import Directory, FileSlice
from penstock.log.index import BadIndexError
from penstock.log.plans import RemovalPlan
from penstock.log.producers import ProducerSummary
from penstock.log.reading import ColdRead, TimestampOffset
from penstock.log.retention import expired_count
from penstock.log.segment import OpenFiles, Segment, UncheckedGapError
from penstock.log.timestamps import first_at_or_after, newest_record, record_at
from penstock.records.batch import (
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchHeader,
    assign,
    check_produced,
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


class PartitionLog(DurableLog):
    """Offsets `[log_start_offset, log_end_offset)` of one partition."""

    def __init__(
        self,
        directory: str,
        config: TopicConfig,
        *,
        clock: Clock | None = None,
        open_files: OpenFiles | None = None,
        dirty: dict[PartitionLog, None] | None = None,
    ) -> None:
        """Open, or create, the log in `directory`. Scans what a crash left unchecked.

        It puts itself into `dirty` whenever it has changed since that was last emptied.
        `CorruptLogError`: the log is damaged and was left as it is. `OSError`: the disk refused.
        """
        super().__init__(
            directory,
            config,
            clock or SystemClock(),
            open_files or OpenFiles(1000),
            {} if dirty is None else dirty,
        )
        self.leader_epoch = 0
        self.subscribers: dict[Callable[[PartitionLog, int], None], None] = {}

    # What there is

    @property
    def high_watermark(self) -> int:
        """End of what may be read: with one replica, the end of the log."""
        return self.log_end_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def active_producers(self) -> list[ProducerSummary]:
        return self._producers.summaries()

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config

    @property
    def is_deleted(self) -> bool:
        return self.failure is not None and (
            self.failure.code is ErrorCode.unknown_topic_or_partition
        )

    def mark_deleted(self) -> None:
        """Its topic is gone: whoever still holds the log is told so."""
        self.failure = ApiError(ErrorCode.unknown_topic_or_partition, "the topic was deleted")
        self.abandon()

    # Appending

    def append(self, batch: memoryview) -> Appended:
        """Check one produced batch, give it its offsets and write it. `ApiError` leaves no trace.

        `batch` is patched in place, and not kept. A repetition of an idempotent batch is answered
        with the offset that it has already.
        """
        if self.failure is not None:
            raise self.failure_again()
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
        if self.leader_epoch > self._epochs.latest:
            self._epochs.assign(self.leader_epoch, base_offset)
        if self.subscribers:
            for notify in tuple(self.subscribers):
                notify(self, len(batch))
        return Appended(base_offset, append_time, end_offset)

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

    # Reading

    def read(self, offset: int, bytes_max: int) -> FileSlice | ColdRead | None:
        """Whole batches from the one that holds `offset` on; None at the end of the log.

        At least one batch, however large; else at most `bytes_max`. What has not been in memory or
        checked since the start comes as a `ColdRead`, to be run in a thread.
        """
        if self.failure is not None:
            raise self.failure_again()
        if offset == self.log_end_offset:
            return None
        if not self.log_start_offset <= offset < self.log_end_offset:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}",
            )
        at = self._segment_index(offset)
        try:
            found = self._read_warm(at, offset, bytes_max)
        except CorruptLogError as error:
            raise self.fail(f"{error}; run `penstock log verify`") from error
        except OSError as error:
            raise StorageError(f"cannot read {self.directory}: {error.strerror}") from error
        if found is not None:
            return found
        return ColdRead(
            self, self._segments, at, offset, bytes_max,
            size=self._active.size, end_offset=self.log_end_offset,
        )  # fmt: skip

    def _read_warm(self, at: int, offset: int, bytes_max: int) -> FileSlice | None:
        """From segment `at`, or the next with records if a gap ends it; None if a disk may wait."""
        for i in range(at, len(self._segments)):
            segment = self._segments[i]
            if not segment.is_indexed:
                return None
            try:
                found = segment.read(offset, bytes_max, segment.size, self.end_of(i))
            except (BadIndexError, UncheckedGapError):
                return None
            if found is not None:
                return found if self._is_warm(segment, found) else None
        return None

    @staticmethod
    def _is_warm(segment: Segment, found: FileSlice) -> bool:
        if not segment.is_verified(found.position, found.position + found.size):
            return False
        is_recent = segment.is_active and found.position + _WARM_TAIL_BYTES > segment.size
        return is_recent or found.is_cached()

    def _segment_index(self, offset: int) -> int:
        segments = self._segments
        if offset >= segments[-1].base_offset:
            return len(segments) - 1
        return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

    def end_of(self, at: int) -> int:
        """The offset behind the last record of segment `at`."""
        if at + 1 < len(self._segments):
            return self._segments[at + 1].base_offset
        return self.log_end_offset

    def find_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after this time. Blocks: runs in a thread."""
        return first_at_or_after(self, self.segments(), timestamp_ms)

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp. Blocks: runs in a thread."""
        return newest_record(self, self.segments())

    def timestamp_at(self, offset: int) -> TimestampOffset | None:
        """The record at `offset`, or the first behind it. Blocks: runs in a thread."""
        return record_at(self, self.segments(), offset)

    def segments(self) -> list[tuple[Segment, int]]:
        """The segments as they are now, each with the offset behind its last record."""
        segments = list(self._segments)
        ends = [segment.base_offset for segment in segments[1:]]
        return list(zip(segments, [*ends, self.log_end_offset], strict=True))

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
        return self.log_start_offset

    def expire_segments(self) -> RemovalPlan | None:
        """Take what retention no longer keeps out of the log; what is to be removed then, if any.

        Those who are still reading a removed segment finish undisturbed. `OSError` changes nothing.
        """
        now_ms = self._clock.wall_ms()
        count = expired_count(
            self._segments, self.log_start_offset, self.log_end_offset, self.config, now_ms
        )
        if count == 0:
            return None
        directory = Directory(self.directory)
        if count == len(self._segments):
            self._roll(now_ms)
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._unsynced = [item for item in self._unsynced if item[0] not in gone]
        self.log_start_offset = max(self.log_start_offset, self._segments[0].base_offset)
        self._epochs.trim_start(self.log_start_offset)
        self._gaps = [gap for gap in self._gaps if gap[1] > self.log_start_offset]
        self._dirty[self] = None
        for segment in gone:
            segment.drop()
        names = [os.path.basename(path) for segment in gone for path in segment.paths()]
        return RemovalPlan(directory=directory, names=names)

    def expire_producers(self, expiry_ms: int) -> None:
        self._producers.expire(self._clock.wall_ms(), expiry_ms)
