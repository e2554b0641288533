"""A follower's log is its leader's, byte for byte; what cannot be the leader's leaves no trace."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import PartitionLog
from penstock.log.epochs import EpochEnd
from tests.log.support import (
    NOW_MS,
    Disk,
    all_bytes,
    batch,
    fetched,
    follow,
    from_producer,
    offsets,
    placed,
    read_all,
)

Make = Callable[..., Disk]


@pytest.fixture
def leader(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "leader" / "0")


def refused(log: PartitionLog, records: memoryview) -> str:
    with pytest.raises(ApiError) as error:
        log.append_fetched(records)
    assert error.value.code is ErrorCode.corrupt_message
    return error.value.message


class TestTheSameLog:
    @pytest.mark.parametrize("bytes_max", [1, 1000, 1 << 20])
    @pytest.mark.parametrize("segment_bytes", [200, 3000, 1 << 30])
    def test_batches_are_as_the_leader_has_them(
        self, make_disk: Make, leader: Disk, bytes_max: int, segment_bytes: int
    ) -> None:
        follower = make_disk(segment_bytes=segment_bytes)
        for i in range(40):
            leader.append(batch(1 + i % 3, value_bytes=1 + 37 * i % 400, timestamp=NOW_MS + i))
        follow(follower.log, leader.log, bytes_max)
        assert follower.log.log_end_offset == leader.log.log_end_offset
        assert read_all(follower.log) == read_all(leader.log)
        assert follower.log.find_timestamp(NOW_MS + 17) == leader.log.find_timestamp(NOW_MS + 17)
        assert follower.log.max_timestamp() == leader.log.max_timestamp()

    def test_a_run_of_batches_is_one_write(
        self, disk: Disk, leader: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader.append_many(100)
        records = fetched(leader.log, 0)
        writes: list[int] = []
        pwrite = os.pwrite

        def count(fd: int, data: memoryview, position: int) -> int:
            writes.append(len(data))
            return pwrite(fd, data, position)

        monkeypatch.setattr(os, "pwrite", count)
        disk.log.append_fetched(records)
        assert writes == [len(records)]

    def test_what_was_fetched_is_there_after_a_crash(self, make_disk: Make, leader: Disk) -> None:
        follower = make_disk(segment_bytes=1000)
        leader.append_many(30, value_bytes=50)
        follow(follower.log, leader.log, 500)
        assert read_all(follower.restart_after_kill()) == read_all(leader.log)

    def test_replicas_are_told_and_consumers_when_it_is_committed(
        self, disk: Disk, leader: Disk
    ) -> None:
        leader.append_many(5)
        records = fetched(leader.log, 0)
        disk.log.track_high_watermark(0)
        consumers: list[int] = []
        replicas: list[int] = []
        disk.log.subscribers[lambda _, size: consumers.append(size)] = None
        disk.log.replica_subscribers[lambda _, size: replicas.append(size)] = None
        assert disk.log.append_fetched(records) == 5
        disk.log.set_high_watermark(3)
        assert replicas == [len(records)]
        assert consumers == [len(records) // 5 * 3]
        assert offsets(disk.log) == [0, 1, 2]

    def test_producers_go_on_at_a_follower_that_becomes_the_leader(
        self, disk: Disk, leader: Disk
    ) -> None:
        for sequence in range(7):
            leader.append(from_producer(sequence))
        follow(disk.log, leader.log)
        assert disk.log.append(from_producer(6)).base_offset == 6
        with pytest.raises(ApiError) as error:
            disk.log.append(from_producer(8))
        assert error.value.code is ErrorCode.out_of_order_sequence_number
        assert disk.log.append(from_producer(7)).base_offset == 7

    def test_the_history_of_epochs_comes_with_the_records(self, disk: Disk, leader: Disk) -> None:
        for epoch in (2, 3, 7):
            leader.log.begin_epoch(epoch)
            leader.append_many(3)
        follow(disk.log, leader.log)
        for log in (disk.log, disk.restart_after_kill()):
            assert log.last_epoch() == 7
            assert log.end_offset_for_epoch(3) == EpochEnd(3, 6)
            assert log.end_offset_for_epoch(7) == EpochEnd(7, 9)

    @pytest.mark.parametrize("is_killed", [True, False])
    def test_offsets_that_the_leader_lacks_are_missing_here_too(
        self, make_disk: Make, is_killed: bool
    ) -> None:
        disk = make_disk(segment_bytes=1000)
        records = b"".join(
            placed(batch(2, value_bytes=100), base) for base in (0, 2, 10, 12, 14, 30, 32)
        )
        assert disk.log.append_fetched(memoryview(records)) == 34
        expected = [0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 30, 31, 32, 33]
        assert offsets(disk.log) == expected
        if is_killed:
            assert offsets(disk.restart_after_kill()) == expected
        assert offsets(disk.restart()) == expected

    def test_a_log_that_begins_within_a_batch_takes_that_batch(self, disk: Disk) -> None:
        """The leader deleted records up to the middle of a batch, and a new follower starts there."""
        disk.log.track_high_watermark(0)
        disk.log.restart_at(13)
        records = bytes(placed(batch(5), 10, 4)) + bytes(placed(batch(5), 15, 4))
        assert disk.log.append_fetched(memoryview(records)) == 20
        assert (disk.log.log_start_offset, disk.log.last_epoch()) == (13, 4)
        assert disk.log.high_watermark == 13
        disk.log.set_high_watermark(20)
        assert offsets(disk.log) == list(range(13, 20))
        log = disk.restart_after_kill()
        assert log.log_start_offset == 13
        assert offsets(log) == list(range(13, 20))

    def test_such_a_log_is_out_of_service_if_the_disk_refuses_to_begin_it(
        self, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half begun, it would put records into the wrong file."""
        disk.log.track_high_watermark(0)
        disk.log.restart_at(13)

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("penstock.log.cutting.save", full)
        for _ in range(2):
            with pytest.raises(StorageError, match="No space"):
                disk.log.append_fetched(placed(batch(5), 10, 4))
        monkeypatch.undo()
        log = disk.restart_after_kill()
        log.track_high_watermark(0)
        log.restart_at(13)
        assert log.append_fetched(placed(batch(5), 10, 4)) == 15


