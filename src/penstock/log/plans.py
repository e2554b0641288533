"""What a log wants done to its files, ready to be carried out in a thread.

A plan is made on the event loop, where the log's state is, and holds all it needs: while it waits for
its thread the log may grow, and its directory may even be moved away and another take its name.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from penstock.log import checkpoint
from penstock.log.checkpoint import Position, sync_directory
from penstock.log.files import Directory, LogFile
from penstock.log.indexing import SegmentIndexes
from penstock.log.segment import Segment


@dataclass(slots=True, kw_only=True)
class SyncPlan:
    """What has to reach the disk for the log to be durable up to `position`."""

    position: Position
    active: LogFile
    sealed: list[tuple[Segment, LogFile | None]]  # None: written by a process that is dead
    directories: list[str]

    def run(self) -> None:
        """Sync. Blocks: runs in a thread. `OSError` means that nothing may be assumed."""
        for segment, file in self.sealed:
            with contextlib.suppress(FileNotFoundError):  # retention was faster
                (file or LogFile(segment.path, os.O_RDONLY)).sync_data()
            segment.indexes.sync()
        self.active.sync_data()
        for directory in self.directories:
            sync_directory(directory)


@dataclass(slots=True, kw_only=True)
class CheckpointPlan:
    """A recovery point on its way to the disk."""

    directory: Directory
    position: Position
    log_start_offset: int
    data: bytes
    indexes: SegmentIndexes
    must_be_durable: bool

    def run(self) -> None:
        """Write it. Blocks: runs in a thread. `OSError` leaves the one before in force."""
        if self.must_be_durable:
            self.indexes.sync()
        checkpoint.save(self.directory, self.data, durable=self.must_be_durable)


@dataclass(slots=True, kw_only=True)
class RemovalPlan:
    """Files of segments that are no longer part of the log."""

    directory: Directory
    names: list[str]

    def run(self) -> None:
        """Remove them, the oldest first, so that no gap is left by a crash. Runs in a thread."""
        for name in self.names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.directory.fd)
