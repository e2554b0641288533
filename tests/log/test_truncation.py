"""Cutting a log: what is cut off is gone, and does not come back in the place of what follows it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ApiError, CorruptLogError, ErrorCode
from penstock.log import ColdRead, FileSlice, PartitionLog
from penstock.log.epochs import EpochEnd
from penstock.log.group_commit import GroupCommit
from penstock.log.indexing import SegmentIndexes
from penstock.log.inspect import verify
from penstock.log.segment import Segment
from penstock.records.batch import read_header
from tests.log.executors import HeldExecutor
from tests.log.support import (
    NOW_MS,
    Disk,
    all_bytes,
    batch,
    from_producer,
    offsets,
    placed,
    read_bytes,
    split,
)

Make = Callable[..., Disk]


@pytest.fixture(params=[100, 900, 1 << 20], ids=["tiny", "small", "one"])
def cut(request: pytest.FixtureRequest, make_disk: Make) -> Disk:
    """Batches [0,2] [3,5] … [57,59] in segments of one batch, of a few, or in one."""
    disk = make_disk(segment_bytes=request.param, index_interval_bytes=150)
    for i in range(20):
        disk.append(batch(3, value_bytes=30, timestamp=NOW_MS + i))
    return disk


class TestWhatIsLeft:
    @pytest.mark.parametrize("end", [0, 3, 12, 30, 57, 60])
    def test_all_before_the_cut_stays_and_nothing_else(self, cut: Disk, end: int) -> None:
        before = all_bytes(cut.log)
        cut.log.truncate(end)
        assert cut.log.log_end_offset == end
        for log in (cut.log, cut.restart_after_kill(), cut.restart()):
            assert all_bytes(log) == before[: end // 3]
        new = cut.append_many(4, count=3, value_bytes=40)
        for log in (cut.log, cut.restart_after_kill(), cut.restart()):
            assert all_bytes(log) == before[: end // 3] + new

    def test_an_epoch_that_writes_on_is_known_though_its_first_records_are_deleted(
        self, cut: Disk
    ) -> None:
        end = cut.log.log_end_offset
        epoch = cut.log.last_epoch()
        cut.log.delete_records_before(end)
        cut.log.expire_segments()
        assert cut.log.truncate(end) is None
        cut.append(count=2)
        assert cut.log.end_offset_for_epoch(epoch) == EpochEnd(epoch, cut.log.log_end_offset)
        assert cut.log.last_epoch() == epoch

    def test_a_batch_is_never_cut_in_two(self, cut: Disk) -> None:
        cut.log.truncate(31)
        assert cut.log.log_end_offset == 30

    def test_beyond_the_end_nothing_is_cut(self, cut: Disk) -> None:
        assert cut.log.truncate(1000) is None
        assert cut.log.log_end_offset == 60

    def test_below_the_start_all_is_dropped(self, cut: Disk) -> None:
        cut.log.delete_records_before(30)
        cut.log.truncate(12)
        for log in (cut.log, cut.restart_after_kill()):
            assert (log.log_start_offset, log.log_end_offset) == (12, 12)

    def test_a_start_within_the_batch_that_goes_stays_the_start(self, cut: Disk) -> None:
        cut.log.delete_records_before(31)
        cut.log.truncate(32)
        for log in (cut.log, cut.restart_after_kill()):
            assert (log.log_start_offset, log.log_end_offset) == (31, 31)

    def test_times_are_those_of_what_is_left(self, cut: Disk) -> None:
        cut.log.truncate(30)
        for log in (cut.log, cut.restart_after_kill(), cut.restart()):
            newest = log.max_timestamp()
            assert newest is not None
            assert newest.timestamp_ms == NOW_MS + 9 + 2  # a batch's records are 1 ms apart
            assert log.find_timestamp(NOW_MS + 12) is None

    def test_cuts_follow_cuts(self, cut: Disk) -> None:
        before = all_bytes(cut.log)
        for end in range(57, -3, -3):
            cut.log.truncate(end)
            cut.append()
            cut.log.truncate(end)
            assert all_bytes(cut.log) == before[: end // 3]
        assert all_bytes(cut.restart_after_kill()) == []

    def test_within_missing_offsets_the_log_ends_where_it_was_cut(self, disk: Disk) -> None:
        for base in (0, 10, 20):
            disk.log.append_fetched(placed(batch(5), base))
        disk.log.truncate(17)
        for log in (disk.log, disk.restart_after_kill(), disk.restart()):
            assert log.log_end_offset == 17
            assert offsets(log) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
        disk.append()
        assert offsets(disk.restart_after_kill())[-2:] == [14, 17]

    def test_epochs_of_what_is_cut_off_are_forgotten(self, disk: Disk) -> None:
        for epoch in (1, 3, 4):
            disk.log.begin_epoch(epoch)
            disk.append_many(5)
        disk.log.truncate(7)
        for log in (disk.log, disk.restart_after_kill(), disk.restart()):
            assert log.last_epoch() == 3
            assert log.end_offset_for_epoch(3) == EpochEnd(3, 7)
            assert log.end_offset_for_epoch(4) == EpochEnd(-1, -1)
        disk.log.truncate(5)
        assert disk.log.end_offset_for_epoch(1) == EpochEnd(1, 5)
        assert disk.log.end_offset_for_epoch(3) == EpochEnd(-1, -1)

    def test_the_high_watermark_goes_back_with_the_end(self, cut: Disk) -> None:
        cut.log.track_high_watermark(45)
        cut.log.truncate(48)
        assert cut.log.high_watermark == 45
        assert offsets(cut.log) == list(range(45))
        cut.log.truncate(30)
        assert cut.log.high_watermark == 30
        assert offsets(cut.log) == list(range(30))
        new = cut.append_many(2, count=3)
        assert read_bytes(cut.log, 30) == b""
        cut.log.set_high_watermark(33)
        assert read_bytes(cut.log, 30) == new[0]
        assert cut.restart_after_kill().recovered_high_watermark <= 33

    def test_batches_above_the_high_watermark_are_still_passed_one_by_one(self, cut: Disk) -> None:
        cut.log.track_high_watermark(0)
        cut.append_many(5, count=3)
        cut.log.truncate(69)
        for end in (63, 66, 69):
            cut.log.set_high_watermark(end)
            assert offsets(cut.log) == list(range(end))


class TestProducers:
    def test_what_was_cut_off_is_sent_again(self, disk: Disk) -> None:
        for sequence in range(8):
            disk.append(from_producer(sequence))
        disk.log.truncate(6)
        for log in (disk.log, disk.restart_after_kill()):
            assert log.append(from_producer(5)).base_offset == 5, "remembered"
            with pytest.raises(ApiError) as error:
                log.append(from_producer(7))
            assert error.value.code is ErrorCode.out_of_order_sequence_number
        assert disk.append(from_producer(6)).base_offset == 6

    def test_even_if_nothing_that_is_remembered_is_left(self, disk: Disk) -> None:
        for sequence in range(8):
            disk.append(from_producer(sequence))
        disk.log.truncate(3)
        for log in (disk.log, disk.restart_after_kill(), disk.restart()):
            assert [item.last_sequence for item in log.active_producers()] == [2]
            for wrong in (0, 2, 4, 8):
                with pytest.raises(ApiError):
                    log.append(from_producer(wrong))
        assert disk.append(from_producer(3)).base_offset == 3

    def test_one_that_began_behind_the_cut_is_forgotten(self, disk: Disk) -> None:
        disk.append_many(2)
        disk.append(from_producer(0))
        disk.log.truncate(2)
        for log in (disk.log, disk.restart_after_kill()):
            assert log.active_producers() == []
        assert disk.append(from_producer(0)).base_offset == 2


class TestRestarting:
    @pytest.mark.parametrize("at", [0, 31, 45, 60, 1000])
    def test_the_log_begins_and_ends_there_with_nothing_known(self, cut: Disk, at: int) -> None:
        cut.log.begin_epoch(4)
        cut.append(from_producer(0))
        cut.log.track_high_watermark(12)
        cut.log.restart_at(at)
        assert cut.log.high_watermark == at
        for log in (cut.log, cut.restart_after_kill(), cut.restart()):
            assert (log.log_start_offset, log.log_end_offset) == (at, at)
            assert log.last_epoch() == -1
            assert log.end_offset_for_epoch(4) == EpochEnd(-1, -1)
            assert log.active_producers() == []
        assert cut.segments() == [at]
        new = cut.append_many(3)
        assert all_bytes(cut.restart_after_kill()) == new

    def test_files_that_retention_has_yet_to_remove_do_not_take_new_ones_with_them(
        self, make_disk: Make
    ) -> None:
        disk = make_disk(segment_bytes=100, retention_bytes=0)
        disk.append_many(5)
        removal = disk.log.expire_segments()
        assert removal is not None
        disk.log.restart_at(3)
        new = disk.append_many(1)
        removal.run()
        assert all_bytes(disk.restart_after_kill()) == new


class Died(BaseException):
    """The process was killed here."""


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Kill the process before it does its n-th thing to a file; 0 means never."""
    steps = {"left": 0}

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if steps["left"] > 0:
                steps["left"] -= 1
                if steps["left"] == 0:
                    raise Died
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("unlink", "ftruncate", "truncate", "replace", "pwrite", "write", "open"):
            patch.setattr(os, name, dying(getattr(os, name)))
        patch.setattr(os, "fsync", lambda _: None)  # nobody cuts the power here
        patch.setattr("penstock.log.files._fdatasync", lambda _: None)
        yield lambda n: steps.update(left=n)


