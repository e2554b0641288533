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
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.errors import ApiError, CorruptLogError, ErrorCode, StorageError
from penstock.log import checkpoint
from penstock.log.checkpoint import Checkpoint, Position, boot_id, sync_directory
from penstock.log.producers import ProducerSummary
from penstock.log.reading import ColdRead, TimestampOffset, first_at_or_after, record_at
from penstock.log.recovery import recover
from penstock.log.retention import expired_count
from penstock.log.segment import FileSlice, LogFile, OpenFiles, Segment
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


@dataclass(slots=True, kw_only=True)
class SyncPlan:
    """What has to reach the disk for the log to be durable up to `position`."""

    log: PartitionLog
    position: Position
    files: list[LogFile]
    sealed: list[Segment]
    directory: str | None

    def run(self) -> None:
        """Sync. Blocks: runs in a thread. `OSError` means that nothing may be assumed."""
        for file in self.files:
            os.fdatasync(file.fd)
        for segment in self.sealed:
            segment.index.sync()
            segment.time_index.sync()
        if self.directory is not None:
            sync_directory(self.directory)


@dataclass(slots=True, kw_only=True)
class CheckpointPlan:
    """A recovery point on its way to the disk."""

    log: PartitionLog
    position: Position
    data: bytes

    def run(self, *, durable: bool = False) -> None:
        """Write it. Blocks: runs in a thread. `OSError` leaves the one before in force."""
        checkpoint.save(self.log.directory, self.data, durable=durable)


