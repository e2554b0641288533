"""What a log wants done to its files, ready to be carried out in a thread.

A plan is made on the event loop, where the log's state is, and holds all it needs: while it waits for
its thread the log may grow, and its directory may even be moved away and another take its name.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.log import checkpoint
from penstock.log.checkpoint import Position
from penstock.log.files import Directory, LogFile
from penstock.log.indexing import SegmentIndexes
from penstock.log.segment import Segment


class Saved(NamedTuple):
    """What a recovery point says of the log, as far as that tells whether it has to be renewed."""

    position: Position  # `written`
    log_start_offset: int
    high_watermark: int | None = None
    latest_epoch: int = -1


@dataclass(slots=True, kw_only=True)
class SyncPlan:
    """What has to reach the disk for the log to be durable up to `position`."""

    position: Position
    active: LogFile
    sealed: list[tuple[Segment, LogFile | None]]  # None: written by a process that is dead
    paths: list[str]  # files, and directories whose entries count
    cuts: int = 0  # how often the log had been cut when the sync began
    cut: CutPlan | None = None  # a cut that may not be on disk yet

    def run(self) -> None:
        """Sync. Blocks: runs in a thread. `OSError` means that nothing may be assumed."""
        if self.cut is not None:
            self.cut.run()
        for segment, file in self.sealed:
            with contextlib.suppress(FileNotFoundError):  # retention was faster
                (file or LogFile(segment.path, os.O_RDONLY)).sync_data()
            segment.indexes.sync()
        self.active.sync_data()
        for path in self.paths:
            LogFile(path, os.O_RDONLY).sync()


@dataclass(slots=True, kw_only=True)
class CutPlan:
    """What has to reach the disk before records are written in the place of those that were cut off.

    `run` may be called in a thread as soon as the log is cut. Whoever needs it done calls it again:
    it is done once, and the others wait for that.
    """

    directory: Directory
    file: LogFile | None  # the segment that is shorter now
    _is_done: bool = False
    _error: OSError | None = None  # the system tells of a failed sync only once
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Blocks. `OSError` means that nothing may be assumed, however often it is tried."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._is_done:
                return
            try:
                if self.file is not None:
                    self.file.sync()
                self.directory.sync()
            except OSError as error:
                self._error = error
                raise
            self._is_done = True


class CheckpointTurn:
    """Lets recovery points be written one at a time, and none from before a cut after it.

    Nor any from before a failed sync, or from after it: the one that tells of it is the last.
    """

    __slots__ = ("cuts", "is_over", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cuts = 0  # changed while the lock is held
        self.is_over = False  # but for the last one


@dataclass(slots=True, kw_only=True)
class CheckpointPlan:
    """A recovery point on its way to the disk."""

    directory: Directory
    data: bytes
    indexes: SegmentIndexes
    must_be_durable: bool
    turn: CheckpointTurn
    cuts: int  # as many as there had been when this was the state of the log
    saved: Saved
    is_last: bool = False  # it tells of a failed sync

    def run(self) -> None:
        """Write it. Blocks: runs in a thread. `OSError` leaves the one before in force."""
        if self.must_be_durable:
            self.indexes.sync()
        with self.turn.lock:
            if self.turn.cuts == self.cuts and (self.is_last or not self.turn.is_over):
                checkpoint.save(self.directory, self.data, durable=self.must_be_durable)


@dataclass(slots=True, kw_only=True)
class RemovalPlan:
    """Files of segments that are no longer part of the log."""

    directory: Directory
    names: list[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Remove them, the oldest first, so that no gap is left by a crash. Runs in a thread."""
        with self._lock:
            names, self.names = self.names, []
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.directory.fd)