class TestRefusing:
    def test_a_damaged_batch_leaves_no_trace_and_those_before_it_stay(self, disk: Disk) -> None:
        good = bytes(placed(batch(3), 0))
        for position in (17, 40, len(good) - 1):
            bad = bytearray(placed(from_producer(0, 3), 3, 5))
            bad[position] ^= 1
            assert "at byte" in refused(disk.log, memoryview(good + bytes(bad)))
            assert disk.log.log_end_offset == 3
            assert disk.log.last_epoch() == 0
            assert disk.log.active_producers() == []
            assert read_all(disk.log) == [good]
            disk.log.truncate(0)

    def test_half_a_batch_is_refused(self, disk: Disk) -> None:
        whole = bytes(placed(batch(3), 0))
        for size in (1, 60, 61, len(whole) - 1):
            refused(disk.log, memoryview(whole[:size]))
        assert disk.log.log_end_offset == 0

    def test_an_offset_that_was_there_already_is_refused(self, disk: Disk) -> None:
        disk.log.append_fetched(placed(batch(3), 0))
        assert "offset 2 where 3 is due" in refused(disk.log, placed(batch(3), 2))

    def test_an_epoch_that_is_over_is_refused(self, disk: Disk) -> None:
        disk.log.append_fetched(placed(batch(3), 0, 5))
        assert "epoch 4 behind epoch 5" in refused(disk.log, placed(batch(3), 3, 4))
        disk.log.append_fetched(placed(batch(3), 3, 5))

    def test_an_epoch_that_began_here_and_wrote_nothing_is_no_obstacle(self, disk: Disk) -> None:
        disk.log.append_fetched(placed(batch(3), 0, 5))
        disk.log.begin_epoch(7)
        disk.log.append_fetched(placed(batch(3), 3, 5))
        assert disk.log.end_offset_for_epoch(5) == EpochEnd(5, 6)
        assert disk.log.end_offset_for_epoch(7) == EpochEnd(-1, -1)

    def test_nothing_at_all_changes_nothing(self, disk: Disk) -> None:
        assert disk.log.append_fetched(memoryview(b"")) == 0

    def test_a_full_disk_leaves_whole_batches(
        self, disk: Disk, leader: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader.append_many(5)
        records = fetched(leader.log, 0)
        disk.log.append_fetched(records[: len(records) // 5])

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StorageError):
                disk.log.append_fetched(records[len(records) // 5 :])
        assert all_bytes(disk.log) == all_bytes(leader.log)[:1]
        follow(disk.log, leader.log)
        assert all_bytes(disk.log) == all_bytes(leader.log)


class TestEpochs:
    def test_an_empty_log_has_no_last_epoch(self, disk: Disk) -> None:
        disk.log.begin_epoch(3)
        assert disk.log.last_epoch() == -1

    def test_the_last_epoch_is_that_of_the_last_record(self, disk: Disk) -> None:
        disk.log.begin_epoch(3)
        disk.append_many(1)
        disk.log.begin_epoch(5)
        assert disk.log.last_epoch() == 3
        disk.append_many(1)
        assert disk.log.last_epoch() == 5

    def test_an_epoch_begins_at_the_logs_end_even_if_it_writes_nothing(self, disk: Disk) -> None:
        disk.log.begin_epoch(3)
        disk.append_many(4)
        disk.log.begin_epoch(5)
        assert disk.log.end_offset_for_epoch(3) == EpochEnd(3, 4)
        assert disk.log.end_offset_for_epoch(5) == EpochEnd(5, 4)

    @pytest.mark.parametrize("records", [0, 4])
    @pytest.mark.parametrize("is_clean", [True, False])
    def test_that_is_kept_through_restarts(self, disk: Disk, records: int, is_clean: bool) -> None:
        disk.log.begin_epoch(3)
        disk.append_many(records)
        disk.log.begin_epoch(5)
        if is_clean:
            disk.stop()
        else:
            disk.checkpoint()
            disk.kill()
        log = disk.start()
        assert log.end_offset_for_epoch(3) == EpochEnd(3, records)
        assert log.end_offset_for_epoch(5) == EpochEnd(5, records)
        assert log.last_epoch() == (3 if records else -1)

    def test_the_last_epoch_outlives_its_records(self, make_disk: Make) -> None:
        """Else a follower that kept nothing could not say what it has followed."""
        disk = make_disk(retention_bytes=0)
        disk.log.begin_epoch(3)
        disk.append_many(4)
        assert disk.log.expire_segments() is not None
        assert disk.log.log_start_offset == 4
        assert disk.log.last_epoch() == 3
        assert disk.restart().last_epoch() == 3
