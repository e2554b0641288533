"""Opening a log after a clean stop, after the death of the process, and after that of the machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import pytest

from penstock.errors import CorruptLogError
from penstock.log import PartitionLog, TimestampOffset
from penstock.log.checkpoint import FILE_NAME
from penstock.log.files import LogFile
from penstock.log.recovery import recover
from penstock.log.segment import OpenFiles
from penstock.records.batch import read_header
from tests.log.support import (
    NOW_MS,
    Disk,
    append_bytes,
    batch,
    cut,
    damage,
    from_producer,
    offsets,
    read_all,
    read_bytes,
    zero,
)

MakeDisk = Callable[..., Disk]


def scanned(disk: Disk) -> int:
    """How many bytes an opening scans; it must not find a torn tail, which it would cut."""
    state = recover(str(disk.directory), disk.clock, OpenFiles(10), 4096)
    for segment in state.segments:
        segment.drop()
    return state.scanned_bytes


class TestCleanStop:
    def test_nothing_is_scanned(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        disk.append_many(100, value_bytes=100)
        disk.stop()
        assert scanned(disk) == 0

    def test_nothing_is_scanned_after_the_next_boot_either(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        written = disk.append_many(100, value_bytes=100)
        disk.stop()
        disk.edit_checkpoint(boot="the boot before")
        assert scanned(disk) == 0
        assert read_all(disk.start()) == written

    def test_indexes_hold_across_boots(self, make_disk: MakeDisk) -> None:
        disk = make_disk(index_interval_bytes=100)
        disk.append_many(50, value_bytes=100)
        disk.stop()
        before = disk.index(0).read_bytes()
        assert len(before) == 49 * 8
        disk.edit_checkpoint(boot="the boot before")
        disk.start()
        assert disk.index(0).read_bytes() == before

    def test_everything_is_durable(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        disk.append_many(100, value_bytes=100)
        disk.stop()
        assert disk.saved().durable == disk.saved().written
        assert disk.start().durable_offset == 100

    def test_data_is_not_even_looked_at(self, make_disk: MakeDisk) -> None:
        """Files full of nonsense open as well: only a scan would notice."""
        disk = make_disk(segment_bytes=2000)
        disk.append_many(100, value_bytes=100)
        disk.stop()
        for base in disk.segments():
            zero(disk.segment(base))
        assert disk.start().log_end_offset == 100

    def test_a_log_that_never_had_a_record_leaves_no_checkpoint(self, disk: Disk) -> None:
        disk.stop()
        assert not (disk.directory / FILE_NAME).exists()

    def test_a_stop_without_changes_writes_nothing(self, disk: Disk) -> None:
        disk.append()
        disk.stop()
        before = (disk.directory / FILE_NAME).stat().st_mtime_ns
        disk.start()
        disk.stop()
        assert (disk.directory / FILE_NAME).stat().st_mtime_ns == before


class TestKill:
    def test_all_that_was_appended_is_there(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        written = disk.append_many(100, value_bytes=100)
        log = disk.restart_after_kill()
        assert log.log_end_offset == 100
        assert read_all(log) == written

    def test_only_what_came_behind_the_recovery_point_is_scanned(self, disk: Disk) -> None:
        disk.append_many(50)
        disk.checkpoint()
        behind = disk.append_many(3)
        disk.kill()
        assert scanned(disk) == sum(map(len, behind))

    def test_the_recovery_point_need_not_be_synced(self, disk: Disk) -> None:
        disk.append_many(50)
        disk.checkpoint()
        assert disk.saved().durable.offset == 0
        disk.kill()
        assert scanned(disk) == 0

    def test_a_recovered_log_wants_a_new_recovery_point(self, disk: Disk) -> None:
        disk.append()
        disk.dirty.clear()
        assert disk.restart_after_kill() in disk.dirty

    def test_segments_rolled_behind_the_recovery_point_are_scanned_too(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=2000)
        disk.append_many(5, value_bytes=100)
        disk.checkpoint()
        at = disk.segment(0).stat().st_size
        disk.append_many(40, value_bytes=100)
        disk.kill()
        total = sum(disk.segment(base).stat().st_size for base in disk.segments())
        assert scanned(disk) == total - at

    def test_an_empty_segment_after_a_roll_is_where_writing_goes_on(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append_many(3, value_bytes=900)
        disk.kill()
        cut(disk.segment(2), 0)
        log = disk.start()
        assert log.log_end_offset == 2
        assert disk.append(value_bytes=900).base_offset == 2
        assert disk.segments() == [0, 1, 2]

    def test_index_entries_are_not_doubled_by_a_scan(self, make_disk: MakeDisk) -> None:
        disk = make_disk(index_interval_bytes=0)
        disk.append_many(10)
        disk.checkpoint()
        disk.append_many(10)
        plan = disk.log.begin_checkpoint()  # index entries on file, but no recovery point
        del plan
        disk.restart_after_kill(index_interval_bytes=0)
        disk.stop()
        entries = disk.index(0).read_bytes()
        offsets_indexed = [entries[i + 3] for i in range(0, len(entries), 8)]
        assert offsets_indexed == [*range(1, 10), *range(11, 20)]

    def test_the_checkpoint_may_be_lost(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000, index_interval_bytes=100)
        written = disk.append_many(100, value_bytes=100)
        disk.stop()
        (disk.directory / FILE_NAME).unlink()
        assert read_all(disk.start()) == written

    @pytest.mark.parametrize(
        "content",
        [b"", b"\0" * 300, b"rubbish", b"00000000\n{}\n"],
        ids=["empty", "zero", "?", "crc"],
    )
    def test_a_damaged_checkpoint_is_said_so_and_not_believed(
        self, disk: Disk, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        written = disk.append_many(10)
        disk.stop()
        (disk.directory / FILE_NAME).write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert read_all(disk.start()) == written
        assert "recovery point is damaged" in caplog.text

    def test_a_checkpoint_with_one_wrong_digit_is_not_believed(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.stop()
        path = disk.directory / FILE_NAME
        text = path.read_bytes()
        assert text.count(b'"offset":10') == 2
        path.write_bytes(text.replace(b'"offset":10', b'"offset":11'))
        assert disk.start().log_end_offset == 10

    def test_a_temporary_checkpoint_is_ignored(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.stop()
        (disk.directory / f"{FILE_NAME}.new").write_bytes(b"half a check")
        assert disk.start().log_end_offset == 10

    def test_retention_may_have_removed_the_segment_of_the_recovery_point(
        self, make_disk: MakeDisk
    ) -> None:
        """Files are gone, and then the process died before it wrote where it is now."""
        disk = make_disk(segment_bytes=1024, retention_bytes=3000)
        disk.append_many(2, value_bytes=900)
        disk.checkpoint()
        written = disk.append_many(6, value_bytes=900)
        removal = disk.log.expire_segments()
        assert removal is not None
        removal.run()
        log = disk.restart_after_kill()
        assert log.log_end_offset == 8
        assert log.log_start_offset == disk.segments()[0] > 1
        assert read_all(log) == written[log.log_start_offset - 2 :]

    def test_an_empty_file_that_a_failed_roll_left_is_no_obstacle(self, disk: Disk) -> None:
        disk.append_many(5)
        disk.segment(3).touch()
        written = disk.append_many(5)
        for stop in (disk.kill, disk.stop):
            stop()
            disk.segment(3).touch()
            log = disk.start()
            assert disk.segments() == [0]
            assert log.log_end_offset == 10
            assert read_all(log, 5) == written
        assert disk.append().base_offset == 10


class TestTornTail:
    @pytest.mark.parametrize(
        "tail",
        [
            b"x",
            b"\0" * 10,
            b"\0" * 5000,
            b"\xff" * 5000,
            bytes(batch(3))[:-1],
            bytes(batch(3))[:61],
        ],
        ids=["byte", "zeros", "many-zeros", "ones", "all-but-a-byte", "header"],
    )
    def test_it_is_cut(self, disk: Disk, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
        written = disk.append_many(10)
        disk.kill()
        append_bytes(disk.segment(0), tail)
        with caplog.at_level(logging.INFO):
            log = disk.start()
        assert read_all(log) == written
        assert disk.segment(0).stat().st_size == sum(map(len, written))
        assert f"cut_bytes={len(tail)}" in caplog.text
        assert disk.append().base_offset == 10

    @pytest.mark.parametrize("before", [0, 3])
    def test_it_is_cut_though_a_value_in_it_holds_a_produced_batch(
        self, disk: Disk, before: int
    ) -> None:
        """Who keeps batches in values keeps them as they came, from offset 0 on."""
        written = disk.append_many(before)
        disk.append(batch(value=bytes(batch(3)) + b"v" * 5000))
        disk.kill()
        cut(disk.segment(0), disk.segment(0).stat().st_size - 4000)
        log = disk.start()
        assert read_all(log) == written
        assert disk.append().base_offset == before

    def test_offsets_of_torn_records_are_used_again(self, disk: Disk) -> None:
        """Nobody was told that they were there."""
        written = disk.append_many(10)
        disk.append(count=5)
        disk.kill()
        cut(disk.segment(0), sum(map(len, written)) + 80)
        assert disk.start().log_end_offset == 10

    def test_a_torn_tail_before_the_recovery_point_is_no_such_thing(self, disk: Disk) -> None:
        """The file was longer than it is: acknowledged records are gone, which is never silent."""
        disk.append_many(10)
        disk.checkpoint()
        size = disk.segment(0).stat().st_size
        disk.kill()
        cut(disk.segment(0), size - 1)
        with pytest.raises(CorruptLogError, match=f"{size} bytes long before"):
            disk.start()

    def test_it_is_cut_in_an_older_segment_if_nothing_sound_follows(
        self, make_disk: MakeDisk
    ) -> None:
        """A power cut right after a roll: the old segment's end and the new segment never arrived."""
        disk = make_disk(segment_bytes=2000)
        written = disk.append_many(10, value_bytes=300)
        disk.cut_power()
        first, second = disk.segments()[:2]
        for base in disk.segments()[1:]:
            zero(disk.segment(base))
        cut(disk.segment(first), disk.segment(first).stat().st_size - 5)
        log = disk.start()
        assert read_all(log) == written[: second - 1]
        assert log.log_end_offset == disk.segments()[-1], "no offset is used twice"
        assert offsets(log) == list(range(second - 1))
        assert disk.append(value_bytes=300).base_offset == log.log_end_offset - 1


