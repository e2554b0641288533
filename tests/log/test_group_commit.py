"""Group commit: many who wait share few syncs, and nobody is answered before the disk was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log.checkpoint import SYNC_FAILED
from penstock.log.group_commit import GroupCommit
from tests.log.executors import HeldExecutor
from tests.log.support import Disk, batch, cut, offsets, read_bytes

MakeDisk = Callable[..., Disk]


@pytest.fixture
def held() -> HeldExecutor:
    return HeldExecutor()


@pytest.fixture
def commit(held: HeldExecutor) -> GroupCommit:
    return GroupCommit(held)


async def settle() -> None:
    """Let callbacks run that are ready."""
    for _ in range(5):
        await asyncio.sleep(0)


class TestSharing:
    async def test_those_who_come_during_a_sync_share_the_next(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        waiting = []
        for _ in range(100):
            appended = disk.append()
            waiting.append(commit.until_durable(disk.log, appended.end_offset))
        assert len(held.waiting) == 1, "one sync at a time for a log"
        held.run()
        await settle()
        assert [future.done() for future in waiting] == [True] + [False] * 99
        held.run()
        await settle()
        assert all(future.done() for future in waiting)
        assert commit.sync_count == 2
        assert not held.waiting

    async def test_a_burst_on_a_real_disk_takes_few_syncs(self, disk: Disk) -> None:
        with ThreadPoolExecutor(2) as pool:
            commit = GroupCommit(pool)
            waiting = [commit.until_durable(disk.log, disk.append().end_offset) for _ in range(500)]
            await asyncio.gather(*waiting)
            assert commit.sync_count == 2
            assert disk.log.durable_offset == 500

    async def test_what_is_durable_already_waits_for_nothing(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        disk.append(count=5)
        disk.sync()
        assert commit.until_durable(disk.log, 3).done()
        assert commit.until_durable(disk.log, 5).done()
        assert not held.waiting

    async def test_logs_are_synced_beside_each_other(
        self, make_disk: MakeDisk, tmp_path: object, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        first = make_disk()
        second = Disk(first.directory.with_name("1"))
        for disk in (first, second):
            disk.append()
            commit.until_durable(disk.log, 1)
        assert len(held.waiting) == 2

    async def test_someone_who_stopped_waiting_does_not_matter(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        disk.append()
        gone = commit.until_durable(disk.log, 1)
        stays = commit.until_durable(disk.log, 1)
        gone.cancel()
        held.run()
        await settle()
        assert stays.done()
        assert disk.log.durable_offset == 1


class TestNeverBefore:
    async def test_the_answer_waits_for_the_disk(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        appended = disk.append()
        waiting = commit.until_durable(disk.log, appended.end_offset)
        await settle()
        assert not waiting.done()
        assert disk.log.durable_offset == 0
        held.run()
        await settle()
        assert waiting.done()
        assert disk.log.durable_offset == 1

    async def test_a_sync_that_began_before_the_append_does_not_count(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        commit.until_durable(disk.log, disk.append().end_offset)
        late = commit.until_durable(disk.log, disk.append().end_offset)
        held.run()
        await settle()
        assert not late.done()
        assert disk.log.durable_offset == 1
        held.run()
        await settle()
        assert late.done()

    async def test_a_repeated_batch_waits_for_the_first_one_s_sync(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        more = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        disk.log.append(batch(1, **more))  # type: ignore[arg-type]
        again = disk.log.append(batch(1, **more))  # type: ignore[arg-type]
        waiting = commit.until_durable(disk.log, again.end_offset)
        await settle()
        assert not waiting.done()
        held.run()
        await settle()
        assert waiting.done()

    async def test_segments_sealed_meanwhile_are_part_of_it(
        self, make_disk: MakeDisk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        disk = make_disk(segment_bytes=1024)
        disk.append_many(4, value_bytes=900)
        waiting = commit.until_durable(disk.log, 4)
        assert disk.log.has_unsynced_segments
        held.run()
        await settle()
        assert waiting.done()
        assert not disk.log.has_unsynced_segments


class TestFailure:
    async def test_all_who_wait_are_told(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        waiting = [commit.until_durable(disk.log, disk.append().end_offset) for _ in range(3)]
        held.fail()
        await settle()
        errors = [future.exception() for future in waiting]
        assert all(isinstance(error, StorageError) for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert disk.log.durable_offset == 0

    async def test_the_log_is_out_of_service_for_good(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        """Another sync would report success for what the first one lost."""
        waiting = commit.until_durable(disk.log, disk.append().end_offset)
        held.fail()
        await settle()
        assert isinstance(waiting.exception(), StorageError)
        with pytest.raises(StorageError, match="cannot sync"):
            disk.append()
        with pytest.raises(StorageError, match="cannot sync"):
            read_bytes(disk.log, 0)
        later = commit.until_durable(disk.log, 1)
        assert isinstance(later.exception(), StorageError)

    async def test_other_logs_go_on(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        other = Disk(disk.directory.with_name("1"))
        failing = commit.until_durable(disk.log, disk.append().end_offset)
        going_on = commit.until_durable(other.log, other.append().end_offset)
        held.fail()
        held.run()
        await settle()
        assert failing.exception() is not None
        assert going_on.exception() is None

    async def test_the_next_start_believes_the_disk_from_the_last_sync_on(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        written = disk.append_many(2)
        disk.sync()
        disk.append_many(2)
        disk.checkpoint()
        waiting = commit.until_durable(disk.log, disk.append().end_offset)
        held.fail()
        await settle()
        assert waiting.exception() is not None
        held.run()  # the note for the next start
        assert disk.saved().boot == SYNC_FAILED
        assert disk.saved().start_point().offset == 2
        disk.kill()
        cut(disk.segment(0), sum(map(len, written)))  # what the disk had not got
        assert offsets(disk.start()) == [0, 1]
        assert disk.append().base_offset == 2

    async def test_a_recovery_point_that_was_on_its_way_does_not_take_that_back(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        """It believes the system's memory, as it did when it was made."""
        disk.append_many(2)
        disk.sync()
        disk.append_many(2)
        delayed = disk.log.begin_checkpoint()
        waiting = commit.until_durable(disk.log, disk.append().end_offset)
        held.fail()
        await settle()
        assert waiting.exception() is not None
        held.run()  # the note for the next start
        delayed.run()
        assert disk.saved().boot == SYNC_FAILED

    async def test_a_topic_deleted_during_a_sync_is_no_failure_of_the_disk(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit, caplog: pytest.LogCaptureFixture
    ) -> None:
        waiting = [commit.until_durable(disk.log, disk.append().end_offset) for _ in range(2)]
        disk.log.mark_deleted()
        held.run()
        await settle()
        assert waiting[0].exception() is None
        error = waiting[1].exception()
        assert isinstance(error, ApiError)
        assert error.code is ErrorCode.unknown_topic_or_partition
        assert "sync failed" not in caplog.text

    async def test_drained_waits_for_all(
        self, disk: Disk, held: HeldExecutor, commit: GroupCommit
    ) -> None:
        for _ in range(2):
            commit.until_durable(disk.log, disk.append().end_offset)
        draining = asyncio.ensure_future(commit.drained())
        await settle()
        held.run()
        await settle()
        assert not draining.done()
        held.run()
        await settle()
        assert draining.done()
