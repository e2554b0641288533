"""What leaves a log, and when: whole segments, the oldest first, and never what should be kept."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.log.checkpoint import FILE_NAME
from tests.log.support import NOW_MS, Disk, batch, offsets, read_all, read_bytes, zero

MakeDisk = Callable[..., Disk]
SECOND_MS = 1000


def expire(disk: Disk) -> list[int]:
    """Apply retention; the segments that are left."""
    removal = disk.log.expire_segments()
    if removal is not None:
        disk.checkpoint()
        removal.run()
    return disk.segments()


def one_per_segment(disk: Disk, *seconds: int) -> None:
    """A batch of 1000 bytes or so, in a segment of its own, for each of these times."""
    for second in seconds:
        disk.append(timestamp=NOW_MS + second * SECOND_MS, value_bytes=900)


class TestByTime:
    def test_segments_whose_newest_record_is_too_old_go(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_ms=10 * SECOND_MS)
        one_per_segment(disk, 0, 1, 2, 3)
        disk.clock.advance(11)
        assert expire(disk) == [1, 2, 3]  # exactly as old as may be stays
        disk.clock.advance(0.001)
        assert expire(disk) == [2, 3]
        assert offsets(disk.log) == [2, 3]
        assert disk.log.log_start_offset == 2

    def test_a_newer_segment_shields_those_behind_it(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_ms=10 * SECOND_MS)
        one_per_segment(disk, 0, 50, 1, 2)
        disk.clock.advance(20)
        assert expire(disk) == [1, 2, 3]

    def test_the_whole_log_may_go_and_its_offsets_stay_used(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_ms=10 * SECOND_MS)
        one_per_segment(disk, 0, 1, 2)
        disk.clock.advance(60)
        assert expire(disk) == [3]
        assert expire(disk) == [3]
        for restart in (disk.restart, disk.restart_after_kill):
            log = restart()
            assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        (disk.directory / FILE_NAME).unlink()
        assert disk.restart_after_kill().log_end_offset == 3
        assert disk.append().base_offset == 3

    def test_minus_one_keeps_for_ever(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_ms=-1)
        one_per_segment(disk, 0, 1)
        disk.clock.advance(10**9)
        assert expire(disk) == [0, 1]

    def test_times_are_known_after_a_restart(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_ms=10 * SECOND_MS)
        one_per_segment(disk, 0, 1, 30, 31)
        disk.clock.advance(20)
        disk.restart()
        assert expire(disk) == [2, 3]

    @pytest.mark.parametrize("how", ["zeroed", "gone", "short"])
    def test_a_time_index_that_cannot_be_right_removes_nothing(
        self, make_disk: MakeDisk, how: str
    ) -> None:
        """The file's own time counts then: it is written to as long as records come."""
        disk = make_disk(segment_bytes=1024, retention_ms=10 * SECOND_MS)
        one_per_segment(disk, 0, 1, 2)
        disk.stop()
        for base in (0, 1):
            os.utime(disk.segment(base), (NOW_MS / 1000, NOW_MS / 1000))
            if how == "zeroed":
                zero(disk.time_index(base))
            elif how == "gone":
                disk.time_index(base).unlink()
            else:
                os.truncate(disk.time_index(base), 5)
        disk.start()
        disk.clock.advance(10)
        assert expire(disk) == [0, 1, 2]
        disk.clock.advance(0.001)
        assert expire(disk) == [2]

    def test_records_without_times_go_by_the_file_s(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_ms=10 * SECOND_MS)
        for _ in range(3):
            disk.append(timestamp=-1, value_bytes=900)
        for base in (0, 1, 2):
            os.utime(disk.segment(base), (NOW_MS / 1000 + base, NOW_MS / 1000 + base))
        disk.clock.advance(11.5)
        assert expire(disk) == [2]

    def test_a_power_cut_does_not_make_the_active_segment_look_old(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(retention_ms=10 * SECOND_MS)
        disk.append(timestamp=NOW_MS + 20 * SECOND_MS)
        disk.append(timestamp=NOW_MS)
        disk.sync()
        disk.append(timestamp=NOW_MS)
        disk.checkpoint()
        disk.cut_power()
        os.utime(disk.segment(0), (NOW_MS / 1000, NOW_MS / 1000))
        disk.start()
        disk.clock.advance(25)
        assert expire(disk) == [0]
        assert offsets(disk.log) == [0, 1, 2]


class TestBySize:
    def test_segments_go_while_the_rest_is_still_enough(self, make_disk: MakeDisk) -> None:
        size = len(batch(value_bytes=900))
        disk = make_disk(segment_bytes=1024, retention_bytes=3 * size)
        one_per_segment(disk, 0, 0, 0, 0, 0)
        assert expire(disk) == [2, 3, 4]
        disk.log.reconfigure(type(disk.config)(segment_bytes=1024, retention_bytes=3 * size - 1))
        assert expire(disk) == [2, 3, 4]
        disk.log.reconfigure(type(disk.config)(segment_bytes=1024, retention_bytes=2 * size))
        assert expire(disk) == [3, 4]

    def test_zero_keeps_nothing(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=0)
        one_per_segment(disk, 0, 0)
        assert expire(disk) == [2]
        assert disk.append().base_offset == 2

    def test_an_empty_log_is_left_alone(self, make_disk: MakeDisk) -> None:
        disk = make_disk(retention_bytes=0, retention_ms=0)
        disk.clock.advance(100)
        assert disk.log.expire_segments() is None

    def test_an_empty_segment_in_the_middle_does_not_stop_it(self, make_disk: MakeDisk) -> None:
        """A power cut can leave one."""
        disk = make_disk(segment_bytes=1024)
        one_per_segment(disk, 0, 0, 0, 0)
        disk.kill()
        for base in (1, 2):
            os.truncate(disk.segment(base), 0)
        disk.start(retention_bytes=100)
        assert expire(disk) == [3]


class TestDeleteRecords:
    def test_records_below_the_new_start_are_gone_at_once(self, disk: Disk) -> None:
        disk.append_many(10)
        assert disk.log.delete_records_before(4) == 4
        assert offsets(disk.log) == list(range(4, 10))
        with pytest.raises(ApiError) as refused:
            disk.log.read(3, 1000)
        assert refused.value.code is ErrorCode.offset_out_of_range

    def test_a_start_within_a_batch_serves_that_batch(self, disk: Disk) -> None:
        disk.append(count=10)
        disk.log.delete_records_before(4)
        assert read_bytes(disk.log, 4)[:8] == bytes(8)
        assert offsets(disk.log) == list(range(4, 10))

    def test_minus_one_means_all(self, disk: Disk) -> None:
        disk.append_many(10)
        assert disk.log.delete_records_before(-1) == 10
        assert offsets(disk.log) == []

    def test_the_start_never_goes_back(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.log.delete_records_before(6)
        assert disk.log.delete_records_before(2) == 6

    @pytest.mark.parametrize("offset", [11, -2])
    def test_an_offset_outside_the_log_is_refused(self, disk: Disk, offset: int) -> None:
        disk.append_many(10)
        with pytest.raises(ApiError) as refused:
            disk.log.delete_records_before(offset)
        assert refused.value.code is ErrorCode.offset_out_of_range
        assert disk.log.log_start_offset == 0

    def test_it_lasts_once_a_checkpoint_is_written(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.checkpoint()
        disk.log.delete_records_before(6)
        disk.checkpoint(durable=True)
        assert disk.restart_after_kill().log_start_offset == 6
        disk.cut_power()
        assert disk.start().log_start_offset == 6

    def test_a_stop_alone_makes_it_last(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.restart()
        disk.log.delete_records_before(6)
        assert disk.restart().log_start_offset == 6

    def test_every_later_recovery_point_is_synced_too(self, disk: Disk) -> None:
        """One that a power cut left empty would bring deleted records back."""
        disk.append_many(10)
        assert not disk.log.begin_checkpoint().must_be_durable
        disk.log.delete_records_before(6)
        assert disk.log.begin_checkpoint().must_be_durable

    def test_an_older_plan_that_ends_later_does_not_hide_it(self, disk: Disk) -> None:
        disk.append_many(10)
        plan = disk.log.begin_checkpoint()
        disk.log.delete_records_before(6)
        plan.run()
        disk.log.finish_checkpoint(plan)
        assert not disk.log.is_checkpointed
        assert disk.restart().log_start_offset == 6

    def test_whole_segments_below_it_go_with_the_next_retention(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        one_per_segment(disk, 0, 0, 0, 0)
        disk.log.delete_records_before(2)
        assert disk.segments() == [0, 1, 2, 3]
        assert expire(disk) == [2, 3]
        disk.log.delete_records_before(-1)
        assert expire(disk) == [4]
        assert disk.append().base_offset == 4


class TestRemoval:
    def test_files_that_a_crash_kept_stay_out_of_the_log(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=900)
        one_per_segment(disk, 0, 0, 0, 0)
        assert disk.log.expire_segments() is not None
        disk.checkpoint()
        log = disk.restart_after_kill()
        assert disk.segments() == [0, 1, 2, 3]
        assert log.log_start_offset == 3
        assert expire(disk) == [3]

    def test_all_files_of_a_segment_go(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=900)
        one_per_segment(disk, 0, 0)
        expire(disk)
        assert {path.stem for path in disk.directory.glob("0*")} == {f"{1:020d}"}

    def test_a_log_that_took_the_directory_s_name_is_not_touched(self, make_disk: MakeDisk) -> None:
        """A topic deleted and created again while its files wait to be removed."""
        disk = make_disk(segment_bytes=1024, retention_bytes=900)
        one_per_segment(disk, 0, 0)
        removal = disk.log.expire_segments()
        plan = disk.log.begin_checkpoint()
        assert removal is not None
        disk.kill()
        os.rename(disk.directory, disk.directory.with_name("moved"))
        disk.start(retention_bytes=-1)
        written = disk.append_many(2)
        removal.run()
        plan.run()
        assert disk.segments() == [0]
        assert not (disk.directory / FILE_NAME).exists()
        assert read_all(disk.restart_after_kill()) == written

    def test_epochs_below_the_start_are_forgotten(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=1000)
        for epoch in (0, 1, 2):
            disk.log.leader_epoch = epoch
            disk.append(value_bytes=900)
        expire(disk)
        assert disk.log.end_offset_for_epoch(1) == (1, 2)
        assert disk.log.end_offset_for_epoch(2) == (2, 3)
