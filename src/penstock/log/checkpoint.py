"""A log's recovery point: what was known to be sound when it was written.

Two positions are kept. `written` is how far the log went when the checkpoint was taken: it is good as
long as the machine has not restarted, because what a dead process wrote stays in the system's page
cache. `durable` is what had been synced to disk: it is good after a power cut, too. The boot id tells
the two cases apart, so after a `kill -9` only the last moments are scanned, synced or not.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from crc32c import crc32c

from penstock.log.files import Directory, replace_file
from penstock.machine import boot_id

logger = logging.getLogger(__name__)

FILE_NAME: Final = "checkpoint"
SYNC_FAILED: Final = ""  # the boot id that no boot has: only what is on disk is to be believed
_FORMAT: Final = 1

# How far the indexes of the segment at `written` can be relied on.
INDEXES_NOT_WHOLE: Final = "not whole"
INDEXES_WRITTEN: Final = "written"
INDEXES_DURABLE: Final = "durable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place between two batches: all before it, in this segment and earlier ones, is sound."""

    segment: int  # base offset of the segment file
    byte: int  # in that file
    offset: int  # of the next record


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that recovery would otherwise have to scan the log for."""

    boot: str
    log_start_offset: int
    written: Position
    durable: Position
    segment_created_ms: int
    max_timestamp: int  # of the segment at `written`, with its offset
    max_timestamp_offset: int
    indexes: str  # of that segment: INDEXES_…
    gaps: list[tuple[int, int]] = field(
        default_factory=list
    )  # lost offsets [a, b) between segments
    epochs: list[tuple[int, int]] = field(default_factory=list)
    last_epoch: int | None = None  # of the last record before `written`; None: not noted
    high_watermark: int | None = None  # of a replica's log
    producers: list[Any] = field(default_factory=list)

    def start_point(self) -> Position:
        """Where recovery has to begin: `written` if the machine is still up, else `durable`."""
        return self.written if self.boot == boot_id() else self.durable

    @property
    def are_indexes_whole(self) -> bool:
        """Whether the index files hold every entry there was before the point to start from."""
        if self.boot == boot_id():
            return self.indexes != INDEXES_NOT_WHOLE
        return self.indexes == INDEXES_DURABLE and self.written == self.durable

    def encode(self) -> bytes:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values |= {"written": asdict(self.written), "durable": asdict(self.durable)}
        body = json.dumps({"format": _FORMAT, **values}, separators=(",", ":")).encode()
        return b"%08x\n%s\n" % (crc32c(body), body)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """The checkpoint in `data`, or None if it is damaged or of another format."""
        checksum, _, body = data.rstrip(b"\n").partition(b"\n")
        try:
            if int(checksum, 16) != crc32c(body):
                return None
            values = json.loads(body)
            if values.pop("format") != _FORMAT:
                return None
            values["written"] = Position(**values["written"])
            values["durable"] = Position(**values["durable"])
            values["epochs"] = [(epoch, start) for epoch, start in values["epochs"]]
            values["gaps"] = [(start, end) for start, end in values["gaps"]]
            return cls(**values)
        except (ValueError, KeyError, TypeError):
            return None


def load(directory: str) -> Checkpoint | None:
    """The directory's checkpoint, or None if there is none that can be trusted."""
    path = os.path.join(directory, FILE_NAME)
    try:
        with open(path, "rb") as file:
            saved = Checkpoint.decode(file.read())
    except FileNotFoundError:
        return None
    if saved is None:
        logger.warning("the recovery point is damaged: the whole log is scanned path=%s", path)
    return saved


def save(directory: Directory, data: bytes, *, durable: bool = False) -> None:
    """Replace the directory's checkpoint in one step. With `durable`, it is on disk on return."""
    replace_file(directory, FILE_NAME, data, durable=durable)


def sync_directory(directory: str) -> None:
    """Make the directory's entries durable. Blocks: runs in a thread."""
    Directory(directory).sync()
