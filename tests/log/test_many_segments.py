"""Opening a long log looks at names and sizes, never at data."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from penstock.log import PartitionLog
from penstock.log.checkpoint import FILE_NAME
from penstock.log.segment import OpenFiles
from penstock.settings import TopicConfig
from tests.log.support import Disk, batch, read_bytes

SEGMENTS = 10_000
RECORDS = 1000  # in each


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 segments of a gigabyte each, all holes, with a real one at the end."""
    directory = tmp_path_factory.mktemp("long") / "topic" / "0"
    base = SEGMENTS * RECORDS
    directory.mkdir(parents=True)
    (directory / f"{base:020d}.log").touch()
    log = PartitionLog(str(directory), TopicConfig())
    log.append(batch(3))
    log.close()
    for i in range(SEGMENTS):
        fd = os.open(directory / f"{i * RECORDS:020d}.log", os.O_CREAT | os.O_WRONLY)
        os.ftruncate(fd, 1 << 30)
        os.close(fd)
    return directory


def _io() -> tuple[int, int]:
    with open("/proc/self/io", encoding="ascii") as file:
        values = dict(line.split(": ") for line in file)
    return int(values["rchar"]), int(values["syscr"])


def test_ten_thousand_segments_open_without_reading_data(long_log: Path) -> None:
    checkpoint_bytes = (long_log / FILE_NAME).stat().st_size
    _io()
    before = _io()
    log = PartitionLog(str(long_log), TopicConfig())
    after = _io()
    assert log.segment_count == SEGMENTS + 1
    assert log.log_end_offset == SEGMENTS * RECORDS + 3
    assert after[0] - before[0] < checkpoint_bytes + 4096, "more was read than the checkpoint"
    assert after[1] - before[1] < 20, "reads that grow with the number of segments"
    log.abandon()


def test_an_unread_segment_costs_less_than_a_few_kilobytes(long_log: Path) -> None:
    tracemalloc.start()
    log = PartitionLog(str(long_log), TopicConfig())
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / SEGMENTS < 3000
    log.abandon()


def test_opening_holds_no_files_but_the_active_one(long_log: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    log = PartitionLog(str(long_log), TopicConfig())
    assert len(os.listdir("/proc/self/fd")) - before == 1
    log.abandon()


def test_reading_many_segments_keeps_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "topic" / "0", segment_bytes=1024, index_interval_bytes=0)
    for _ in range(60):
        disk.append_many(3, value_bytes=300)
    disk.stop()
    before = len(os.listdir("/proc/self/fd"))
    log = PartitionLog(str(disk.directory), disk.config, open_files=OpenFiles(8))
    assert log.segment_count > 50
    for offset in range(0, 180, 2):
        assert read_bytes(log, offset, 1)[:8] == offset.to_bytes(8, "big")
    assert len(os.listdir("/proc/self/fd")) - before <= 8 * 3 + 2
