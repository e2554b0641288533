"""Taking records off the end of a log again: what a replica does whose leader has others there.

What is cut off must never come back once others were written in its place, whenever the process or the
machine dies. So the recovery point comes first: from then on the cut part is only what happens to lie
behind it, and a crash may bring all of it back, as if the log had not been cut. Then files go, the last
first, and the one that is cut is made shorter. Records that come next go to a new segment, and not
before the cut is on disk. No file ever holds new bytes where others were: somebody who is still reading
the cut part finds its file shorter than before, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterable

from penstock.errors import CorruptLogError
from penstock.log.checkpoint import (
    INDEXES_DURABLE,
    INDEXES_NOT_WHOLE,
    INDEXES_WRITTEN,
    Checkpoint,
    Position,
    save,
)
from penstock.log.durable import DurableLog
from penstock.log.epochs import LeaderEpochs
from penstock.log.files import Directory, LogFile
from penstock.log.index import BadIndexError
from penstock.log.indexing import Trust
from penstock.log.plans import CutPlan, RemovalPlan
from penstock.log.producers import ProducerStates
from penstock.log.segment import Segment, UncheckedGapError
from penstock.log.watermark import Place
from penstock.machine import boot_id


class CuttableLog(DurableLog):
    """A log that can be cut. `PartitionLog` uses it."""

    _removal: RemovalPlan | None = None  # the last one that retention asked for

    def truncate(self, offset: int) -> CutPlan | None:
        """Cut off every record at or above `offset`, and the whole batch that holds it.

        What has to reach the disk before anything is written in their place, if anything was cut: to
        be run in a thread, or else the next append does it.
        """
        if self.failure is not None:
            raise self.failure_again()
        self._epochs.trim_end(offset)
        self._dirty[self] = None
        if offset >= self.log_end_offset:
            return None
        if offset < self.log_start_offset:
            return self.restart_at(offset)
        try:
            place, last_end = self._place_to_cut(offset)
            if place.offset < self.log_start_offset:  # the batch that holds the log's start goes
                return self._start_over(self.log_start_offset)
            return self._cut_at(place, last_end)
        except CorruptLogError as error:
            raise self.fail(f"{error}; run `penstock log verify`") from error
        except OSError as error:
            raise self.fail(f"cannot cut {self.directory}: {error.strerror}") from error

    def restart_at(self, offset: int, *, base_offset: int | None = None) -> CutPlan | None:
        """Drop all records: the log begins and ends at `offset`. As `truncate`.

        With a `base_offset` below that, the batch that holds `offset` comes next, and begins there.
        """
        if self.failure is not None:
            raise self.failure_again()
        try:
            return self._start_over(offset, base_offset=base_offset)
        except OSError as error:
            raise self.fail(f"cannot cut {self.directory}: {error.strerror}") from error

    def _make_writable(self) -> None:
        """See to it that the last cut is on disk. `ApiError` if the log is out of service."""
        if self.failure is not None:
            raise self.failure_again()
        cut = self._cut
        if cut is None:
            return
        try:
            cut.run()
        except OSError as error:
            plan = self.sync_failed(error)
            if plan is not None:
                with contextlib.suppress(OSError):
                    plan.run()
            raise self.failure_again() from error
        self._cut = None

    # Where

    def place_of(self, offset: int) -> Place:
        """Where the batch that holds `offset`, or else the first one above it, begins.

        `CorruptLogError` if there are no batches to be found. May read much of a segment if its index
        was lost.
        """
        if offset >= self.log_end_offset:
            return Place(offset, self._active, self._active.size)
        segment = self._segments[self._segment_index(offset)]
        while True:
            try:
                return Place(offset, segment, segment.locate(offset, segment.size))
            except BadIndexError:
                continue  # it is not used any more
            except UncheckedGapError as gap:
                return Place(offset, segment, gap.end)

    def _segment_index(self, offset: int) -> int:
        segments = self._segments
        if offset >= segments[-1].base_offset:
            return len(segments) - 1
        return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

    def _place_to_cut(self, offset: int) -> tuple[Place, int]:
        """Where to cut for nothing at or above `offset` to be left, and where records end then."""
        place = self.place_of(offset)
        _, segment, byte = place
        last_end = -1
        while last_end < 0:
            with contextlib.suppress(BadIndexError):  # it is not used any more
                last_end = segment.end_offset_at(byte)
        if byte == 0:
            last_end = next((start for start, end in self._gaps if end == last_end), last_end)
        if byte < segment.size and segment.header_at(byte).base_offset < offset:
            return place._replace(offset=last_end), last_end
        return place, last_end

    # Doing it

    def _cut_at(self, place: Place, last_end: int) -> CutPlan:
        end_offset, segment, byte = place
        at = self._segments.index(segment)
        self._retire(self._segments[at:])
        left = segment.shortened(byte, end_offset) if byte else None
        self._gaps = [gap for gap in self._gaps if gap[1] <= last_end]
        if last_end < end_offset:
            self._gaps.append((last_end, end_offset))
        self._producers.undo(end_offset)
        self._epochs.trim_end(end_offset)
        self._last_epoch = self._epochs.epoch_at(end_offset - 1)
        self.log_end_offset = end_offset
        position = Position(segment=segment.base_offset, byte=byte, offset=end_offset)
        if self._watermark is not None:
            self._watermark.lower(end_offset)
        must_be_durable = end_offset < self._durable.offset
        if must_be_durable:
            self._durable = position
        self._save_cut(position, left or segment, must_be_durable=must_be_durable)
        replaced: dict[Segment, Segment | None] = dict.fromkeys(self._segments[at:])
        replaced[segment] = left
        return self._replace_segments(replaced)

    def _start_over(self, offset: int, *, base_offset: int | None = None) -> CutPlan | None:
        """No records; the log begins and ends at `offset`, in a segment that may begin below it.

        One that never had any has nothing that might come back, and waits for no disk: a broker that is
        new to a cluster does this with all of its logs, one after the other.
        """
        base_offset = offset if base_offset is None else base_offset
        self._retire(self._segments)
        had_records = self.log_end_offset > 0 or self._cut is not None
        self._gaps = []
        self._producers, self._epochs = ProducerStates(), LeaderEpochs()
        self._last_epoch = -1
        self.log_start_offset = offset
        self.log_end_offset = base_offset
        if self._watermark is not None:
            self._watermark.place = self._watermark.place._replace(offset=offset)
        position = Position(segment=base_offset, byte=0, offset=base_offset)
        self._durable = position
        self._save_cut(position, None, must_be_durable=had_records)
        if self._removal is not None:
            self._removal.run()  # a file with the new segment's name may be among them
        plan = self._replace_segments(dict.fromkeys(self._segments))
        if had_records:
            return plan
        self._cut = None
        return None

    def _retire(self, segments: Iterable[Segment]) -> None:
        """First of all: who reads them in a thread is to take nothing that follows for damage."""
        with self.index_files_lock:
            for segment in segments:
                segment.is_retired = True

    def _save_cut(
        self, position: Position, segment: Segment | None, *, must_be_durable: bool
    ) -> None:
        """The recovery point at the cut. Those that are under way come too late from now on."""
        indexes = INDEXES_NOT_WHOLE
        if segment is None or segment.indexes.trust is Trust.TRUSTED:
            indexes = INDEXES_DURABLE if must_be_durable else INDEXES_WRITTEN
        if segment is not None and must_be_durable:
            segment.indexes.sync()
        saved = self._to_save(position)
        data = Checkpoint(
            boot=boot_id(),
            log_start_offset=self.log_start_offset,
            written=position,
            durable=self._durable,
            segment_created_ms=segment.created_ms if segment else self._clock.wall_ms(),
            max_timestamp=segment.indexes.max_timestamp if segment else -1,
            max_timestamp_offset=(
                segment.indexes.max_timestamp_offset if segment else position.offset
            ),
            indexes=indexes,
            gaps=self._gaps,
            epochs=self._epochs.entries,
            last_epoch=self._last_epoch,
            high_watermark=saved.high_watermark,
            producers=self._producers.to_json(),
        ).encode()
        with self._checkpoint_turn.lock:
            self.cut_offsets.append(position.offset)
            self._checkpoint_turn.cuts += 1
            save(Directory(self.directory), data, durable=must_be_durable)
        self._saved = saved

    def _replace_segments(self, replaced: dict[Segment, Segment | None]) -> CutPlan:
        """Remove or cut the files of these, the last segments, and begin the one that comes next."""
        directory = Directory(self.directory)
        file: LogFile | None = None
        kept = [segment for segment in self._segments if segment not in replaced]
        for segment, left in reversed(replaced.items()):
            segment.retire()
            if left is None:
                for path in segment.paths():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                continue
            if len(replaced) > 1:
                directory.sync()  # none of the others is there any more when this one is shorter
            file = left.cut_file()
            kept.append(left)
        active = Segment(self.directory, self.log_end_offset, 0, self._open_files)
        active.activate(is_new=True)
        active.created_ms = self._clock.wall_ms()
        self._unsynced = [item for item in self._unsynced if item[0] not in replaced]
        if file is not None and kept[-1].base_offset >= self._durable.segment:
            self._unsynced.append((kept[-1], file))
        if self.directory not in self._paths_to_sync:
            self._paths_to_sync.append(self.directory)
        self._segments = [*kept, active]
        self._active = active
        self._records_unsynced = max(0, self.log_end_offset - self._durable.offset)
        if self._watermark is not None:
            end_offset = max(self.log_end_offset, self.log_start_offset)
            self._watermark.shorten(Place(end_offset, active, 0), replaced)
        self._cut = CutPlan(directory=directory, file=file)
        return self._cut
