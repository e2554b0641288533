"""Verify says what is wrong and changes nothing; repair mends it and throws nothing away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import CorruptLogError, StorageError
from penstock.log.inspect import batches, find_logs, repair, size_of, verify
from penstock.log.scan import Damage
from penstock.model import TopicPartition
from tests.log.support import Disk, append_bytes, cut, damage, offsets, read_all, read_bytes, zero

MakeDisk = Callable[..., Disk]


@pytest.fixture
def stopped(make_disk: MakeDisk) -> Disk:
    """100 batches of 1 record in segments of 11, cleanly stopped."""
    disk = make_disk(segment_bytes=2000, index_interval_bytes=300)
    disk.append_many(100, value_bytes=100)
    disk.stop()
    assert disk.segments()[:3] == [0, 11, 22]
    return disk


def contents(disk: Disk) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in disk.directory.iterdir()}


def batch_bytes(disk: Disk) -> int:
    return disk.segment(0).stat().st_size // 11


class TestVerify:
    def test_a_sound_log_has_no_problems(self, stopped: Disk) -> None:
        report = verify(str(stopped.directory))
        assert report.is_sound
        assert (report.start_offset, report.end_offset) == (0, 100)
        assert report.batches == report.records == 100
        assert report.segments == len(stopped.segments())
        assert report.bytes == size_of(str(stopped.directory))

    def test_progress_adds_up(self, stopped: Disk) -> None:
        seen: list[int] = []
        verify(str(stopped.directory), seen.append)
        assert sum(seen) == size_of(str(stopped.directory))

    @pytest.mark.parametrize("at", [16, 70, 8])
    def test_damage_is_found_where_it_is(self, stopped: Disk, at: int) -> None:
        size = batch_bytes(stopped)
        damage(stopped.segment(11), 3 * size + at, 0x40)
        before = contents(stopped)
        report = verify(str(stopped.directory))
        (problem,) = [item for item in report.problems if not item.is_index]
        assert problem.path == str(stopped.segment(11))
        assert (problem.position, problem.end) == (3 * size, 4 * size)
        assert not problem.is_torn_tail
        assert contents(stopped) == before, "nothing is changed"

    @pytest.mark.parametrize("bit", range(0, 64, 7))
    def test_a_wrong_offset_is_found_where_it_is(self, stopped: Disk, bit: int) -> None:
        """The CRC does not cover it; the batches around it tell."""
        size = batch_bytes(stopped)
        damage(stopped.segment(11), 3 * size + 7 - bit // 8, 1 << bit % 8)
        (problem,) = verify(str(stopped.directory)).problems[:1]
        if 14 ^ 1 << bit != 15:  # else it looks as if the next one were wrong
            assert (problem.position, problem.end) == (3 * size, 4 * size)
        repair(str(stopped.directory))
        found = offsets(stopped.start())
        assert len(found) == 99
        assert found == sorted(found)

    def test_a_torn_tail_is_told_from_damage(self, stopped: Disk) -> None:
        append_bytes(stopped.segment(stopped.segments()[-1]), b"half a batch")
        (problem,) = verify(str(stopped.directory)).problems
        assert problem.is_torn_tail

    def test_a_file_shorter_than_the_recovery_point_is_a_problem(self, stopped: Disk) -> None:
        last = stopped.segments()[-1]
        size = stopped.segment(last).stat().st_size
        cut(stopped.segment(last), size - batch_bytes(stopped))
        (problem,) = verify(str(stopped.directory)).problems
        assert f"{size} bytes" in problem.reason

    def test_a_wrong_index_entry_is_a_problem_of_the_index(self, stopped: Disk) -> None:
        damage(stopped.index(0), 7)
        (problem,) = verify(str(stopped.directory)).problems
        assert problem.is_index

    def test_every_batch_and_damage_is_listed_in_order(self, stopped: Disk) -> None:
        zero(stopped.segment(0), batch_bytes(stopped), batch_bytes(stopped))
        found = [item for _, item in batches(str(stopped.directory))]
        assert isinstance(found[1], Damage)
        assert len(found) == 100

    def test_logs_are_found_in_a_data_directory(self, tmp_path: Path) -> None:
        for name in ("b/0", "a/1", "a/0", "@penstock/0", "a/notes"):
            (tmp_path / name).mkdir(parents=True)
        assert [partition for partition, _ in find_logs(str(tmp_path))] == [
            TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0),
        ]  # fmt: skip


class TestRepair:
    def test_a_sound_log_is_not_touched(self, stopped: Disk) -> None:
        before = contents(stopped)
        assert repair(str(stopped.directory)).is_sound
        assert contents(stopped) == before

    def test_damage_is_cut_out_and_kept(self, stopped: Disk) -> None:
        size = batch_bytes(stopped)
        damage(stopped.segment(11), 3 * size + 70)
        lost = stopped.segment(11).read_bytes()[3 * size : 4 * size]
        with pytest.raises(StorageError):
            read_all(stopped.start())
        stopped.kill()
        report = repair(str(stopped.directory))
        (kept,) = report.kept
        assert Path(kept).read_bytes() == lost
        assert verify(str(stopped.directory)).is_sound
        log = stopped.start()
        assert offsets(log) == [i for i in range(100) if i != 14]
        assert read_bytes(log, 14, 1)[:8] == (15).to_bytes(8, "big")

    def test_a_mended_log_opens_without_a_scan(self, stopped: Disk) -> None:
        damage(stopped.segment(11), 70)
        repair(str(stopped.directory))
        before = stopped.saved()
        assert before.written == before.durable
        assert stopped.start() not in stopped.dirty

    def test_it_serves_after_damage_in_what_recovery_scans(self, make_disk: MakeDisk) -> None:
        disk = make_disk()
        written = disk.append_many(10)
        disk.kill()
        damage(disk.segment(0), 4 * len(written[0]) + 70)
        with pytest.raises(CorruptLogError):
            disk.start()
        repair(str(disk.directory))
        assert offsets(disk.start()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert disk.append().base_offset == 10

    def test_the_end_of_a_sealed_segment_may_be_lost(self, stopped: Disk) -> None:
        """The gap between two segments is known to the mended log."""
        size = stopped.segment(0).stat().st_size
        cut(stopped.segment(0), size - 10)
        with pytest.raises(StorageError):
            read_all(stopped.start())
        stopped.kill()
        repair(str(stopped.directory))
        for _ in range(3):
            assert offsets(stopped.start()) == [i for i in range(100) if i != 10]
            stopped.stop()

    def test_offsets_lost_from_the_end_are_never_used_again(self, stopped: Disk) -> None:
        last = stopped.segments()[-1]
        cut(stopped.segment(last), stopped.segment(last).stat().st_size - 10)
        with pytest.raises(CorruptLogError):
            stopped.start()
        repair(str(stopped.directory))
        log = stopped.start()
        assert offsets(log) == list(range(99))
        assert stopped.append().base_offset == 100
        assert offsets(stopped.restart()) == [*range(99), 100]

    def test_deleted_records_stay_deleted(self, stopped: Disk) -> None:
        stopped.start()
        stopped.log.delete_records_before(40)
        stopped.stop()
        damage(stopped.segment(55), 70)
        repair(str(stopped.directory))
        assert stopped.start().log_start_offset == 40

    def test_bad_indexes_are_made_anew(self, stopped: Disk) -> None:
        damage(stopped.index(0), 7)
        repair(str(stopped.directory))
        assert verify(str(stopped.directory)).is_sound
        assert offsets(stopped.start()) == list(range(100))

    def test_two_logs_in_one_directory_are_not_guessed_apart(self, stopped: Disk) -> None:
        stopped.segment(5).write_bytes(stopped.segment(0).read_bytes())
        before = contents(stopped)
        with pytest.raises(StorageError, match="two logs were mixed"):
            repair(str(stopped.directory))
        assert contents(stopped) == before
