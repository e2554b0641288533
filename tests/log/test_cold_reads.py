"""Reading what this process has not written: checked once, in a thread, and never handed out damaged."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import ColdRead, FileSlice, PartitionLog
from penstock.log.inspect import repair
from penstock.log.timestamps import first_at_or_after
from tests.log.support import (
    NOW_MS,
    Disk,
    batch,
    cut,
    damage,
    offsets,
    placed,
    read_all,
    read_bytes,
    split,
    zero,
)

MakeDisk = Callable[..., Disk]
Look = Callable[[PartitionLog], Callable[[], object]]


@pytest.fixture
def old(make_disk: MakeDisk) -> Disk:
    """100 batches in segments of about 2000 bytes, written by a process that is gone."""
    disk = make_disk(segment_bytes=2000, index_interval_bytes=300)
    disk.append_many(100, value_bytes=100)
    disk.restart()
    return disk


def start_with_bad_index(disk: Disk) -> None:
    """After a power cut that leaves records but not the index of what was synced of the last segment."""
    disk.sync()
    disk.checkpoint()
    disk.cut_power()
    for path in disk.directory.glob("*.index"):
        path.unlink()
    disk.start()


def look_at_records(log: PartitionLog) -> Callable[[], object]:
    """A read that was asked for, to be run in its thread."""
    cold = log.read(0, 1 << 20)
    assert isinstance(cold, ColdRead)
    return cold.run


def look_at_times(log: PartitionLog) -> Callable[[], object]:
    parts = log._parts(None)
    return lambda: first_at_or_after(log, parts, NOW_MS)


class TestFirstRead:
    def test_old_data_is_read_in_a_thread_once_and_directly_then(self, old: Disk) -> None:
        for offset in (0, 50, 99):
            assert isinstance(old.log.read(offset, 500), ColdRead)
            read_bytes(old.log, offset, 500)
            assert isinstance(old.log.read(offset, 500), FileSlice)

    def test_what_was_checked_is_a_range_and_no_more(self, old: Disk) -> None:
        read_bytes(old.log, 3, 400)
        assert isinstance(old.log.read(3, 400), FileSlice)
        assert isinstance(old.log.read(8, 400), ColdRead)

    def test_what_recovery_scanned_needs_no_second_check(self, make_disk: MakeDisk) -> None:
        disk = make_disk()
        disk.append_many(20)
        assert isinstance(disk.restart_after_kill().read(0, 500), FileSlice)

    def test_a_new_append_can_be_read_directly_behind_old_data(self, old: Disk) -> None:
        appended = old.append()
        assert isinstance(old.log.read(appended.base_offset, 500), FileSlice)
        assert isinstance(old.log.read(99, 500), ColdRead)

    def test_a_cold_read_sees_the_log_as_it_was(self, old: Disk) -> None:
        """What is appended while it waits for its thread is the next read's."""
        cold = old.log.read(99, 1 << 20)
        assert isinstance(cold, ColdRead)
        old.append_many(3)
        found = cold.run()
        assert found is not None
        assert len(split(found.read())) == 1
        assert [len(split(read_bytes(old.log, offset))) for offset in (100, 101)] == [3, 2]

    def test_nor_is_it_disturbed_by_a_roll(self, old: Disk) -> None:
        cold = old.log.read(99, 1 << 20)
        assert isinstance(cold, ColdRead)
        old.append_many(50, value_bytes=200)
        found = cold.run()
        assert found is not None
        assert len(split(found.read())) == 1
        assert offsets(old.log) == list(range(150))

    def test_a_segment_that_retention_took_meanwhile_is_out_of_range(self, old: Disk) -> None:
        cold = old.log.read(3, 500)
        assert isinstance(cold, ColdRead)
        old.log.delete_records_before(60)
        removal = old.log.expire_segments()
        assert removal is not None
        removal.run()
        with pytest.raises(ApiError) as refused:
            cold.run()
        assert refused.value.code is ErrorCode.offset_out_of_range
        assert old.log.failure is None

    def test_a_file_that_cannot_be_read_is_a_storage_error_for_that_read(self, old: Disk) -> None:
        os.rename(old.segment(0), old.directory / "away")
        with pytest.raises(StorageError):
            read_bytes(old.log, 0)
        os.rename(old.directory / "away", old.segment(0))
        assert offsets(old.log) == list(range(100))


