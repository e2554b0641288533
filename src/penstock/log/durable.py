"""What of a log would survive: its files, what a sync makes durable, and its recovery points.

Runs on the event loop. What blocks on the disk is handed out as a plan, to be run in a thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from penstock.clock import Clock
from penstock.errors import ApiError, StorageError
from penstock.log.checkpoint import (
    INDEXES_DURABLE,
    INDEXES_NOT_WHOLE,
    INDEXES_WRITTEN,
    SYNC_FAILED,
    Checkpoint,
    Position,
)
from penstock.log.files import Directory, LogFile
from penstock.log.indexing import Trust
from penstock.log.plans import CheckpointPlan, CheckpointTurn, CutPlan, Saved, SyncPlan
from penstock.log.recovery import recover
from penstock.log.segment import OpenFiles, Segment
from penstock.log.watermark import Watermark
from penstock.machine import boot_id
from penstock.settings import TopicConfig

_NOTHING: Final = Position(segment=0, byte=0, offset=0)


class DurableLog:
    """A log's files as they were found, and as a crash would leave them. `PartitionLog` uses them."""

    def __init__(
        self,
        directory: str,
        config: TopicConfig,
        clock: Clock,
        open_files: OpenFiles,
    ) -> None:
        self.directory = directory
        self.config = config
        self.failure: ApiError | None = None  # set for good: nothing is served from then on
        self.on_sync_failed: Callable[[], None] | None = None  # called in any thread
        self._clock = clock
        self._open_files = open_files
        self._dirty: dict[Any, None] = {}  # it is in it if it has changed: see `report_to`
        self.index_lock = threading.Lock()  # held by the one thread that makes an index anew
        self.index_files_lock = threading.Lock()  # held while it takes the old one's place
        is_new = not os.path.isdir(directory)
        os.makedirs(directory, exist_ok=True)
        state = recover(directory, clock, open_files, config.index_interval_bytes)
        self._segments = state.segments
        self._active = state.segments[-1]
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self._epochs = state.epochs
        self._last_epoch = state.last_epoch  # of the last record, even if that is deleted by now
        self._watermark: Watermark | None = None  # None: all there is may be read
        self.recovered_high_watermark = state.high_watermark
        self._producers = state.producers
        self._gaps = state.gaps
        self._durable = state.durable
        # Sealed segments that the next sync has to include, with the file they were written through.
        self._unsynced: list[tuple[Segment, LogFile | None]] = [
            (segment, None)
            for segment in state.segments[:-1]
            if segment.base_offset >= state.durable.segment
        ]
        self._paths_to_sync = [directory]  # files were made that a sync has to record
        if is_new:
            topic_dir = os.path.dirname(directory)
            self._paths_to_sync += [topic_dir, os.path.dirname(topic_dir)]
        self._saved = state.saved  # the last recovery point written
        self._checkpoint_turn = CheckpointTurn()
        self.cut_offsets: list[int] = []  # where the log was cut since it was opened, each time
        self._cut: CutPlan | None = None  # the last one, if it may not be on disk yet
        self._records_unsynced = max(0, self.log_end_offset - state.durable.offset)
        if state.scanned_bytes or self._records_unsynced:
            self._dirty[self] = None

    def fail(self, reason: str) -> ApiError:
        """Take the log out of service: it may no longer be what its readers were told."""
        if self.failure is None:
            self.failure = StorageError(reason)
            self._dirty[self] = None  # for the event loop to tell its readers: this may be a thread
        return self.failure_again()

    def failure_again(self) -> ApiError:
        """A new exception for the log's failure: each that is raised carries its own traceback."""
        assert self.failure is not None
        if isinstance(self.failure, StorageError):
            return StorageError(self.failure.message)
        return ApiError(self.failure.code, self.failure.message)

    def _roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """A new active segment, from the log's end on, or from above it: what lies between is lost."""
        sealed = self._active
        sealed.cut_torn()
        if base_offset is None:
            base_offset = self.log_end_offset
        segment = Segment(self.directory, base_offset, 0, self._open_files)
        segment.activate(is_new=True)
        try:
            sealed.seal()
        except OSError:
            with contextlib.suppress(OSError):  # recovery removes it, too
                os.unlink(segment.path)
            raise
        self._unsynced.append((sealed, sealed.file))
        segment.created_ms = now_ms
        if self.directory not in self._paths_to_sync:
            self._paths_to_sync.append(self.directory)
        self._segments.append(segment)
        self._active = segment
        return segment

    # Syncs

    @property
    def durable_offset(self) -> int:
        """Every record below this is on disk."""
        return self._durable.offset

    @property
    def needs_sync_before_answer(self) -> bool:
        """Whether `flush.messages` asks for a sync now."""
        return self._records_unsynced >= self.config.flush_messages

    @property
    def has_unsynced_records(self) -> bool:
        """Whether records came since the last sync began."""
        return self._records_unsynced > 0

    def begin_sync(self) -> SyncPlan:
        """What to sync for the log to be durable up to where it is now."""
        self._records_unsynced = 0
        return SyncPlan(
            position=self._position(),
            active=self._active.file,
            sealed=list(self._unsynced),
            paths=list(self._paths_to_sync),
            cuts=len(self.cut_offsets),
            cut=self._cut,
        )

    def sync_with(self, path: str) -> None:
        """A file that has to be on disk before any record of this log counts as durable."""
        self._paths_to_sync.insert(0, path)

    def finish_sync(self, plan: SyncPlan) -> None:
        """Called on the event loop once the plan has run without error.

        If the log was cut meanwhile, the sync counts for nothing: it may have covered what is gone.
        """
        if plan.cuts != len(self.cut_offsets):
            return
        synced = {segment for segment, _ in plan.sealed}
        self._unsynced = [item for item in self._unsynced if item[0] not in synced]
        if plan.position.segment == self._active.base_offset:
            self._paths_to_sync = []
        if plan.position.offset >= self._durable.offset:
            self._durable = plan.position

    def sync_failed(self, error: object) -> CheckpointPlan | None:
        """Take the log out of service, because nobody knows what the disk holds now.

        What to write down, if that is possible at all, so that the next start believes the disk and
        not the system's memory, which forgets after a failed sync that it holds anything unwritten.
        """
        self.fail(f"cannot sync {self.directory}: {error}")
        if self.on_sync_failed is not None:
            self.on_sync_failed()
        self._checkpoint_turn.is_over = True
        try:
            plan = self._checkpoint_plan(SYNC_FAILED, INDEXES_NOT_WHOLE, must_be_durable=False)
        except OSError:
            return None
        plan.is_last = True
        return plan

    def _position(self) -> Position:
        active = self._active
        return Position(segment=active.base_offset, byte=active.size, offset=self.log_end_offset)

    def was_cut_below(self, offset: int, cuts: int) -> bool:
        """Whether records below `offset` were cut off since there had been `cuts` cuts."""
        return any(cut < offset for cut in self.cut_offsets[cuts:])

    # Recovery points

    @property
    def bytes_since_checkpoint(self) -> int:
        """How much a recovery would have to scan now."""
        if self._saved is None:
            return self._active.size
        if self._saved.position.segment != self._active.base_offset:
            return self._active.size + 1
        return self._active.size - self._saved.position.byte

    @property
    def is_checkpointed(self) -> bool:
        return self._saved == self._to_save(self._position())

    def _to_save(self, position: Position) -> Saved:
        watermark = self._watermark
        return Saved(
            position,
            self.log_start_offset,
            None if watermark is None else watermark.place.offset,
            self._epochs.latest,
        )

    @property
    def is_synced(self) -> bool:
        return self._durable == self._position()

    @property
    def has_unsynced_segments(self) -> bool:
        """Whether sealed segments wait for a sync, which they should not do for long."""
        return bool(self._unsynced)

    def begin_checkpoint(self, *, durable: bool = False) -> CheckpointPlan:
        """The recovery point as of now, ready to be written. `OSError` if the indexes cannot be.

        With `durable` it will be on disk, with the indexes, when the plan has run. Otherwise a power
        cut may take it; but not where records were deleted, for they would be back then.
        """
        active = self._active
        active.indexes.flush()
        durable = durable or self.log_start_offset > self._segments[0].base_offset
        indexes = INDEXES_DURABLE if durable else INDEXES_WRITTEN
        if active.indexes.trust is Trust.BAD:
            indexes = INDEXES_NOT_WHOLE
        return self._checkpoint_plan(boot_id(), indexes, must_be_durable=durable)

    def _checkpoint_plan(self, boot: str, indexes: str, *, must_be_durable: bool) -> CheckpointPlan:
        active = self._active
        saved = self._to_save(self._position())
        data = Checkpoint(
            boot=boot,
            log_start_offset=self.log_start_offset,
            written=saved.position,
            durable=self._durable,
            segment_created_ms=active.created_ms,
            max_timestamp=active.indexes.max_timestamp,
            max_timestamp_offset=active.indexes.max_timestamp_offset,
            indexes=indexes,
            gaps=self._gaps,
            epochs=self._epochs.entries,
            last_epoch=self._last_epoch,
            high_watermark=saved.high_watermark,
            producers=self._producers.to_json(),
        ).encode()
        return CheckpointPlan(
            directory=Directory(self.directory),
            data=data,
            indexes=active.indexes,
            must_be_durable=must_be_durable,
            turn=self._checkpoint_turn,
            cuts=len(self.cut_offsets),
            saved=saved,
        )

    def finish_checkpoint(self, plan: CheckpointPlan) -> None:
        """Called once the plan has run without error."""
        if plan.cuts == len(self.cut_offsets):
            self._saved = plan.saved

    def close(self, *, force_checkpoint: bool = False) -> None:
        """Sync everything and write the recovery point at the end of the log. Blocks."""
        is_untouched = self._position() == _NOTHING and not self._epochs.entries
        is_done = (self.is_checkpointed and self.is_synced) or is_untouched
        if self.failure is None and (force_checkpoint or not is_done):
            sync = self.begin_sync()
            try:
                sync.run()
            except OSError as error:
                plan = self.sync_failed(error)
                if plan is not None:
                    plan.run()
                raise
            self.finish_sync(sync)
            plan = self.begin_checkpoint(durable=True)
            plan.run()
            self.finish_checkpoint(plan)
        self.abandon()

    def abandon(self) -> None:
        """Let go of all files as they are."""
        for segment in self._segments:
            segment.drop()
