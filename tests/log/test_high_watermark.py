"""A replica's log shows consumers what is below its high watermark, and nothing above."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.log import ColdRead, FileSlice, PartitionLog
from tests.log.support import (
    NOW_MS,
    Disk,
    all_bytes,
    batch,
    fetched,
    offsets,
    read_all,
    read_bytes,
    records,
)

Make = Callable[..., Disk]


def ten_batches(disk: Disk) -> list[bytes]:
    """Batches [0,2] [3,5] … [27,29], a second apart, with the high watermark at 0."""
    disk.log.track_high_watermark(0)
    for i in range(10):
        disk.append(batch(3, timestamp=NOW_MS + 1000 * i))
    return all_bytes(disk.log)


def test_a_log_that_is_not_tracked_shows_all_there_is(disk: Disk) -> None:
    disk.append_many(3)
    assert disk.log.high_watermark == 3
    assert offsets(disk.log) == [0, 1, 2]


class TestReading:
    def test_nothing_at_or_above_it_is_read(self, disk: Disk) -> None:
        written = ten_batches(disk)
        for committed in range(11):
            disk.log.set_high_watermark(3 * committed)
            assert read_all(disk.log) == written[:committed]

    def test_between_it_and_the_end_there_is_nothing_to_read_yet(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.log.set_high_watermark(12)
        for offset in (12, 13, 29, 30):
            assert disk.log.read(offset, 1000) is None
        with pytest.raises(ApiError) as refused:
            disk.log.read(31, 1000)
        assert refused.value.code is ErrorCode.offset_out_of_range

    def test_other_replicas_read_to_the_end(self, disk: Disk) -> None:
        written = ten_batches(disk)
        assert bytes(fetched(disk.log, 0)) == b"".join(written)
        assert disk.log.read(30, 1000, uncommitted=True) is None

    @pytest.mark.parametrize("size", [100, 1000, 5000])
    def test_segments_make_no_difference(self, make_disk: Make, size: int) -> None:
        disk = make_disk(segment_bytes=size)
        written = ten_batches(disk)
        for committed in range(1, 11):
            disk.log.set_high_watermark(3 * committed)
            assert read_all(disk.log) == written[:committed]
            assert read_all(disk.log, bytes_max=1) == written[:committed]

    @pytest.mark.parametrize("size", [100, 1000, 5000])
    def test_nor_does_a_cold_start(self, make_disk: Make, size: int) -> None:
        disk = make_disk(segment_bytes=size)
        written = ten_batches(disk)
        for committed in range(11):
            log = disk.restart()
            log.track_high_watermark(3 * committed)
            assert read_all(log) == written[:committed]

    def test_a_cold_read_sees_no_more_than_when_it_was_asked_for(self, disk: Disk) -> None:
        written = ten_batches(disk)
        log = disk.restart()
        log.track_high_watermark(12)
        read = log.read(0, 1 << 20)
        log.set_high_watermark(30)
        assert isinstance(read, ColdRead)
        found = read.run()
        assert found is not None
        assert found.read() == b"".join(written[:4])

    def test_it_is_found_where_no_batch_ended_since_the_start(self, disk: Disk) -> None:
        written = ten_batches(disk)
        disk.log.set_high_watermark(30)
        disk.log.track_high_watermark(9)
        assert read_all(disk.log) == written[:3]

    @pytest.mark.parametrize("interval", [0, 4096])
    def test_within_a_batch_that_batch_is_not_shown(self, make_disk: Make, interval: int) -> None:
        disk = make_disk(index_interval_bytes=interval)
        written = ten_batches(disk)
        disk.log.set_high_watermark(13)
        assert read_all(disk.log) == written[:4]
        assert disk.log.read(13, 100) is None

    def test_more_batches_than_are_kept_track_of_do_no_harm(
        self, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.log.watermark._ENDS_MAX", 4)
        written = ten_batches(disk)
        for committed in (2, 5, 7, 10):
            disk.log.set_high_watermark(3 * committed)
            assert read_all(disk.log) == written[:committed]


class TestTimes:
    def test_a_time_is_looked_for_below_it_only(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.log.set_high_watermark(12)
        found = disk.log.find_timestamp(NOW_MS + 3000)
        assert found is not None
        assert found.offset == 9
        assert disk.log.find_timestamp(NOW_MS + 4000) is None

    @pytest.mark.parametrize("interval", [0, 100, 4096])
    @pytest.mark.parametrize("size", [100, 5000])
    def test_the_newest_record_is_one_below_it(
        self, make_disk: Make, interval: int, size: int
    ) -> None:
        disk = make_disk(index_interval_bytes=interval, segment_bytes=size)
        ten_batches(disk)
        assert disk.log.max_timestamp() is None
        for committed in range(1, 11):
            disk.log.set_high_watermark(3 * committed)
            found = disk.log.max_timestamp()
            assert found is not None
            newest = max(records(disk.log), key=lambda record: record.timestamp)
            assert (found.offset, found.timestamp_ms) == (newest.offset, newest.timestamp)

    def test_no_record_above_it_has_a_time(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.log.set_high_watermark(12)
        found = disk.log.timestamp_at(11)
        assert found is not None
        assert found.offset == 11
        assert disk.log.timestamp_at(12) is None

    def test_an_index_that_goes_beyond_it_is_not_taken_for_a_wrong_one(
        self, make_disk: Make
    ) -> None:
        disk = make_disk(index_interval_bytes=0)
        ten_batches(disk)
        disk.log.set_high_watermark(12)
        assert disk.log.find_timestamp(NOW_MS + 9000) is None
        assert isinstance(disk.log.read(0, 1000), FileSlice), "it is still used"
        assert offsets(disk.log) == list(range(12))


class TestDeleting:
    def test_records_are_deleted_up_to_it(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.log.set_high_watermark(12)
        assert disk.log.delete_records_before(-1) == 12
        with pytest.raises(ApiError) as refused:
            disk.log.delete_records_before(13)
        assert refused.value.code is ErrorCode.offset_out_of_range

    def test_retention_takes_no_segment_that_goes_beyond_it(self, make_disk: Make) -> None:
        disk = make_disk(segment_bytes=250, retention_bytes=0)
        ten_batches(disk)
        assert disk.segments()[:3] == [0, 6, 12]
        disk.log.set_high_watermark(9)
        removal = disk.log.expire_segments()
        assert removal is not None
        removal.run()
        assert disk.segments()[0] == disk.log.log_start_offset == 6
        assert offsets(disk.log) == [6, 7, 8]

    def test_all_of_it_goes_if_all_of_it_is_committed(self, make_disk: Make) -> None:
        disk = make_disk(segment_bytes=250, retention_bytes=0)
        ten_batches(disk)
        disk.log.set_high_watermark(30)
        assert disk.log.expire_segments() is not None
        assert disk.log.log_start_offset == disk.log.high_watermark == 30
        disk.append(batch(1))
        assert read_bytes(disk.log, 30) == b""
        assert disk.log.max_timestamp() is None
        disk.log.set_high_watermark(31)
        assert offsets(disk.log) == [30]


class TestTelling:
    def test_consumers_are_told_of_what_they_may_read_and_replicas_of_what_came(
        self, disk: Disk
    ) -> None:
        log = disk.log
        log.track_high_watermark(0)
        consumers: list[int] = []
        replicas: list[int] = []
        log.subscribers[lambda _, size: consumers.append(size)] = None
        log.replica_subscribers[lambda _, size: replicas.append(size)] = None
        sizes = [len(disk.append_many(1, count=count)[0]) for count in (1, 2, 3)]
        assert (consumers, replicas) == ([], sizes)
        log.set_high_watermark(3)
        log.set_high_watermark(3)
        log.set_high_watermark(6)
        assert consumers == [sizes[0] + sizes[1], sizes[2]]
        log.wake_subscribers()
        assert (consumers[2:], replicas[3:]) == ([0], [0])

    def test_without_tracking_both_are_told_of_what_came(self, disk: Disk) -> None:
        told: list[tuple[PartitionLog, int]] = []
        disk.log.subscribers[lambda log, size: told.append((log, size))] = None
        disk.log.replica_subscribers[lambda log, size: told.append((log, size))] = None
        size = len(disk.append_many(1)[0])
        assert told == [(disk.log, size), (disk.log, size)]

    def test_bytes_are_counted_across_segments(self, make_disk: Make) -> None:
        disk = make_disk(segment_bytes=250)
        total = sum(map(len, ten_batches(disk)))
        told: list[int] = []
        disk.log.subscribers[lambda _, size: told.append(size)] = None
        disk.log.set_high_watermark(9)
        disk.log.set_high_watermark(30)
        assert sum(told) == total


class TestSurviving:
    def test_it_is_remembered_by_recovery_points(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.log.set_high_watermark(12)
        disk.checkpoint()
        disk.log.set_high_watermark(30)
        assert disk.restart_after_kill().recovered_high_watermark == 12

    def test_a_clean_stop_writes_it_down(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.restart()
        disk.log.track_high_watermark(0)
        disk.log.set_high_watermark(30)
        assert disk.restart().recovered_high_watermark == 30

    def test_behind_a_power_cut_it_is_not_above_what_was_synced(self, disk: Disk) -> None:
        ten_batches(disk)
        disk.log.set_high_watermark(30)
        disk.checkpoint()
        disk.cut_power()
        assert disk.start().recovered_high_watermark == 0

    def test_a_log_that_never_had_one_starts_at_its_start(self, disk: Disk) -> None:
        disk.append_many(5)
        disk.log.delete_records_before(2)
        assert disk.restart().recovered_high_watermark == 2