class TestDamage:
    def test_a_flipped_bit_in_an_old_segment_is_a_storage_error(self, old: Disk) -> None:
        damage(old.segment(0), 300)
        with pytest.raises(StorageError, match=r"CRC.*penstock log verify"):
            read_all(old.log)

    def test_a_flipped_bit_in_the_active_segment_too(self, old: Disk) -> None:
        active = old.segments()[-1]
        damage(old.segment(active), 100)
        with pytest.raises(StorageError, match="CRC"):
            read_bytes(old.log, active)

    def test_from_then_on_the_log_answers_nothing_else(self, old: Disk) -> None:
        damage(old.segment(0), 300)
        for _ in range(2):
            with pytest.raises(StorageError):
                read_bytes(old.log, 0)
        with pytest.raises(StorageError):
            old.log.read(99, 100)
        with pytest.raises(StorageError):
            old.append()
        assert isinstance(old.log.failure, StorageError)

    def test_each_answer_is_an_exception_of_its_own(self, old: Disk) -> None:
        """One that is raised again and again would keep every caller's frame alive."""
        old.log.fail("on fire")
        raised = []
        for _ in range(2):
            with pytest.raises(StorageError) as failed:
                old.log.read(0, 100)
            raised.append(failed.value)
        assert raised[0] is not raised[1]

    def test_damage_elsewhere_is_not_in_the_way(self, old: Disk) -> None:
        damage(old.segment(0), 300)
        assert len(split(read_bytes(old.log, 99))) == 1
        assert old.append().base_offset == 100

    @pytest.mark.parametrize("field", [8, 16], ids=["length", "magic"])
    def test_a_header_is_checked_before_it_is_followed(self, old: Disk, field: int) -> None:
        damage(old.segment(0), field, 0x40)
        with pytest.raises(StorageError):
            read_bytes(old.log, 1, 200)

    def test_a_header_that_denies_its_records_hides_none(self, make_disk: MakeDisk) -> None:
        """Looking for an offset passes batches by their headers, which were not checked yet."""
        disk = make_disk()
        written = disk.append_many(5, count=8)
        for stop in (disk.stop, disk.kill):
            stop()
            disk.start()
            disk.append(count=8)
            read_bytes(disk.log, 25)
            damage(disk.segment(0), 2 * len(written[0]) + 26, 0x04)  # 16 to 23: "I end at 19"
            with pytest.raises(StorageError, match="CRC"):
                read_bytes(disk.log, 22, 1)
            damage(disk.segment(0), 2 * len(written[0]) + 26, 0x04)

    def test_nor_does_one_that_was_seen_but_not_checked(self, make_disk: MakeDisk) -> None:
        """Where a read would have ended is not remembered before its batches were checked."""
        disk = make_disk()
        written = disk.append_many(5, count=8)
        disk.restart()
        damage(disk.segment(0), 2 * len(written[0]) + 26, 0x04)  # 16 to 23: "I end at 19"
        assert isinstance(disk.log.read(16, 1), ColdRead)  # and nobody runs it
        with pytest.raises(StorageError, match="CRC"):
            read_bytes(disk.log, 20, 1)

    def test_nor_does_one_at_the_end_of_a_segment(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append_many(2, count=8, value_bytes=100)
        disk.restart()
        damage(disk.segment(0), 26, 0x04)
        with pytest.raises(StorageError):
            read_bytes(disk.log, 7)

    @pytest.mark.parametrize("batch_at", [0, 4, 10])
    @pytest.mark.parametrize("bit", [0, 1, 2, 3, 12, 34, 63])
    def test_an_offset_that_does_not_fit_is_damage(
        self, old: Disk, bit: int, batch_at: int
    ) -> None:
        """A batch's offset is not covered by its CRC: its neighbours' tell."""
        size = old.segment(0).stat().st_size // 11
        damage(old.segment(0), batch_at * size + 7 - bit // 8, 1 << bit % 8)

        def read_one_by_one() -> None:
            for offset in range(11):
                assert read_bytes(old.log, offset, 1)[:8] == offset.to_bytes(8, "big")

        with pytest.raises(StorageError):
            read_one_by_one()

    def test_a_sealed_segment_that_lost_its_end_is_damage(self, old: Disk) -> None:
        size = old.segment(0).stat().st_size
        one = len(read_bytes(old.log, 99))
        old.restart()
        cut(old.segment(0), size - one)
        old.restart()
        with pytest.raises(StorageError, match="offsets 10 to 10 are missing"):
            read_bytes(old.log, 0)

    def test_so_is_one_that_is_empty(self, old: Disk) -> None:
        old.stop()
        cut(old.segment(0), 0)
        old.start()
        with pytest.raises(StorageError, match="are missing"):
            read_bytes(old.log, 0)

    def test_so_is_a_segment_that_is_not_there(self, old: Disk) -> None:
        second, third = old.segments()[1:3]
        old.stop()
        old.segment(second).unlink()
        old.start()
        assert len(split(read_bytes(old.log, third))) > 1
        with pytest.raises(StorageError, match=f"offsets {second} to {third - 1} are missing"):
            read_bytes(old.log, second)

    def test_zeros_in_an_old_segment_are_damage(self, old: Disk) -> None:
        zero(old.segment(0), 400, 600)
        with pytest.raises(StorageError):
            read_all(old.log)


class TestIndexes:
    """An index is a hint: whatever happens to it, the right records come."""

    @pytest.mark.parametrize("which", ["index", "timeindex"])
    @pytest.mark.parametrize("how", ["gone", "zero", "empty", "short", "half", "ones", "strange"])
    def test_a_lost_or_damaged_one_is_made_anew(self, old: Disk, which: str, how: str) -> None:
        written = read_all(old.log)
        path = old.directory / f"{0:020d}.{which}"
        whole = path.read_bytes()
        old.stop()
        entry = 8 if which == "index" else 12
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(
                {
                    "zero": bytes(len(whole)),
                    "empty": b"",
                    "short": whole[:entry],
                    "half": whole[: entry + 5],
                    "ones": b"\xff" * len(whole),
                    "strange": whole[entry:] + whole[:entry],
                }[how]
            )
        old.start()
        assert read_all(old.log) == written
        if how not in {"empty", "short"}:  # those are just sparser than they might be
            assert path.read_bytes() == whole

    def test_an_entry_that_points_behind_its_record_skips_nothing(self, old: Disk) -> None:
        """Both ends look right; only the batch it points at tells that an entry is wrong."""
        written = read_all(old.log)
        entries = list(struct.iter_unpack(">II", old.index(0).read_bytes()))
        entries[1] = (entries[1][0], entries[2][1])
        old.stop()
        old.index(0).write_bytes(b"".join(struct.pack(">II", *entry) for entry in entries))
        old.start()
        for offset in range(20):
            assert read_bytes(old.log, offset, 1) == written[offset]

    def test_an_entry_within_a_batch_is_found_out(self, old: Disk) -> None:
        written = read_all(old.log)
        entries = list(struct.iter_unpack(">II", old.index(0).read_bytes()))
        entries[1] = (entries[1][0], entries[1][1] + 1)
        old.stop()
        old.index(0).write_bytes(b"".join(struct.pack(">II", *entry) for entry in entries))
        old.start()
        for bytes_max in (1, entries[1][1] + 10, 1 << 20):
            for offset in range(12):
                found = split(read_bytes(old.log, offset, bytes_max))
                assert found == written[offset : offset + len(found)]
        assert old.log.failure is None

    def test_a_bad_one_of_the_active_segment_is_done_without(self, make_disk: MakeDisk) -> None:
        disk = make_disk(index_interval_bytes=300)
        written = disk.append_many(60, value_bytes=100)
        disk.stop()
        good = disk.index(0).read_bytes()
        disk.index(0).write_bytes(bytes(8) + good[16:])
        disk.start()
        for _ in range(2):
            for offset in range(60):
                assert read_bytes(disk.log, offset, 1) == written[offset]
            disk.append(value_bytes=100)
        disk.start(segment_bytes=1024)
        disk.append(value_bytes=100)
        assert offsets(disk.log) == list(range(63))

    @pytest.mark.parametrize("look", [look_at_records, look_at_times])
    def test_a_segment_that_is_sealed_before_the_thread_comes_to_it_is_sound(
        self, make_disk: MakeDisk, look: Look
    ) -> None:
        """It ends where it ends then, not where the log ended when the read was asked for."""
        disk = make_disk(segment_bytes=4000)
        written = disk.append_many(3, value_bytes=100)
        start_with_bad_index(disk)
        run = look(disk.log)
        while len(disk.segments()) == 1:
            disk.append(value_bytes=100)
        run()
        assert disk.log.failure is None
        assert read_all(disk.log)[:3] == written

    @pytest.mark.parametrize("was_active", [False, True])
    def test_a_segment_that_retention_took_before_the_thread_came_to_it_is_no_damage(
        self, make_disk: MakeDisk, was_active: bool
    ) -> None:
        disk = make_disk(segment_bytes=1000, retention_bytes=1000)
        written = disk.append_many(3 if was_active else 30, value_bytes=100)
        start_with_bad_index(disk)
        cold = disk.log.read(0, 1)
        assert isinstance(cold, ColdRead)
        disk.append_many(30, value_bytes=100)
        assert disk.log.expire_segments() is not None  # its files are still there
        if was_active:
            with pytest.raises(ApiError) as caught:
                cold.run()
            assert caught.value.code is ErrorCode.offset_out_of_range
        else:
            found = cold.run()
            assert found is not None
            assert found.read() == written[0]
        assert disk.log.failure is None

    def test_where_a_segment_ends_does_not_depend_on_what_comes_behind_it_meanwhile(
        self, old: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Asked for in a thread in the moment between sealing it and adding the next one."""
        log = old.log
        sealed, following = log._segments[-2:]
        log._segments = log._segments[:-1]
        log.log_end_offset = following.base_offset

        def overtaken(*given: Any, **more: Any) -> int:
            found = bisect_right(*given, **more)
            log.log_end_offset += 1
            return found

        monkeypatch.setattr("penstock.log.partition_log.bisect_right", overtaken)
        assert log.end_behind(sealed) == following.base_offset

    def test_a_rebuild_does_not_disturb_those_who_read(self, old: Disk) -> None:
        held = []
        for offset in range(10):
            cold = old.log.read(offset, 300)
            assert isinstance(cold, ColdRead)
            held.append(cold)
        old.index(0).unlink()
        for offset, cold in enumerate(held):
            found = cold.run()
            assert found is not None
            assert found.read()[:8] == offset.to_bytes(8, "big")

    def test_segments_without_index_entries_are_not_taken_for_damaged(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append_many(4, value_bytes=900)
        disk.stop()
        before = {path: path.stat().st_ino for path in disk.directory.glob("*.index")}
        assert len(before) == 3
        assert offsets(disk.start()) == [0, 1, 2, 3]
        assert {path: path.stat().st_ino for path in disk.directory.glob("*.index")} == before


class TestGaps:
    """Offsets that a power cut or a repair lost are stepped over, and only those."""

    @pytest.mark.parametrize("is_replica", [False, True])
    def test_a_gap_at_the_end_of_the_log_is_its_end_for_readers(
        self, make_disk: MakeDisk, is_replica: bool
    ) -> None:
        """They wait for what comes, instead of being sent to look again and again."""
        disk = make_disk()
        written = disk.append_many(10)
        disk.stop()
        damage(disk.segment(0), sum(map(len, written[:9])) + 70)
        repair(str(disk.directory))
        log = disk.start()
        assert log.log_end_offset == 10
        if is_replica:
            log.track_high_watermark(10)
        assert read_bytes(log, 9) == b""
        assert log.read(9, 1 << 20) is None
        disk.append()
        if is_replica:
            log.set_high_watermark(11)
        assert read_bytes(log, 9)[:8] == (10).to_bytes(8, "big")

    @pytest.fixture
    def gapped(self, make_disk: MakeDisk) -> Disk:
        """Offsets 10 (the end of the first segment) and 22 to 39 (a file) are lost, and known to be."""
        disk = make_disk(segment_bytes=2000, index_interval_bytes=300)
        written = disk.append_many(100, value_bytes=100)
        disk.kill()
        one = len(written[0])
        assert disk.segments()[:4] == [0, 11, 22, 33]
        cut(disk.segment(0), disk.segment(0).stat().st_size - one)
        disk.segment(22).unlink()
        (disk.directory / "checkpoint").unlink(missing_ok=True)
        disk.start()
        return disk

    def test_one_that_retention_took_with_its_segment_is_no_damage(self, gapped: Disk) -> None:
        gapped.stop()
        gapped.index(0).unlink()
        log = gapped.start(retention_bytes=4000)
        cold = log.read(0, 1 << 20)
        assert isinstance(cold, ColdRead)
        assert log.expire_segments() is not None
        with pytest.raises(ApiError) as caught:
            cold.run()
        assert caught.value.code is ErrorCode.offset_out_of_range
        assert log.failure is None

    def test_one_that_is_dropped_with_the_whole_log_is_no_damage(
        self, gapped: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gapped.stop()
        gapped.index(0).unlink()
        log = gapped.start()
        cold = log.read(0, 1 << 20)
        save = PartitionLog._save_cut

        def read_meanwhile(self: PartitionLog, *given: Any, **more: Any) -> None:
            assert isinstance(cold, ColdRead)
            with pytest.raises(ApiError) as caught:
                cold.run()
            assert caught.value.code is ErrorCode.not_leader_or_follower
            save(self, *given, **more)

        monkeypatch.setattr(PartitionLog, "_save_cut", read_meanwhile)
        log.restart_at(500)
        assert log.failure is None

    def test_one_that_is_fetched_is_known_when_the_segment_behind_it_is_there(
        self, make_disk: MakeDisk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = make_disk()
        written = disk.append_many(3, value_bytes=100)
        start_with_bad_index(disk)
        cold = disk.log.read(0, 1 << 20)
        roll = PartitionLog._roll

        def read_meanwhile(self: PartitionLog, *given: Any) -> Any:
            segment = roll(self, *given)
            assert isinstance(cold, ColdRead)
            found = cold.run()
            assert found is not None
            assert split(found.read()) == written
            return segment

        monkeypatch.setattr(PartitionLog, "_roll", read_meanwhile)
        disk.log.append_fetched(placed(batch(2), 10))
        assert disk.log.failure is None

    def test_a_read_in_a_gap_gets_the_records_behind_it(self, gapped: Disk) -> None:
        expected = [i for i in range(100) if i != 10 and not 22 <= i < 33]
        assert offsets(gapped.log) == expected
        for offset in (10, 22, 30):
            following = next(i for i in expected if i > offset)
            assert read_bytes(gapped.log, offset, 1)[:8] == following.to_bytes(8, "big")

    def test_gaps_stay_known_across_restarts(self, gapped: Disk) -> None:
        for restart in (gapped.restart, gapped.restart_after_kill, gapped.restart):
            restart()
            assert read_bytes(gapped.log, 10, 1)[:8] == (11).to_bytes(8, "big")
            assert read_bytes(gapped.log, 25, 1)[:8] == (33).to_bytes(8, "big")

    def test_no_offset_of_a_gap_is_used_again(self, gapped: Disk) -> None:
        assert gapped.append().base_offset == 100

    def test_a_cold_read_goes_on_in_the_next_segment(self, gapped: Disk) -> None:
        gapped.restart()
        cold = gapped.log.read(25, 1 << 20)
        assert isinstance(cold, ColdRead)
        found = cold.run()
        assert found is not None
        assert found.read()[:8] == (33).to_bytes(8, "big")

    def test_what_it_finds_there_was_checked(self, gapped: Disk) -> None:
        gapped.restart()
        read_bytes(gapped.log, 11)
        damage(gapped.segment(33), 200)
        with pytest.raises(StorageError, match="CRC"):
            read_bytes(gapped.log, 25)

    def test_a_gap_is_forgotten_with_the_segments_around_it(self, gapped: Disk) -> None:
        gapped.log.delete_records_before(50)
        removal = gapped.log.expire_segments()
        assert removal is not None
        removal.run()
        gapped.restart()
        assert gapped.saved().gaps == []
        assert offsets(gapped.log) == list(range(50, 100))
