"""Threads that read and sync beside an event loop that appends: nobody sees anything half done.

These run until many rounds were done, not for a time; a race that is there shows in most runs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.log import ColdRead, FileSlice, PartitionLog
from penstock.log.segment import OpenFiles, Segment
from penstock.records.batch import read_header
from tests.log.support import NOW_MS, Disk, batch, read_all, read_bytes, split

MakeDisk = Callable[..., Disk]
THREADS = 4


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def in_threads(work: Callable[[], None]) -> Iterator[None]:
    """`work` again and again in threads, for as long as the block runs; its errors are raised."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(repeat) for _ in range(THREADS)]
        try:
            yield
        finally:
            stop.set()
        for future in running:
            future.result()


def test_cold_reads_beside_appends_skip_and_repeat_nothing(make_disk: MakeDisk) -> None:
    disk = make_disk(segment_bytes=20_000, index_interval_bytes=200)
    disk.append_many(20, value_bytes=100)
    for _ in range(30):
        log = disk.restart()
        end = log.log_end_offset
        start = max(0, end - 40)
        cold = [(offset, log.read(offset, 1 << 20)) for offset in range(start, end)]

        def run(item: tuple[int, FileSlice | ColdRead | None], log: PartitionLog = log) -> int:
            offset, found = item
            assert isinstance(found, ColdRead)
            got = found.run()
            assert got is not None
            for data in split(got.read()):
                assert read_header(data).base_offset == offset
                offset += 1
            return offset

        with ThreadPoolExecutor(THREADS) as pool:
            running = pool.map(run, cold)
            for i in range(60):
                log.append(batch(value_bytes=100))
                if i % 20 == 0:
                    log.begin_checkpoint()  # index entries move from memory to the file
            ends = list(running)
        for offset in ends:  # each goes on exactly where it ended
            assert read_header(read_bytes(log, offset, 1)).base_offset == offset
    assert len(read_all(log)) == log.log_end_offset


def test_look_ups_by_time_beside_appends(make_disk: MakeDisk) -> None:
    disk = make_disk(segment_bytes=10_000, index_interval_bytes=100)
    disk.append(timestamp=NOW_MS)
    log = disk.log

    def look() -> None:
        end = log.log_end_offset
        for offset in range(max(0, end - 200), end, 17):
            found = log.find_timestamp(NOW_MS + offset)
            assert found is not None
            assert found.offset == offset

    with in_threads(look):
        for i in range(1, 1500):
            log.append(batch(timestamp=NOW_MS + i, value_bytes=50))
            if i % 40 == 0:
                log.begin_checkpoint()


def test_many_readers_of_a_segment_without_indexes_make_them_once(make_disk: MakeDisk) -> None:
    disk = make_disk(segment_bytes=50_000, index_interval_bytes=50)
    disk.append_many(400, value_bytes=100)
    whole = disk.index(0).read_bytes()
    whole_times = disk.time_index(0).read_bytes()
    for _ in range(10):
        disk.stop()
        disk.index(0).unlink()
        disk.time_index(0).unlink()
        log = disk.start()
        cold = [log.read(offset, 300) for offset in range(0, 200, 10)]
        with ThreadPoolExecutor(8) as pool:
            found = list(
                pool.map(lambda item: item.run() if isinstance(item, ColdRead) else item, cold)
            )
        for i, item in enumerate(found):
            assert item is not None
            assert item.read()[:8] == (10 * i).to_bytes(8, "big")
        assert disk.index(0).read_bytes() == whole
        assert disk.time_index(0).read_bytes() == whole_times


def test_files_are_closed_and_opened_under_readers(make_disk: MakeDisk) -> None:
    """Fewer files may be open than segments are being read."""
    disk = make_disk(segment_bytes=1024, index_interval_bytes=0)
    disk.append_many(120, value_bytes=300)
    disk.stop()
    for _ in range(5):
        log = PartitionLog(
            str(disk.directory), disk.config, clock=disk.clock, open_files=OpenFiles(2)
        )
        cold = [log.read(offset, 1) for offset in range(118)]

        def run(item: FileSlice | ColdRead | None) -> FileSlice | None:
            return item.run() if isinstance(item, ColdRead) else item

        with ThreadPoolExecutor(THREADS) as pool:
            running = pool.map(run, cold)
            for i in range(118):
                item = log.read(117 - i, 1)
                if isinstance(item, FileSlice):
                    assert item.read()[:8] == (117 - i).to_bytes(8, "big")
            found = list(running)
        for offset, slice_ in enumerate(found):
            assert slice_ is not None
            assert slice_.read()[:8] == offset.to_bytes(8, "big")
        log.abandon()


def test_open_files_are_counted_by_many_at_once(tmp_path: Path) -> None:
    files = OpenFiles(1)
    segments = [Segment(str(tmp_path), i, 0, files) for i in range(4)]

    def use() -> None:
        for segment in segments:
            files.touch(segment)
            files.forget(segment)

    with in_threads(use):
        for _ in range(3000):
            use()


def test_retention_beside_readers_who_rebuild(make_disk: MakeDisk) -> None:
    """A time index that is being made anew must not look as if its segment had no recent record."""
    disk = make_disk(segment_bytes=20_000, index_interval_bytes=50, retention_ms=1000)
    for i in range(300):
        disk.append(timestamp=NOW_MS - 3000 + min(25 * i, 2900), value_bytes=100)
    for _ in range(10):
        disk.stop()
        disk.index(0).unlink()
        disk.time_index(0).unlink()
        log = disk.start()
        cold = log.read(0, 100)
        assert isinstance(cold, ColdRead)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(cold.run)
            while not running.done():
                assert log.expire_segments() is None
            assert running.result() is not None


def test_syncs_beside_appends_and_rolls(make_disk: MakeDisk) -> None:
    disk = make_disk(segment_bytes=2000)
    log = disk.log
    pool = ThreadPoolExecutor(1)
    plan = log.begin_sync()
    running = pool.submit(plan.run)
    durable = 0
    for _ in range(500):
        log.append(batch(value_bytes=100))
        if running.done():
            running.result()
            log.finish_sync(plan)
            assert durable <= log.durable_offset <= log.log_end_offset
            durable = log.durable_offset
            plan = log.begin_sync()
            running = pool.submit(plan.run)
    running.result()
    log.finish_sync(plan)
    disk.sync()
    assert log.durable_offset == 500
    assert not log.has_unsynced_segments
    pool.shutdown()