class PartitionLog:
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
        self.directory = directory
        self.config = config
        self.leader_epoch = 0
        self.failure: ApiError | None = None  # set for good: nothing is served from then on
        self.subscribers: dict[Callable[[PartitionLog, int], None], None] = {}
        self._clock = clock or SystemClock()
        self._open_files = open_files or OpenFiles(1000)
        self._dirty = {} if dirty is None else dirty
        os.makedirs(directory, exist_ok=True)
        state = recover(directory, self._clock, self._open_files, config.index_interval_bytes)
        self._segments = state.segments
        self._active = state.segments[-1]
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self._epochs = state.epochs
        self._producers = state.producers
        self._durable = state.durable
        self._unsynced: list[Segment] = []  # sealed since the last sync
        self._directory_changed = True  # files were made that a sync has to record
        self._saved: Position | None = None  # the last recovery point written
        if not state.scanned_bytes:
            self._saved = self._position()
        self._records_unsynced = 0

    # What there is

    @property
    def high_watermark(self) -> int:
        """End of what may be read: with one replica, the end of the log."""
        return self.log_end_offset

    @property
    def durable_offset(self) -> int:
        """Every record below this is on disk."""
        return self._durable.offset

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

    def fail(self, reason: str) -> ApiError:
        """Take the log out of service: it may no longer be what its readers were told."""
        if self.failure is None:
            self.failure = StorageError(reason)
        return self.failure

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
            raise self.failure
        config = self.config
        header = check_produced(batch, config.max_message_bytes)
        now_ms = self._clock.wall_ms()
        append_time = -1
        if config.message_timestamp_type == "LogAppendTime":
            append_time = now_ms
            header = stamp_append_time(batch, header, now_ms)
        else:
            self._check_timestamps(header, now_ms)
        if header.producer_id != NO_PRODUCER:
            repeated = self._producers.check(header)
            if repeated is not None:
                return Appended(repeated, append_time, repeated + header.record_count)
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
        if header.producer_id != NO_PRODUCER:
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

    def _roll(self, now_ms: int) -> Segment:
        segment = Segment(self.directory, self.log_end_offset, 0, self._open_files)
        segment.activate()
        self._active.seal()
        self._unsynced.append(self._active)
        segment.created_ms = now_ms
        self._directory_changed = True
        self._segments.append(segment)
        self._active = segment
        return segment

    # Reading

    def read(self, offset: int, bytes_max: int) -> FileSlice | ColdRead | None:
        """Whole batches from the one that holds `offset` on; None at the end of the log.

        At least one batch, however large; else at most `bytes_max`. What has not been in memory or
        checked since the start comes as a `ColdRead`, to be run in a thread.
        """
        if self.failure is not None:
            raise self.failure
        if offset == self.log_end_offset:
            return None
        if not self.log_start_offset <= offset < self.log_end_offset:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}",
            )
        at = self._segment_index(offset)
        segment = self._segments[at]
        if not segment.is_active and not segment.indexes_checked:
            return ColdRead(self, segment, offset, bytes_max, self._end_of(at))
        found = self._read_segment(at, offset, bytes_max)
        if found is None or self._is_warm(segment, found):
            return found
        return ColdRead(self, segment, offset, bytes_max, self._end_of(at))

    def _read_segment(self, at: int, offset: int, bytes_max: int) -> FileSlice | None:
        """From segment `at`, or from the next with records if a gap ends this one."""
        try:
            for i in range(at, len(self._segments)):
                found = self._segments[i].read(offset, bytes_max, self._end_of(i))
                if found is not None:
                    return found
        except CorruptLogError as error:
            raise self.fail(f"{error}; run `penstock log verify`") from error
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

    def _end_of(self, at: int) -> int:
        if at + 1 < len(self._segments):
            return self._segments[at + 1].base_offset
        return self.log_end_offset

    def find_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after this time. Blocks: runs in a thread."""
        for segment in tuple(self._segments):
            if segment.largest_timestamp() >= timestamp_ms:
                found = first_at_or_after(segment, timestamp_ms, self.log_start_offset)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp. Blocks: runs in a thread."""
        segments = [item for item in tuple(self._segments) if item.size]
        if not segments:
            return None
        newest = max(segments, key=lambda segment: segment.largest_timestamp())
        timestamp = newest.largest_timestamp()
        if timestamp < 0:
            return None
        return first_at_or_after(newest, timestamp, self.log_start_offset)

    def timestamp_at(self, offset: int) -> TimestampOffset | None:
        """The record at `offset` with its timestamp. Blocks: runs in a thread."""
        return record_at(self._segments[self._segment_index(offset)], offset)

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
            self._saved = None
            self._dirty[self] = None
        return self.log_start_offset

    def expire_segments(self) -> list[str]:
        """Take what retention no longer keeps out of the log; the files that the caller removes.

        Those who are still reading a removed segment finish undisturbed.
        """
        now_ms = self._clock.wall_ms()
        count = expired_count(
            self._segments, self.log_start_offset, self.log_end_offset, self.config, now_ms
        )
        if count == 0:
            return []
        if count == len(self._segments):
            self._roll(now_ms)
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._unsynced = [segment for segment in self._unsynced if segment not in gone]
        self.log_start_offset = max(self.log_start_offset, self._segments[0].base_offset)
        self._epochs.trim_start(self.log_start_offset)
        for segment in gone:
            segment.drop()
        return [path for segment in gone for path in segment.paths()]

    def expire_producers(self, expiry_ms: int) -> None:
        self._producers.expire(self._clock.wall_ms(), expiry_ms)

    # Durability

    @property
    def needs_sync_before_answer(self) -> bool:
        """Whether `flush.messages` asks for a sync now."""
        return self._records_unsynced >= self.config.flush_messages

    def begin_sync(self) -> SyncPlan:
        """What to sync for the log to be durable up to where it is now."""
        sealed = self._unsynced
        self._records_unsynced = 0
        return SyncPlan(
            log=self,
            position=self._position(),
            files=[segment.file for segment in (*sealed, self._active)],
            sealed=list(sealed),
            directory=self.directory if self._directory_changed else None,
        )

    def finish_sync(self, plan: SyncPlan) -> None:
        """Called on the event loop once the plan has run without error."""
        self._unsynced = [segment for segment in self._unsynced if segment not in plan.sealed]
        if plan.directory is not None and plan.position.segment == self._active.base_offset:
            self._directory_changed = False
        if plan.position.offset >= self._durable.offset:
            self._durable = plan.position

    def _position(self) -> Position:
        active = self._active
        return Position(segment=active.base_offset, byte=active.size, offset=self.log_end_offset)

    @property
    def bytes_since_checkpoint(self) -> int:
        """How much a recovery would have to scan now."""
        if self._saved is None:
            return self._active.size
        if self._saved.segment != self._active.base_offset:
            return self._active.size + 1
        return self._active.size - self._saved.byte

    @property
    def is_checkpointed(self) -> bool:
        return self._saved == self._position()

    @property
    def is_synced(self) -> bool:
        return self._durable == self._position()

    @property
    def has_unsynced_segments(self) -> bool:
        """Whether sealed segments wait for a sync, which they should not do for long."""
        return bool(self._unsynced)

    def begin_checkpoint(self) -> CheckpointPlan:
        """The recovery point as of now, ready to be written. `OSError` if the indexes cannot be."""
        active = self._active
        active.index.flush()
        active.time_index.flush()
        position = self._position()
        data = Checkpoint(
            boot=boot_id(),
            log_start_offset=self.log_start_offset,
            written=position,
            durable=self._durable,
            segment_created_ms=active.created_ms,
            max_timestamp=active.max_timestamp,
            max_timestamp_offset=active.max_timestamp_offset,
            epochs=self._epochs.entries,
            producers=self._producers.to_json(),
        ).encode()
        return CheckpointPlan(log=self, position=position, data=data)

    def finish_checkpoint(self, plan: CheckpointPlan) -> None:
        """Called once the plan has run without error."""
        self._saved = plan.position

    def close(self, *, force_checkpoint: bool = False) -> None:
        """Sync everything and write the recovery point at the end of the log. Blocks."""
        end = self._position()
        is_done = self._saved == end == self._durable and not force_checkpoint
        if self.failure is None and not is_done:
            sync = self.begin_sync()
            sync.run()
            self.finish_sync(sync)
            plan = self.begin_checkpoint()
            plan.run(durable=True)
            self.finish_checkpoint(plan)
        self.abandon()

    def abandon(self) -> None:
        """Let go of all files as they are."""
        for segment in self._segments:
            segment.drop()
