"""Finding records by time, however the times of a log go up and down."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from penstock.errors import CorruptLogError
from penstock.log import PartitionLog, TimestampOffset
from penstock.records.batch import crc_of, read_header
from tests.log.support import NOW_MS, Disk, batch, damage, read_all

MakeDisk = Callable[..., Disk]
MINUTE_MS = 60_000
EPOCH = 0


def found(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    result = log.find_timestamp(timestamp)
    return None if result is None else (result.offset, result.timestamp_ms - NOW_MS)


class TestFind:
    def test_the_first_record_at_or_after_the_time(self, disk: Disk) -> None:
        for i in range(10):
            disk.append(timestamp=NOW_MS + i * 100)
        assert found(disk.log, NOW_MS + 300) == (3, 300)
        assert found(disk.log, NOW_MS + 301) == (4, 400)
        assert found(disk.log, 0) == (0, 0)
        assert found(disk.log, NOW_MS + 901) is None

    def test_it_may_be_within_a_batch(self, disk: Disk) -> None:
        disk.append(count=10, timestamp=NOW_MS, codec=4)  # a millisecond apart
        assert found(disk.log, NOW_MS + 7) == (7, 7)

    def test_an_earlier_offset_wins_over_an_earlier_time(self, disk: Disk) -> None:
        for time in (500, 100, 300, 700, 200):
            disk.append(timestamp=NOW_MS + time)
        assert found(disk.log, NOW_MS + 200) == (0, 500)
        assert found(disk.log, NOW_MS + 600) == (3, 700)

    def test_times_that_go_back_across_segments(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        for time in (900, 100, 500):
            disk.append(timestamp=NOW_MS + time, value_bytes=900)
        assert disk.segments() == [0, 1, 2]
        assert found(disk.log, NOW_MS + 200) == (0, 900)
        assert found(disk.log, NOW_MS + 950) is None
        disk.log.delete_records_before(1)
        assert found(disk.log, NOW_MS + 200) == (2, 500)
        assert found(disk.log, NOW_MS + 50) == (1, 100)

    def test_equal_times_give_the_first_of_them(self, make_disk: MakeDisk) -> None:
        disk = make_disk(index_interval_bytes=0, segment_bytes=3000)
        for time in (1, 5, 5, 5, 3, 5, 7):
            disk.append(timestamp=NOW_MS + time, value_bytes=100)
        for _ in range(2):
            assert found(disk.log, NOW_MS + 5) == (1, 5)
            assert found(disk.log, NOW_MS + 2) == (1, 5)
            disk.restart()

    def test_they_do_between_two_entries_of_the_index(self, make_disk: MakeDisk) -> None:
        disk = make_disk(index_interval_bytes=1000)
        for i in range(100):
            disk.append(timestamp=NOW_MS + i // 20, value_bytes=100)
        for time in range(5):
            assert found(disk.log, NOW_MS + time) == (20 * time, time)

    def test_deleted_records_are_not_found(self, disk: Disk) -> None:
        disk.append(count=10)
        disk.log.delete_records_before(4)
        assert found(disk.log, NOW_MS) == (4, 4)

    def test_records_without_a_time_are_passed(self, disk: Disk) -> None:
        disk.append(timestamp=-1)
        disk.append(timestamp=NOW_MS)
        assert found(disk.log, 0) == (1, 0)

    def test_an_empty_log_has_none(self, disk: Disk) -> None:
        assert disk.log.find_timestamp(0) is None
        assert disk.log.max_timestamp() is None

    def test_stamped_batches_are_found_without_being_opened(self, make_disk: MakeDisk) -> None:
        disk = make_disk(message_timestamp_type="LogAppendTime")
        disk.append(count=3)
        disk.clock.advance(1)
        disk.append(count=3, timestamp=5)
        assert found(disk.log, NOW_MS + 1) == (3, 1000)

    def test_a_batch_packed_with_nonsense_counts_as_a_whole(self, disk: Disk) -> None:
        """The broker does not look inside batches, so a producer may put anything there."""
        nonsense = batch(3, codec=4, timestamp=NOW_MS + 100)
        nonsense[61:70] = b"nonsense!"
        nonsense[17:21] = crc_of(nonsense).to_bytes(4, "big")
        disk.append(timestamp=NOW_MS)
        disk.append(nonsense)
        disk.append(timestamp=NOW_MS + 200)
        assert found(disk.log, NOW_MS + 50) == (1, 102)
        assert found(disk.log, NOW_MS + 150) == (4, 200)

    def test_damage_is_reported_and_not_decoded(self, disk: Disk) -> None:
        disk.append_many(3)
        disk.restart()
        damage(disk.segment(0), 70)
        with pytest.raises(CorruptLogError, match="CRC"):
            disk.log.find_timestamp(NOW_MS)

    def test_the_leader_epoch_comes_with_it(self, disk: Disk) -> None:
        disk.append()
        disk.log.leader_epoch = 6
        disk.append(timestamp=NOW_MS + 10)
        assert disk.log.find_timestamp(NOW_MS + 10) == TimestampOffset(1, NOW_MS + 10, 6)

    def test_a_wrong_entry_of_a_time_index_is_found_out(self, make_disk: MakeDisk) -> None:
        disk = make_disk(index_interval_bytes=0, segment_bytes=2000)
        for i in range(30):
            disk.append(timestamp=NOW_MS + i, value_bytes=100)
        entries = list(struct.iter_unpack(">qI", disk.time_index(0).read_bytes()))
        entries[3] = (entries[3][0], entries[6][1])
        disk.stop()
        disk.time_index(0).write_bytes(b"".join(struct.pack(">qI", *entry) for entry in entries))
        disk.start()
        for i in range(30):
            assert found(disk.log, NOW_MS + i) == (i, i)


class TestNewest:
    def test_the_first_of_those_with_the_largest_time(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        for time in (3, 9, 1, 9, 2):
            disk.append(timestamp=NOW_MS + time, value_bytes=900)
        for _ in range(2):
            assert disk.log.max_timestamp() == TimestampOffset(1, NOW_MS + 9, EPOCH)
            disk.restart()

    def test_a_deleted_record_is_not_the_newest(self, disk: Disk) -> None:
        for time in (3, 9, 1, 5, 2):
            disk.append(timestamp=NOW_MS + time)
        disk.log.delete_records_before(2)
        assert disk.log.max_timestamp() == TimestampOffset(3, NOW_MS + 5, EPOCH)

    def test_records_without_times_have_none(self, disk: Disk) -> None:
        disk.append(timestamp=-1)
        assert disk.log.max_timestamp() is None


class TestRecordAt:
    def test_any_offset_has_its_own_time(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        for i in range(5):
            disk.append(count=3, timestamp=NOW_MS + 10 * i, value_bytes=250)
        for _ in range(2):
            for offset in range(15):
                expected = TimestampOffset(offset, NOW_MS + offset // 3 * 10 + offset % 3, EPOCH)
                assert disk.log.timestamp_at(offset) == expected
            assert disk.log.timestamp_at(15) is None
            disk.restart()


def test_the_time_index_is_complete_when_a_segment_is_sealed(make_disk: MakeDisk) -> None:
    disk = make_disk(segment_bytes=1024)
    for time in (7, 5, 9):
        disk.append(timestamp=NOW_MS + time, value_bytes=400)
    assert disk.segments() == [0, 2]
    assert disk.time_index(0).read_bytes() == struct.pack(">qI", NOW_MS + 7, 0)
    assert [read_header(data).max_timestamp - NOW_MS for data in read_all(disk.log)] == [7, 5, 9]