@pytest.fixture(params=[100, 350, 1 << 20], ids=["tiny", "small", "one"])
def few(request: pytest.FixtureRequest, make_disk: Make) -> Disk:
    """As `cut`, up to [12,14]."""
    disk = make_disk(segment_bytes=request.param, index_interval_bytes=150)
    for _ in range(5):
        disk.append(batch(3, value_bytes=30))
    return disk


class TestDying:
    """Whenever the process dies, all that was not cut off is there, and nothing in a wrong place."""

    @pytest.mark.parametrize("end", [0, 6, 12])
    @pytest.mark.parametrize("synced", [True, False])
    def test_a_cut_is_done_or_not_but_never_mixed_up(
        self, few: Disk, die_at: Callable[[int], None], end: int, synced: bool, tmp_path: Path
    ) -> None:
        few.log.truncate(12)  # whose producer wrote behind the cut
        few.append(from_producer(0, 3))
        few.log.leader_epoch = 9
        few.append(from_producer(3, 3))
        if synced:
            few.sync()
        few.checkpoint(durable=synced)
        before = all_bytes(few.log)
        few.kill()
        original = tmp_path / "original"
        shutil.copytree(few.directory, original)
        step, has_died = 0, True
        while has_died:
            step += 1
            few.kill()
            shutil.rmtree(few.directory)
            shutil.copytree(original, few.directory)
            few.start()
            die_at(step)
            try:
                few.log.truncate(end)
                self._write_others(few)
                has_died = False
            except Died:
                pass
            die_at(0)
            self._check(few, before, end, step)
        assert step > 5, "it did not die often enough to prove anything"

    @pytest.mark.parametrize("at", [0, 7, 100])
    def test_so_is_a_restart_elsewhere(
        self, few: Disk, die_at: Callable[[int], None], at: int, tmp_path: Path
    ) -> None:
        before = all_bytes(few.log)
        few.checkpoint()
        few.kill()
        original = tmp_path / "original"
        shutil.copytree(few.directory, original)
        step, has_died = 0, True
        while has_died:
            step += 1
            few.kill()
            shutil.rmtree(few.directory)
            shutil.copytree(original, few.directory)
            few.start()
            die_at(step)
            try:
                few.log.restart_at(at)
                has_died = False
            except Died:
                pass
            die_at(0)
            log = few.restart_after_kill()
            left = all_bytes(log)
            assert left == before or (log.log_start_offset == at and set(left) <= set(before))
            log.restart_at(at)
            new = few.append_many(2)
            assert all_bytes(few.restart_after_kill()) == new
        assert step > 5

    @staticmethod
    def _write_others(disk: Disk) -> None:
        disk.log.leader_epoch = 12
        for _ in range(3):
            disk.append(batch(2, value=b"other" * 10))

    def _check(self, disk: Disk, before: list[bytes], end: int, step: int) -> None:
        kept = before[: sum(read_header(item).base_offset < end for item in before)]
        log = disk.restart_after_kill()
        found = all_bytes(log)
        others = [item for item in found if read_header(item).leader_epoch == 12]
        if others:
            assert found == kept + others, step
        else:
            assert found in [before[:n] for n in range(len(kept), len(before) + 1)], step
        self._check_state(log, found)
        log.truncate(end)
        self._write_others(disk)
        for log in (disk.restart_after_kill(), disk.restart()):
            found = all_bytes(log)
            assert found[: len(kept)] == kept
            assert len(found) == len(kept) + 3
            self._check_state(log, found)

    @staticmethod
    def _check_state(log: PartitionLog, found: list[bytes]) -> None:
        """What is known is what the records say."""
        headers = [read_header(item) for item in found]
        assert log.log_end_offset == (headers[-1].last_offset + 1 if headers else 0)
        assert log.last_epoch() == (headers[-1].leader_epoch if headers else -1)
        sequences = [item.base_sequence + 2 for item in headers if item.producer_id >= 0]
        assert [item.last_sequence for item in log.active_producers()] == sequences[-1:]
        assert log.durable_offset <= log.log_end_offset


