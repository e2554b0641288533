"""A disk that is full, or will not write: an error for the producer, and nothing lost or half done.

The disk is made full by a limit on file sizes, in a process of its own: writes are cut short in the
middle, and then refused, by the system itself.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PREAMBLE = """
import os, resource, sys
import pytest
from tests.log.support import *
from penstock.errors import StorageError

disk = Disk(Path(sys.argv[1]) / "topic" / "0", segment_bytes={segment_bytes}, index_interval_bytes=100)

def room(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

def room_again():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

def refused(**more):
    end, size = disk.log.log_end_offset, disk.segment(disk.segments()[-1]).stat().st_size
    with pytest.raises(StorageError, match="cannot write"):
        disk.append(**more)
    assert disk.log.log_end_offset == end
    return size
"""


def run(tmp_path: Path, script: str, *, segment_bytes: int = 1 << 20) -> None:
    """The script in a process of its own; its failure is the test's."""
    code = PREAMBLE.format(segment_bytes=segment_bytes) + textwrap.dedent(script)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": ":".join(path or "." for path in sys.path)},
    )
    assert ran.returncode == 0, ran.stderr


def test_a_write_that_does_not_fit_leaves_no_half_batch(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        written = disk.append_many(5, value_bytes=100)
        room(disk.segment(0).stat().st_size + 50)
        for _ in range(3):
            refused(value_bytes=100)
            assert disk.segment(0).stat().st_size == sum(map(len, written))
        assert read_all(disk.log) == written
        """,
    )


def test_reads_go_on_and_writes_resume_when_there_is_room(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        written = disk.append_many(5, value_bytes=100)
        room(disk.segment(0).stat().st_size + 1000)
        while True:
            try:
                written += disk.append_many(1, value_bytes=100)
            except StorageError:
                break
        assert read_all(disk.log) == written
        room_again()
        written += disk.append_many(5, value_bytes=100)
        assert read_all(disk.log) == written
        assert read_all(disk.restart_after_kill()) == written
        """,
    )


def test_a_producer_may_send_again_what_was_refused(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        disk.append(from_producer(0))
        room(disk.segment(0).stat().st_size + 10)
        with pytest.raises(StorageError):
            disk.append(from_producer(1))
        room_again()
        assert disk.append(from_producer(1)).base_offset == 1
        assert disk.append(from_producer(1)).base_offset == 1
        """,
    )


def test_a_roll_that_fails_is_tried_again(tmp_path: Path) -> None:
    """The indexes of the old segment do not fit. A smaller batch still goes into that segment."""
    run(
        tmp_path,
        """
        written = disk.append_many(9, value_bytes=900)
        room(20)
        with pytest.raises(StorageError):
            disk.append(value_bytes=5000)
        assert disk.segments() == [0]
        room_again()
        written += disk.append_many(1, value_bytes=100)
        room(20)
        with pytest.raises(StorageError):
            disk.append(value_bytes=5000)
        room_again()
        for _ in range(2):
            assert read_all(disk.log) == written
            disk.restart_after_kill()
        written += disk.append_many(2, value_bytes=5000)
        assert disk.segments() == [0, 10, 11]
        assert read_all(disk.restart_after_kill()) == written
        """,
        segment_bytes=10_000,
    )


def test_a_recovery_point_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        disk.append_many(5)
        disk.checkpoint()
        before = disk.saved()
        disk.append_many(5)
        room(30)
        with pytest.raises(OSError):
            disk.checkpoint()
        room_again()
        assert disk.saved() == before
        assert disk.restart_after_kill().log_end_offset == 10
        """,
    )


def test_a_stop_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        written = disk.append_many(50, value_bytes=100)
        room(30)
        with pytest.raises(OSError):
            disk.stop()
        room_again()
        assert read_all(disk.start()) == written
        """,
    )


def test_retention_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import asyncio, dataclasses
        from penstock.log import LogStore
        from penstock.model import TopicPartition
        from penstock.settings import BrokerConfig
        disk.stop()
        config = dataclasses.replace(disk.config, retention_bytes=1000)

        async def main():
            store = LogStore(BrokerConfig(data_dir=sys.argv[1]), disk.clock)
            log = store.open(TopicPartition("topic", 1), config)
            for _ in range(20):
                log.append(batch(value_bytes=900))
            room(0)
            await store.apply_retention()
            room_again()
            assert log.log_start_offset == 18, log.log_start_offset
            assert len([n for n in os.listdir(log.directory) if n.endswith(".log")]) == 2
            await store.close()

        asyncio.run(main())
        """,
        segment_bytes=1024,
    )


def test_a_log_opens_and_is_read_on_a_full_disk(tmp_path: Path) -> None:
    """Though neither the indexes that recovery makes, nor those that a reader misses, can be written."""
    run(
        tmp_path,
        """
        written = disk.append_many(60, value_bytes=100)
        assert disk.log.segment_count > 4
        disk.kill()
        room(0)
        log = disk.start()
        assert read_all(log) == written
        assert [log.find_timestamp(NOW_MS).offset, log.max_timestamp().offset] == [0, 0]
        for base in disk.segments()[:-1]:
            assert not disk.index(base).exists() or disk.index(base).stat().st_size == 0
        refused(value_bytes=100)
        room_again()
        written += disk.append_many(5, value_bytes=100)
        assert read_all(disk.restart()) == written
        """,
        segment_bytes=2000,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_without_any_room_refuses_the_first_record(tmp_path: Path) -> None:
    """The segment file is /dev/full: the system has no byte for it, and cannot cut it either."""
    run(
        tmp_path,
        """
        disk.kill()
        disk.segment(0).unlink()
        os.symlink("/dev/full", disk.segment(0))
        log = disk.start()
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left|cannot write"):
                disk.append()
        assert log.log_end_offset == 0
        disk.kill()
        disk.segment(0).unlink()
        disk.start()
        assert disk.append().base_offset == 0
        """,
    )
