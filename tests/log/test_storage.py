"""Appending and reading: what goes in comes out, byte for byte, from the place it was given."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.log import FileSlice
from penstock.records.batch import crc_of, read_header
from penstock.records.decode import records_of
from tests.log.support import (
    NOW_MS,
    Disk,
    batch,
    from_producer,
    offsets,
    read_all,
    read_bytes,
    records,
    split,
)

HOUR_S = 3600.0
MakeDisk = Callable[..., Disk]


class TestAppend:
    def test_a_batch_is_stored_byte_for_byte_but_for_its_place(self, disk: Disk) -> None:
        disk.append(count=3)
        sent = batch(5, codec=4, value_bytes=500)
        before = bytes(sent)

        appended = disk.append(sent)

        stored = disk.segment(0).read_bytes()[len(batch(3)) :]
        assert appended.base_offset == 3
        assert appended.end_offset == disk.log.log_end_offset == 8
        assert stored[8:12] == before[8:12]
        assert stored[16:] == before[16:]  # all but base offset and leader epoch
        assert read_header(stored).base_offset == 3

    def test_the_leader_epoch_is_written_into_the_batch(self, disk: Disk) -> None:
        disk.log.leader_epoch = 9
        disk.append()
        stored = disk.segment(0).read_bytes()
        assert read_header(stored).leader_epoch == 9
        assert crc_of(stored) == read_header(stored).crc

    def test_what_was_appended_can_be_read_at_once(self, disk: Disk) -> None:
        found = disk.append(count=2)
        assert isinstance(disk.log.read(found.base_offset, 1000), FileSlice)
        assert offsets(disk.log) == [0, 1]

    def test_a_refused_batch_leaves_no_trace(self, disk: Disk) -> None:
        bad = batch()
        bad[70] ^= 1
        with pytest.raises(ApiError) as refused:
            disk.append(bad)
        assert refused.value.code is ErrorCode.corrupt_message
        assert disk.segment(0).stat().st_size == 0
        assert not disk.dirty

    def test_subscribers_are_told_of_each_append_with_its_bytes(self, disk: Disk) -> None:
        told: list[tuple[int, int]] = []
        disk.log.subscribers[lambda log, size: told.append((log.log_end_offset, size))] = None
        sent = batch(4)
        disk.append(sent)
        assert told == [(4, len(sent))]

    def test_a_log_that_changed_reports_itself_dirty(self, disk: Disk) -> None:
        assert not disk.dirty
        disk.append()
        assert list(disk.dirty) == [disk.log]


class TestTimestamps:
    def test_log_append_time_stamps_the_batch_and_keeps_it_sound(self, make_disk: MakeDisk) -> None:
        disk = make_disk(message_timestamp_type="LogAppendTime")
        disk.clock.advance(5)
        appended = disk.append(batch(3, timestamp=17))
        stored = disk.segment(0).read_bytes()
        assert appended.append_time == NOW_MS + 5000
        assert read_header(stored).max_timestamp == NOW_MS + 5000
        assert crc_of(stored) == read_header(stored).crc
        assert {record.timestamp for record in records(disk.log)} == {NOW_MS + 5000}

    def test_create_time_is_kept_and_not_answered(self, disk: Disk) -> None:
        appended = disk.append(timestamp=NOW_MS - 123_456)
        assert appended.append_time == -1
        assert [record.timestamp for record in records(disk.log)] == [NOW_MS - 123_456]

    @pytest.mark.parametrize("off_ms", [-1001, 2001])
    def test_a_time_too_far_from_the_brokers_is_refused(
        self, make_disk: MakeDisk, off_ms: int
    ) -> None:
        disk = make_disk(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
        with pytest.raises(ApiError) as refused:
            disk.append(timestamp=NOW_MS + off_ms)
        assert refused.value.code is ErrorCode.invalid_timestamp

    @pytest.mark.parametrize("off_ms", [-1000, 2000])
    def test_a_time_just_within_the_bounds_is_taken(self, make_disk: MakeDisk, off_ms: int) -> None:
        disk = make_disk(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
        assert disk.append(timestamp=NOW_MS + off_ms).base_offset == 0

    def test_records_without_a_time_are_never_too_old(self, make_disk: MakeDisk) -> None:
        disk = make_disk(message_timestamp_before_max_ms=1000)
        assert disk.append(timestamp=-1).base_offset == 0


class TestRolling:
    def test_a_segment_ends_before_it_would_exceed_its_size(self, make_disk: MakeDisk) -> None:
        size = len(batch(value_bytes=300))
        disk = make_disk(segment_bytes=3 * size)
        disk.append_many(7, value_bytes=300)
        assert disk.segments() == [0, 3, 6]
        assert [disk.segment(base).stat().st_size for base in (0, 3, 6)] == [
            3 * size,
            3 * size,
            size,
        ]

    def test_a_batch_larger_than_a_segment_gets_one_of_its_own(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append(value_bytes=5000)
        disk.append(value_bytes=5000)
        assert disk.segments() == [0, 1]
        assert offsets(disk.log) == [0, 1]

    def test_a_segment_ends_when_its_first_batch_is_too_old(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_ms=int(HOUR_S * 1000))
        disk.clock.advance(50 * HOUR_S)  # an empty segment has no age
        disk.append()
        disk.clock.advance(HOUR_S - 0.001)
        disk.append()
        assert disk.segments() == [0]
        disk.clock.advance(0.001)
        disk.append()
        assert disk.segments() == [0, 2]

    def test_the_age_of_a_segment_survives_a_restart(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_ms=int(HOUR_S * 1000))
        disk.append()
        disk.clock.advance(HOUR_S / 2)
        disk.restart()
        disk.clock.advance(HOUR_S / 2)
        disk.append()
        assert disk.segments() == [0, 1]

    def test_a_segment_spans_no_more_offsets_than_its_index_can_hold(self, disk: Disk) -> None:
        """A batch may claim any number of records: positions in an index have 32 bits."""
        huge = batch()
        count = 2**31 - 1
        huge[57:61] = count.to_bytes(4, "big")
        huge[23:27] = (count - 1).to_bytes(4, "big")
        huge[17:21] = crc_of(huge).to_bytes(4, "big")
        again = memoryview(bytearray(huge))
        third = memoryview(bytearray(huge))
        disk.append(huge)
        disk.append(again)
        disk.append(third)
        assert disk.segments() == [0, count, 2 * count]
        assert disk.restart_after_kill().log_end_offset == 3 * count
        assert read_header(read_bytes(disk.log, 3 * count - 1)).base_offset == 2 * count

    def test_indexes_left_by_a_removal_that_was_cut_short_are_not_used(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=1024, index_interval_bytes=0)
        disk.index(2).write_bytes(bytes.fromhex("0000000100000007") * 4)
        disk.time_index(2).write_bytes(b"\x7f" * 24)
        disk.append_many(9, value_bytes=300)
        assert disk.segments() == [0, 2, 4, 6, 8]
        assert disk.index(2).stat().st_size == 8
        assert offsets(disk.log) == list(range(9))


class TestRead:
    def test_the_batch_that_holds_the_offset_comes_first(self, disk: Disk) -> None:
        disk.append_many(10, count=7)
        for offset in range(70):
            first = read_header(read_bytes(disk.log, offset, 1))
            assert first.base_offset == offset // 7 * 7

    def test_one_batch_comes_however_small_the_limit(self, disk: Disk) -> None:
        written = disk.append_many(3, value_bytes=10_000)
        for bytes_max in (-1, 0, 1, 9_999):
            assert split(read_bytes(disk.log, 1, bytes_max)) == [written[1]]

    def test_more_batches_come_only_whole_and_within_the_limit(self, disk: Disk) -> None:
        written = disk.append_many(50, value_bytes=100)
        size = len(written[0])
        for count in (1, 2, 10):
            assert split(read_bytes(disk.log, 0, count * size)) == written[:count]
            assert split(read_bytes(disk.log, 0, count * size + size - 1)) == written[:count]

    def test_a_limit_is_well_used_where_the_index_is_sparse(self, disk: Disk) -> None:
        """A read is cut at an index entry: it wastes at most what lies between two of them."""
        disk.append_many(2000, value_bytes=200)
        got = len(read_bytes(disk.log, 500, 100_000))
        assert 100_000 - 4096 - 2 * 300 < got <= 100_000

    def test_a_read_ends_with_its_segment_and_the_next_goes_on(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        written = disk.append_many(100, value_bytes=100)
        assert disk.log.segment_count > 5
        assert read_all(disk.log) == written
        assert len(split(read_bytes(disk.log, 0))) < 100

    def test_the_end_of_the_log_has_nothing(self, disk: Disk) -> None:
        assert disk.log.read(0, 1000) is None
        disk.append(count=3)
        assert disk.log.read(3, 1000) is None

    @pytest.mark.parametrize("offset", [-1, 4, 2**62])
    def test_an_offset_outside_the_log_is_refused(self, disk: Disk, offset: int) -> None:
        disk.append(count=3)
        with pytest.raises(ApiError) as refused:
            disk.log.read(offset, 1000)
        assert refused.value.code is ErrorCode.offset_out_of_range

    def test_a_slice_outlives_the_segment_it_is_from(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=0)
        written = disk.append_many(3, value_bytes=900)
        held = disk.log.read(0, 10_000)
        assert isinstance(held, FileSlice)
        removal = disk.log.expire_segments()
        assert removal is not None
        removal.run()
        assert disk.segments() == [3]
        assert held.read() == written[0]

    def test_files_of_dropped_segments_are_closed(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=0)
        before = len(os.listdir("/proc/self/fd"))
        disk.append_many(30, value_bytes=900)
        read_all(disk.log)
        removal = disk.log.expire_segments()
        assert removal is not None
        removal.run()
        del removal
        assert len(os.listdir("/proc/self/fd")) <= before + 1  # the index of the active one

    def test_records_of_every_codec_come_back(self, disk: Disk) -> None:
        for codec in range(5):
            disk.append(batch(20, codec=codec, value_bytes=100))
        found = [record for data in read_all(disk.log) for record in records_of(data)]
        assert [record.offset for record in found] == list(range(100))
        assert {record.value for record in found} == {b"v" * 100}


class TestEpochs:
    def test_the_end_of_an_epoch_is_where_the_next_began(self, disk: Disk) -> None:
        for epoch in (0, 3, 7):
            disk.log.leader_epoch = epoch
            disk.append(count=10)
        for _ in range(2):
            log = disk.log
            assert log.end_offset_for_epoch(0) == (0, 10)
            assert log.end_offset_for_epoch(2) == (0, 10)
            assert log.end_offset_for_epoch(3) == (3, 20)
            assert log.end_offset_for_epoch(6) == (3, 20)
            assert log.end_offset_for_epoch(7) == (7, 30)
            assert log.end_offset_for_epoch(8) == (-1, -1)
            assert log.end_offset_for_epoch(-1) == (-1, -1)
            disk.restart()

    def test_epochs_are_replayed_after_a_crash(self, disk: Disk) -> None:
        disk.append(count=10)
        disk.checkpoint()
        disk.log.leader_epoch = 4
        disk.append(count=10)
        assert disk.restart_after_kill().end_offset_for_epoch(2) == (0, 10)
        assert disk.log.end_offset_for_epoch(4) == (4, 20)

    def test_the_last_epoch_stays_known_when_all_its_records_are_gone(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(retention_bytes=0)
        disk.log.leader_epoch = 4
        disk.append(count=10)
        for _ in range(2):
            disk.log.expire_segments()
            disk.checkpoint()
            for restart in (disk.restart, disk.restart_after_kill):
                assert restart().end_offset_for_epoch(4) == (4, 10)
                assert disk.log.end_offset_for_epoch(3) == (3, 10)

    def test_an_epoch_whose_records_a_power_cut_took_is_forgotten(self, disk: Disk) -> None:
        disk.append(count=10)
        disk.sync()
        size = disk.segment(0).stat().st_size
        disk.log.leader_epoch = 4
        disk.append(count=10)
        disk.checkpoint()
        disk.cut_power()
        os.truncate(disk.segment(0), size)
        log = disk.start()
        assert log.log_end_offset == 10
        assert log.end_offset_for_epoch(4) == (-1, -1)
        assert log.end_offset_for_epoch(0) == (0, 10)


def test_idempotent_and_other_batches_share_the_offsets(disk: Disk) -> None:
    assert disk.append(from_producer(0, 2)).base_offset == 0
    assert disk.append(count=3).base_offset == 2
    assert disk.append(from_producer(2, 2)).base_offset == 5
