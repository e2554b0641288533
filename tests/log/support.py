"""Logs on real files, and what a test may do to them that the world does."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from penstock.clock import ManualClock
from penstock.log import Appended, ColdRead, PartitionLog
from penstock.log.checkpoint import FILE_NAME, Checkpoint
from penstock.log.ownership import OWN_DIRECTORY, STORAGE_FILE
from penstock.records.batch import assign, read_header
from penstock.records.decode import Record, encode_batch, records_of
from penstock.settings import TopicConfig

NOW_MS = 1_700_000_000_000  # what ManualClock starts with


def batch(
    count: int = 1,
    *,
    value_bytes: int = 10,
    timestamp: int = NOW_MS,
    value: bytes = b"",
    **more: Any,
) -> memoryview:
    """A produced batch of `count` records, a millisecond apart, in a buffer of its own."""
    value = value or b"v" * value_bytes
    records: list[tuple[bytes | None, bytes | None]] = [(b"k", value)] * count
    return memoryview(encode_batch(records, timestamp=timestamp, **more))


def from_producer(
    sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, **more: Any
) -> memoryview:
    """A batch of an idempotent producer."""
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more)


class Disk:
    """One partition's directory, and the log that is open on it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.config = TopicConfig(**settings)
        self.dirty: dict[PartitionLog, None] = {}
        self.log = self._open()

    def _open(self) -> PartitionLog:
        log = PartitionLog(str(self.directory), self.config, clock=self.clock)
        log.report_to(self.dirty)
        return log

    def start(self, **settings: Any) -> PartitionLog:
        """Open the log; `CorruptLogError` if it is damaged."""
        self.config = dataclasses.replace(self.config, **settings)
        self.log = self._open()
        return self.log

    def stop(self) -> None:
        """A clean stop."""
        self.log.close()

    def kill(self) -> None:
        """The process dies; what it wrote stays in the page cache."""
        self.log.abandon()

    def cut_power(self) -> None:
        """The machine goes down: whoever looks next does so after another boot.

        Every byte is still there; a test takes away what it wants lost.
        """
        self.log.abandon()
        self.edit_checkpoint(boot="the boot before")

    def restart(self, **settings: Any) -> PartitionLog:
        self.stop()
        return self.start(**settings)

    def restart_after_kill(self, **settings: Any) -> PartitionLog:
        self.kill()
        return self.start(**settings)

    def checkpoint(self, *, durable: bool = False) -> None:
        """Write the recovery point that the broker's job writes."""
        plan = self.log.begin_checkpoint(durable=durable)
        plan.run()
        self.log.finish_checkpoint(plan)

    def sync(self) -> None:
        plan = self.log.begin_sync()
        plan.run()
        self.log.finish_sync(plan)

    def saved(self) -> Checkpoint:
        saved = Checkpoint.decode((self.directory / FILE_NAME).read_bytes())
        assert saved is not None
        return saved

    def edit_checkpoint(self, **changes: Any) -> None:
        path = self.directory / FILE_NAME
        if path.exists():
            path.write_bytes(dataclasses.replace(self.saved(), **changes).encode())

    def segment(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}.log"

    def index(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}.index"

    def time_index(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}.timeindex"

    def segments(self) -> list[int]:
        """Base offsets of the segment files."""
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    # What a test does with the log

    def append(self, produced: memoryview | None = None, **more: Any) -> Appended:
        return self.log.append(batch(**more) if produced is None else produced)

    def append_many(self, batches: int, **more: Any) -> list[bytes]:
        """So many batches; their bytes as they are in the log."""
        written = []
        for _ in range(batches):
            produced = batch(**more)
            self.log.append(produced)
            written.append(bytes(produced))
        return written


def read_bytes(log: PartitionLog, offset: int, bytes_max: int = 1 << 20) -> bytes:
    """What a fetch gets, cold or warm; empty at the end of the log."""
    found = log.read(offset, bytes_max)
    if isinstance(found, ColdRead):
        found = found.run()
    return b"" if found is None else found.read()


def split(data: bytes) -> list[bytes]:
    """The batches in `data`, which must be whole."""
    batches = []
    while data:
        size = read_header(data).size_bytes
        assert size <= len(data), "half a batch"
        batches.append(data[:size])
        data = data[size:]
    return batches


def read_all(log: PartitionLog, offset: int | None = None, bytes_max: int = 1 << 20) -> list[bytes]:
    """Every batch from `offset` on (the log's start by default), as a consumer gets them."""
    offset = log.log_start_offset if offset is None else offset
    batches: list[bytes] = []
    while found := split(read_bytes(log, offset, bytes_max)):
        batches += found
        following = read_header(found[-1]).last_offset + 1
        assert following > offset, "a read that makes no progress"
        offset = following
    return batches


def records(log: PartitionLog) -> list[Record]:
    """Every record that a consumer from the log's start sees."""
    start = log.log_start_offset
    return [item for data in read_all(log) for item in records_of(data) if item.offset >= start]


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in records(log)]


def power_cut(data_dir: Path) -> None:
    """The machine went down before a clean stop was noted, and is up again."""
    another_boot(data_dir / OWN_DIRECTORY, is_clean=False)


def another_boot(own_directory: Path, **values: bool) -> None:
    """What was written down of the storage was so by another boot; with these values, if not its own."""
    path = own_directory / STORAGE_FILE
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {"boot": "the boot before"} | values))


def damage(path: Path, position: int, bits: int = 0x01) -> None:
    """Flip bits of one byte."""
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ bits]))


def append_bytes(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def zero(path: Path, position: int = 0, size: int | None = None) -> None:
    """Replace bytes by zeros, as a power cut does to blocks that were never written."""
    end = path.stat().st_size if size is None else position + size
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes(end - position))


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def fetched(log: PartitionLog, offset: int, bytes_max: int = 1 << 20) -> memoryview:
    """What a follower gets: whole batches, those above the high watermark, too."""
    found = log.read(offset, bytes_max, uncommitted=True)
    if isinstance(found, ColdRead):
        found = found.run()
    return memoryview(b"" if found is None else found.read())


def follow(follower: PartitionLog, leader: PartitionLog, bytes_max: int = 1 << 20) -> None:
    """Fetch until there is no more."""
    while records := fetched(leader, follower.log_end_offset, bytes_max):
        follower.append_fetched(records)


def placed(produced: memoryview, base_offset: int, leader_epoch: int = 0) -> memoryview:
    """A batch as a leader's log has it."""
    assign(produced, base_offset, leader_epoch)
    return produced


def all_bytes(log: PartitionLog) -> list[bytes]:
    """Every batch, committed or not."""
    batches: list[bytes] = []
    offset = log.log_start_offset
    while found := split(bytes(fetched(log, offset))):
        batches += found
        offset = read_header(found[-1]).last_offset + 1
    return batches