class TestDamageInTheMiddle:
    @pytest.mark.parametrize("at", [20, 62, 150], ids=["crc", "body", "later-batch"])
    def test_the_log_does_not_open(self, disk: Disk, at: int) -> None:
        disk.append_many(10)
        disk.kill()
        damage(disk.segment(0), at)
        before = disk.segment(0).read_bytes()
        with pytest.raises(CorruptLogError, match="CRC"):
            disk.start()
        assert disk.segment(0).read_bytes() == before, "nothing is changed"

    def test_nor_does_it_if_a_length_is_wrong(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.kill()
        damage(disk.segment(0), 8, 0x40)  # the first batch claims a gigabyte
        with pytest.raises(CorruptLogError, match="needs"):
            disk.start()

    @pytest.mark.parametrize("last", [False, True])
    @pytest.mark.parametrize("bit", [0, 1, 3, 20, 33, 62, 63])
    def test_nor_does_it_if_an_offset_is_wrong(self, disk: Disk, bit: int, last: bool) -> None:
        """The CRC does not cover it: a flipped bit must not make what follows look out of place."""
        size = len(disk.append_many(10)[0])
        disk.checkpoint()
        disk.append_many(10)
        disk.kill()
        damage(disk.segment(0), (19 if last else 14) * size + 7 - bit // 8, 1 << bit % 8)
        before = disk.segment(0).read_bytes()
        with pytest.raises(CorruptLogError, match="offset"):
            disk.start()
        assert disk.segment(0).read_bytes() == before

    def test_nor_does_it_if_an_old_batch_follows_the_last(self, disk: Disk) -> None:
        written = disk.append_many(10)
        disk.kill()
        append_bytes(disk.segment(0), written[3])
        with pytest.raises(CorruptLogError, match="offset 3"):
            disk.start()

    def test_nor_does_it_if_zeros_have_records_behind_them(self, disk: Disk) -> None:
        written = disk.append_many(10)
        disk.kill()
        zero(disk.segment(0), len(written[0]), len(written[1]))
        with pytest.raises(CorruptLogError):
            disk.start()

    def test_nor_does_it_if_the_end_of_an_older_segment_is_torn(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        disk.append_many(20, value_bytes=300)
        disk.kill()
        cut(disk.segment(0), disk.segment(0).stat().st_size - 5)
        with pytest.raises(CorruptLogError):
            disk.start()

    def test_nor_does_it_if_the_segment_of_the_recovery_point_is_missing(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=2000)
        disk.append_many(20, value_bytes=300)
        disk.stop()
        last = disk.segments()[-1]
        disk.segment(last).unlink()
        with pytest.raises(CorruptLogError, match=f"{last:020d} is missing"):
            disk.start()

    def test_nor_does_it_if_all_segments_are_missing(self, disk: Disk) -> None:
        disk.append_many(20)
        disk.stop()
        disk.segment(0).unlink()
        with pytest.raises(CorruptLogError, match="is missing"):
            disk.start()

    def test_nor_does_it_if_segments_overlap(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=2000)
        disk.append_many(20, value_bytes=300)
        disk.kill()
        disk.segment(2).write_bytes(disk.segment(0).read_bytes())
        with pytest.raises(CorruptLogError, match="overlap"):
            disk.start()

    def test_damage_before_the_recovery_point_does_not_keep_it_from_opening(
        self, disk: Disk
    ) -> None:
        disk.append_many(10)
        disk.checkpoint()
        disk.append_many(10)
        disk.kill()
        damage(disk.segment(0), 62)
        assert disk.start().log_end_offset == 20

    def test_a_record_that_holds_a_batch_hides_no_damage(self, disk: Disk) -> None:
        """Bytes inside a damaged batch that look like one stop the log, as they must: who can tell?"""
        inner = bytes(batch(base_offset=50))
        disk.append()
        disk.append(batch(value=inner))
        disk.kill()
        path = disk.segment(0)
        cut(path, path.stat().st_size - 1)
        with pytest.raises(CorruptLogError):
            disk.start()


class TestPowerCut:
    def test_all_behind_the_last_sync_is_scanned(self, disk: Disk) -> None:
        disk.append_many(10)
        disk.sync()
        behind = disk.append_many(5)
        disk.checkpoint()
        behind += disk.append_many(5)
        disk.cut_power()
        assert scanned(disk) == sum(map(len, behind))

    def test_what_was_synced_is_there_and_what_was_not_may_be_lost(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=2000, index_interval_bytes=100)
        written = disk.append_many(30, value_bytes=100)
        disk.sync()
        last = disk.segments()[-1]
        size = disk.segment(last).stat().st_size
        disk.append_many(30, value_bytes=100)
        disk.checkpoint()
        disk.cut_power()
        for base in disk.segments():
            if base > last:
                for path in (disk.segment(base), disk.index(base), disk.time_index(base)):
                    path.unlink(missing_ok=True)
        cut(disk.segment(last), size)
        log = disk.start()
        assert read_all(log) == written
        assert disk.append().base_offset == 30

    def test_the_end_of_a_file_may_come_back_as_zeros(self, disk: Disk) -> None:
        written = disk.append_many(10)
        disk.sync()
        size = disk.segment(0).stat().st_size
        disk.append_many(10)
        disk.checkpoint()
        disk.cut_power()
        zero(disk.segment(0), size)
        assert read_all(disk.start()) == written

    @pytest.mark.parametrize("how", ["kept", "zeroed", "short", "gone"])
    def test_indexes_that_were_not_synced_are_not_believed(
        self, make_disk: MakeDisk, how: str
    ) -> None:
        disk = make_disk(index_interval_bytes=100, segment_bytes=100_000)
        written: list[bytes] = []
        for i in range(100):  # times go up and down
            written += disk.append_many(1, value_bytes=100, timestamp=NOW_MS + i % 10 * 1000)
        disk.sync()
        disk.checkpoint()
        disk.cut_power()
        for path in (disk.index(0), disk.time_index(0)):
            if how == "zeroed":
                zero(path)
            elif how == "short":
                cut(path, path.stat().st_size // 3)
            elif how == "gone":
                path.unlink()
        disk.start()
        for _ in range(3):
            log = disk.log
            for offset in range(0, 100, 7):
                assert read_bytes(log, offset, 1) == written[offset]
            assert log.find_timestamp(NOW_MS + 5000) == TimestampOffset(5, NOW_MS + 5000, 0)
            found = log.max_timestamp()
            assert found is not None
            assert found.offset == 9
            disk.append(value_bytes=100)
            disk.restart()

    def test_bad_indexes_are_made_anew_once_the_segment_is_sealed(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(index_interval_bytes=100)
        disk.append_many(50, value_bytes=100)
        disk.sync()
        disk.checkpoint()
        disk.cut_power()
        zero(disk.index(0))
        disk.start(segment_bytes=1024)
        disk.append(value_bytes=900)
        assert disk.segments() == [0, 50]
        assert not disk.index(0).exists()
        read_all(disk.log)
        assert disk.index(0).stat().st_size == 8 * 49

    def test_a_new_segment_whose_name_was_lost_is_made_again(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=0)
        disk.append_many(3, value_bytes=900)
        assert disk.log.expire_segments() is not None
        disk.checkpoint()
        disk.kill()
        disk.segment(3).unlink()
        log = disk.start()
        assert log.log_end_offset == log.log_start_offset == 3

    def test_offsets_of_deleted_records_are_not_used_again_if_they_are_lost(
        self, disk: Disk
    ) -> None:
        disk.append_many(10)
        disk.log.delete_records_before(8)
        disk.checkpoint(durable=True)
        disk.cut_power()
        cut(disk.segment(0), 0)
        for _ in range(2):
            log = disk.start()
            assert (log.log_start_offset, log.log_end_offset) == (8, 8)
            disk.kill()
        disk.start()
        assert disk.append().base_offset == 8
        assert offsets(disk.restart()) == [8]

    def test_producers_whose_batches_were_lost_may_send_them_again(self, disk: Disk) -> None:
        disk.append(from_producer(0))
        disk.sync()
        size = disk.segment(0).stat().st_size
        disk.append(from_producer(1))
        disk.checkpoint()
        disk.cut_power()
        cut(disk.segment(0), size)
        disk.start()
        assert disk.append(from_producer(1)).base_offset == 1
        assert disk.log.log_end_offset == 2


class TestWhatIsNotOnDisk:
    """After the death of a process, its unsynced files are still unsynced."""

    def test_the_next_sync_covers_segments_that_a_dead_process_wrote(
        self, make_disk: MakeDisk
    ) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append_many(2, value_bytes=900)
        disk.sync()
        disk.append_many(3, value_bytes=900)
        disk.checkpoint()
        log = disk.restart_after_kill()
        assert log.durable_offset == 2
        assert log in disk.dirty
        plan = log.begin_sync()
        assert [segment.base_offset for segment, _ in plan.sealed] == [1, 2, 3]
        plan.run()
        log.finish_sync(plan)
        assert log.durable_offset == 5
        assert log.begin_sync().sealed == []

    @pytest.mark.parametrize("which", ["active", "sealed", "index", "directory"])
    def test_a_sync_fails_if_any_of_its_files_does(self, make_disk: MakeDisk, which: str) -> None:
        """/dev/null is a file that the system refuses to sync."""
        disk = make_disk(segment_bytes=1024)
        disk.append_many(3, value_bytes=900)
        plan = disk.log.begin_sync()
        unsyncable = LogFile("/dev/null", os.O_RDONLY)
        if which == "active":
            plan.active = unsyncable
        elif which == "sealed":
            plan.sealed[1] = (plan.sealed[1][0], unsyncable)
        elif which == "index":
            disk.time_index(1).unlink()
            disk.time_index(1).symlink_to("/dev/null")
        else:
            plan.paths.append(str(disk.directory / "none"))
        with pytest.raises(OSError, match=r"Invalid argument|No such file"):
            plan.run()

    def test_a_sync_that_retention_overtakes_succeeds(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=1000)
        disk.append_many(5, value_bytes=900)
        disk.restart_after_kill()
        plan = disk.log.begin_sync()
        removal = disk.log.expire_segments()
        assert removal is not None
        removal.run()
        plan.run()
        disk.log.finish_sync(plan)
        assert disk.log.durable_offset == 5

    def test_the_directories_of_a_new_log_are_synced_with_it(self, disk: Disk) -> None:
        disk.append()
        directory = str(disk.directory)
        parent = os.path.dirname(directory)
        assert disk.log.begin_sync().paths == [directory, parent, os.path.dirname(parent)]
        disk.sync()
        assert disk.log.begin_sync().paths == []

    def test_the_directory_is_synced_again_after_a_roll(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append()
        disk.sync()
        plan = disk.log.begin_sync()
        disk.append(value_bytes=1000)
        plan.run()
        disk.log.finish_sync(plan)
        assert disk.log.begin_sync().paths == [str(disk.directory)]

    def test_a_sync_covers_what_was_there_when_it_began(self, disk: Disk) -> None:
        disk.append(count=3)
        plan = disk.log.begin_sync()
        disk.append(count=3)
        plan.run()
        disk.log.finish_sync(plan)
        assert disk.log.durable_offset == 3
        assert not disk.log.is_synced


def test_only_segment_files_are_taken_for_segments(disk: Disk) -> None:
    disk.append()
    disk.stop()
    for name in ("abc.log", "00000000000000000000.log.repaired", "0.17.damaged", "notes.txt"):
        (disk.directory / name).write_bytes(b"not a segment")
    assert disk.start().segment_count == 1


def test_a_reopened_log_goes_on_where_it_was(disk: Disk) -> None:
    for i in range(5):
        assert disk.append(count=2).base_offset == 2 * i
        assert isinstance(disk.restart() if i % 2 else disk.restart_after_kill(), PartitionLog)
    assert offsets(disk.log) == list(range(10))
    assert [read_header(data).base_offset for data in read_all(disk.log)] == [0, 2, 4, 6, 8]