class TestPowerCuts:
    def test_a_cut_that_did_not_reach_the_disk_was_none(self, cut: Disk, tmp_path: Path) -> None:
        """Files are as they were, but for what was made since."""
        before = all_bytes(cut.log)
        cut.checkpoint(durable=True)
        original = tmp_path / "original"
        shutil.copytree(cut.directory, original)
        cut.log.truncate(31)
        cut.cut_power()
        shutil.copytree(original, cut.directory, dirs_exist_ok=True)
        cut.edit_checkpoint(boot="the boot before")
        assert all_bytes(cut.start()) == before

    def test_nothing_is_written_before_the_cut_is_on_disk(
        self, cut: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        for name in ("fsync", "ftruncate", "pwrite", "unlink"):
            real = getattr(os, name)

            def call(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
                events.append(name)
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, call)
        cut.log.truncate(31)
        cut.append()
        last_write = len(events) - 1 - events[::-1].index("pwrite")
        last_change = max(i for i, name in enumerate(events) if name in ("ftruncate", "unlink"))
        assert "fsync" in events[last_change:last_write]

    def test_it_may_be_brought_there_by_a_thread_first(
        self, cut: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = cut.log.truncate(31)
        assert plan is not None
        plan.run()
        monkeypatch.delattr(os, "fsync")
        cut.append()

    def test_a_disk_that_refuses_takes_the_log_out_of_service(
        self, cut: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cut.log.truncate(31)

        def broken(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(ApiError) as error:
            cut.append()
        assert error.value.code is ErrorCode.kafka_storage_error
        assert cut.log.failure is not None

    def test_even_if_a_thread_was_told_so_and_a_second_try_would_do(
        self, cut: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system reports a failed sync once, and what was to be synced may be gone."""
        plan = cut.log.truncate(31)
        assert plan is not None

        def broken(_: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(OSError, match="Input/output"):
                plan.run()
        with pytest.raises(ApiError):
            cut.append()
        assert cut.log.failure is not None

    def test_below_what_was_synced_only_the_rest_is_durable(self, cut: Disk) -> None:
        before = all_bytes(cut.log)
        cut.sync()
        cut.checkpoint(durable=True)
        cut.log.truncate(30)
        assert cut.log.durable_offset == 30
        cut.append_many(2)
        cut.cut_power()
        assert all_bytes(cut.start())[:10] == before[:10]

    def test_a_log_that_never_had_records_begins_elsewhere_without_waiting_for_the_disk(
        self, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.delattr(os, "fsync")
            assert disk.log.restart_at(1000) is None
            disk.log.append_fetched(placed(batch(3), 1000, 1))
        assert disk.log.restart_at(2000) is not None, "by now there is something to lose"

    @pytest.mark.parametrize("names", [("checkpoint",), ("*.log",), ("checkpoint", "*.log")])
    def test_of_such_a_log_any_part_of_the_change_may_be_lost(
        self, disk: Disk, tmp_path: Path, names: tuple[str, ...]
    ) -> None:
        disk.checkpoint()
        original = tmp_path / "original"
        shutil.copytree(disk.directory, original)
        disk.log.restart_at(1000)
        disk.log.append_fetched(placed(batch(3), 1000, 1))
        disk.kill()
        for name in names:
            for path in original.glob(name):
                shutil.copy(path, disk.directory)
        disk.edit_checkpoint(boot="the boot before")
        log = disk.start()
        assert (offsets(log), log.log_end_offset) == ([1000, 1001, 1002], 1003)
        assert verify(str(disk.directory)).is_sound


class TestBesideThreads:
    def test_a_sync_that_began_before_the_cut_covers_nothing(self, cut: Disk) -> None:
        plan = cut.log.begin_sync()
        cut.log.truncate(30)
        cut.append_many(40)
        plan.run()
        cut.log.finish_sync(plan)
        assert cut.log.durable_offset <= 30
        cut.sync()
        assert cut.log.durable_offset == cut.log.log_end_offset == 70

    def test_a_recovery_point_from_before_the_cut_comes_too_late(self, cut: Disk) -> None:
        before = all_bytes(cut.log)
        plan = cut.log.begin_checkpoint()
        cut.log.truncate(30)
        plan.run()
        cut.log.finish_checkpoint(plan)
        new = cut.append_many(2)
        assert not cut.log.is_checkpointed
        assert all_bytes(cut.restart_after_kill()) == before[:10] + new

    @pytest.mark.parametrize("end", [30, 33, 57])
    def test_a_slice_of_what_was_cut_off_never_has_new_bytes(self, cut: Disk, end: int) -> None:
        slices: list[tuple[FileSlice, bytes]] = []
        for offset in range(0, 60, 3):
            found = cut.log.read(offset, 1 << 20)
            assert isinstance(found, FileSlice)
            slices.append((found, found.read()))
        cut.log.truncate(end)
        cut.append_many(30, value=b"w" * 30, count=3)  # as long as those in whose place they are
        for found, old in slices:
            try:
                assert found.read() == old
            except CorruptLogError:
                assert read_header(split(old)[-1]).last_offset >= end

    @pytest.mark.parametrize("end", [30, 33, 57])
    def test_a_cold_read_is_as_before_or_to_be_asked_again(self, cut: Disk, end: int) -> None:
        before = all_bytes(cut.log)
        log = cut.restart()
        reads = [log.read(offset, 100) for offset in range(0, 60, 3)]
        log.truncate(end)
        cut.append_many(30, value=b"w" * 30, count=3)
        codes: list[ErrorCode] = []
        for i, read in enumerate(reads):
            assert isinstance(read, ColdRead)
            try:
                found = read.run()
            except ApiError as error:
                codes.append(error.code)
                continue
            assert found is not None
            assert found.read() == before[i]
        assert set(codes) == {ErrorCode.not_leader_or_follower}
        assert log.failure is None
        assert all_bytes(log)[: end // 3] == before[: end // 3]

    def test_indexes_made_anew_meanwhile_do_not_replace_those_of_what_is_left(
        self, make_disk: Make
    ) -> None:
        disk = make_disk(segment_bytes=900, index_interval_bytes=0)
        disk.append_many(20, count=3, value_bytes=30)
        before = all_bytes(disk.log)
        disk.stop()
        for path in disk.directory.glob("*index"):
            path.unlink()
        log = disk.start()
        read = log.read(0, 100)
        assert isinstance(read, ColdRead)
        log.truncate(9)
        with pytest.raises(ApiError):
            read.run()
        disk.append_many(3)
        assert all_bytes(log)[:3] == before[:3]
        assert all_bytes(disk.restart())[:3] == before[:3]

    def test_even_if_the_cut_comes_when_they_are_all_but_done(
        self, make_disk: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = make_disk(segment_bytes=900, index_interval_bytes=0)
        disk.append_many(20, count=3, value_bytes=30)
        before = all_bytes(disk.log)
        disk.stop()
        disk.index(0).unlink()
        log = disk.start()
        read = log.read(0, 100)

        class CutMeanwhile(SegmentIndexes):
            __slots__ = ()

            def finish(self) -> None:
                super().finish()
                log.truncate(9)

        assert isinstance(read, ColdRead)
        with monkeypatch.context() as patch:
            patch.setattr("penstock.log.reading.SegmentIndexes", CutMeanwhile)
            with pytest.raises(ApiError):
                read.run()
        disk.append_many(3)
        disk.stop()
        assert verify(str(disk.directory)).is_sound
        assert all_bytes(disk.start())[:3] == before[:3]

    def test_one_that_comes_in_the_middle_of_a_cut_is_to_be_asked_again(
        self, make_disk: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = make_disk(segment_bytes=900, index_interval_bytes=0)
        disk.append_many(20, count=3, value_bytes=30)
        disk.stop()
        disk.index(0).unlink()
        log = disk.start()
        read = log.read(0, 100)
        shortened = Segment.shortened

        def read_meanwhile(segment: Segment, size: int, end_offset: int) -> Segment:
            assert isinstance(read, ColdRead)
            with pytest.raises(ApiError) as caught:
                read.run()
            assert caught.value.code is ErrorCode.not_leader_or_follower
            return shortened(segment, size, end_offset)

        with monkeypatch.context() as patch:
            patch.setattr(Segment, "shortened", read_meanwhile)
            log.truncate(9)
        assert log.failure is None
        assert len(all_bytes(log)) == 3


class TestWaiting:
    async def test_who_waits_for_what_is_cut_off_is_told_so(self, cut: Disk) -> None:
        held = HeldExecutor()
        commits = GroupCommit(held)
        first = commits.until_durable(cut.log, 15)
        second = commits.until_durable(cut.log, 60)
        cut.log.truncate(30)
        cut.append_many(60)
        third = commits.until_durable(cut.log, 90)
        while held.waiting:
            held.run()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.wait_for(first, 5)
        await asyncio.wait_for(third, 5)
        with pytest.raises(ApiError) as error:
            await asyncio.wait_for(second, 5)
        assert error.value.code is ErrorCode.not_leader_or_follower
        assert cut.log.durable_offset == 90

    async def test_cuts_beside_syncs_in_threads_leave_a_sound_log(self, make_disk: Make) -> None:
        disk = make_disk(segment_bytes=3000)
        with ThreadPoolExecutor(2) as executor:
            commits = GroupCommit(executor)
            waiting = []
            for i in range(60):
                disk.append_many(5, count=2, value_bytes=60)
                waiting.append(commits.until_durable(disk.log, disk.log.log_end_offset))
                if i % 4 == 3:
                    await asyncio.sleep(0.001)
                    disk.log.truncate(disk.log.log_end_offset - 7)
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(r is None or isinstance(r, ApiError) for r in results)
        kept = all_bytes(disk.log)
        assert disk.log.failure is None
        assert all_bytes(disk.restart_after_kill()) == kept
