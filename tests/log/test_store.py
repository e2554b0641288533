"""The store of all logs: its directory, its jobs, and topics that come and go."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, ConfigError, ErrorCode, StorageError
from penstock.log import LogStore, PartitionLog
from penstock.log.checkpoint import FILE_NAME, Checkpoint
from penstock.log.store import ORPHAN_DIRECTORY, TRASH_DIRECTORY
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig
from tests.log.support import batch, damage, offsets, read_all, read_bytes

ORDERS = TopicPartition("orders", 0)
CLICKS = TopicPartition("clicks", 0)


class World:
    """A data directory, and the store that is open on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.store = self._open()

    def _open(self) -> LogStore:
        return LogStore(BrokerConfig(data_dir=str(self.directory)), self.clock)

    def open(self, partition: TopicPartition = ORDERS, **settings: Any) -> PartitionLog:
        return self.store.open(partition, TopicConfig(**settings))

    async def restart(self) -> None:
        await self.store.close()
        self.store = self._open()

    def saved(self, log: PartitionLog) -> Checkpoint | None:
        path = Path(log.directory) / FILE_NAME
        return Checkpoint.decode(path.read_bytes()) if path.exists() else None


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "data")
    yield world
    await world.store.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in a thread."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(condition):
            pass


class TestDirectory:
    async def test_two_brokers_cannot_share_one(self, world: World) -> None:
        with pytest.raises(ConfigError, match="in use by another broker"):
            LogStore(BrokerConfig(data_dir=str(world.directory)))

    async def test_it_is_free_again_after_a_close(self, tmp_path: Path) -> None:
        for _ in range(3):
            await LogStore(BrokerConfig(data_dir=str(tmp_path / "data"))).close()

    def test_one_that_cannot_be_made_is_said_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="cannot use the data directory"):
            LogStore(BrokerConfig(data_dir=str(tmp_path / "file" / "data")))

    async def test_logs_lie_under_topic_and_partition(self, world: World) -> None:
        world.open(TopicPartition("orders", 3)).append(batch())
        assert (world.directory / "orders" / "3" / f"{0:020d}.log").stat().st_size == len(batch())

    async def test_disk_usage_is_that_of_its_file_system(self, world: World) -> None:
        total, usable = world.store.disk_usage()
        assert 0 <= usable <= total


class TestOpen:
    async def test_what_was_written_is_there_after_a_restart(self, world: World) -> None:
        for count, partition in enumerate((ORDERS, CLICKS), start=1):
            log = world.open(partition)
            for _ in range(count):
                log.append(batch())
        await world.restart()
        assert world.open(ORDERS).log_end_offset == 1
        assert world.open(CLICKS).log_end_offset == 2

    async def test_a_clean_stop_leaves_nothing_to_scan(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = world.open(segment_bytes=1024)
        for _ in range(10):
            log.append(batch(value_bytes=900))
        await world.restart()
        with caplog.at_level(logging.INFO):
            log = world.open()
        assert "scanned_bytes" not in caplog.text
        assert log.durable_offset == 10

    async def test_a_damaged_log_is_a_storage_error_and_others_open(self, world: World) -> None:
        for partition in (ORDERS, CLICKS):
            log = world.open(partition)
            for _ in range(3):
                log.append(batch())
        await world.restart()
        (world.directory / "orders" / "0" / FILE_NAME).unlink()
        damage(world.directory / "orders" / "0" / f"{0:020d}.log", 70)
        with pytest.raises(StorageError, match="penstock log verify"):
            world.open(ORDERS)
        assert world.open(CLICKS).log_end_offset == 3

    async def test_a_directory_that_cannot_be_used_is_a_storage_error(self, world: World) -> None:
        (world.directory / "orders").write_text("not a directory")
        with pytest.raises(StorageError, match="cannot open"):
            world.open(ORDERS)

    async def test_a_log_that_fails_does_not_keep_the_others_from_closing(
        self, world: World
    ) -> None:
        failed, sound = world.open(ORDERS), world.open(CLICKS)
        for log in (failed, sound):
            log.append(batch())
        failed.fail("on fire")
        await world.restart()
        assert world.open(CLICKS).durable_offset == 1


class TestTopics:
    async def test_a_removed_topic_is_gone_at_once_and_its_files_soon(self, world: World) -> None:
        log = world.open()
        log.append(batch())
        world.store.remove_topic("orders")
        assert not (world.directory / "orders").exists()
        assert log.is_deleted
        for use in (lambda: log.append(batch()), lambda: log.read(0, 100)):
            with pytest.raises(ApiError) as refused:
                use()
            assert refused.value.code is ErrorCode.unknown_topic_or_partition
        await until(lambda: not os.listdir(world.directory / TRASH_DIRECTORY))

    async def test_the_same_name_can_be_used_again_at_once(self, world: World) -> None:
        for count in range(1, 4):
            log = world.open()
            assert log.log_end_offset == 0
            for _ in range(count):
                log.append(batch())
            assert offsets(log) == list(range(count))
            world.store.remove_topic("orders")

    async def test_other_topics_stay(self, world: World) -> None:
        world.open(ORDERS)
        clicks = world.open(CLICKS)
        world.store.remove_topic("orders")
        assert clicks.append(batch()).base_offset == 0

    async def test_a_topic_without_files_can_be_removed(self, world: World) -> None:
        world.store.remove_topic("never-there")

    async def test_what_is_in_a_new_topic_s_way_is_set_aside(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        (world.directory / "orders" / "0").mkdir(parents=True)
        (world.directory / "orders" / "0" / "precious").write_text("data")
        world.store.set_aside("orders")
        world.store.set_aside("clicks")
        assert not (world.directory / "orders").exists()
        (kept,) = (world.directory / ORPHAN_DIRECTORY).iterdir()
        assert (kept / "0" / "precious").read_text() == "data"
        assert "set aside" in caplog.text

    async def test_trash_of_a_stopped_broker_is_taken_out(self, world: World) -> None:
        old = world.directory / TRASH_DIRECTORY / "orders.1" / "0"
        old.mkdir(parents=True)
        (old / "big").write_bytes(bytes(1000))
        world.store.start()
        world.open(CLICKS)
        world.store.remove_topic("clicks")  # while the trash is being emptied
        await until(lambda: not os.listdir(world.directory / TRASH_DIRECTORY))


class TestRecoveryPoints:
    async def test_a_log_that_grew_much_gets_one_soon(self, world: World) -> None:
        log = world.open()
        for _ in range(5):
            log.append(batch(value_bytes=1_000_000))
        await world.store.tend()
        saved = world.saved(log)
        assert saved is not None
        assert saved.written.offset == 5

    async def test_one_that_grew_little_gets_one_within_ten_seconds(self, world: World) -> None:
        log = world.open()
        log.append(batch())
        await world.store.tend()
        world.clock.advance(9.9)
        await world.store.tend()
        assert world.saved(log) is None
        world.clock.advance(0.2)
        await world.store.tend()
        saved = world.saved(log)
        assert saved is not None
        assert saved.written.offset == 1

    async def test_a_quiet_log_is_left_alone(self, world: World) -> None:
        log = world.open()
        log.append(batch())
        for _ in range(2):
            await world.store.tend()
            world.clock.advance(11)
        await world.store.tend()
        path = Path(log.directory) / FILE_NAME
        before = path.stat().st_mtime_ns
        for _ in range(5):
            world.clock.advance(100)
            await world.store.tend()
        assert path.stat().st_mtime_ns == before

    async def test_one_that_cannot_be_written_is_tried_again_and_keeps_none_from_theirs(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders, clicks = world.open(ORDERS), world.open(CLICKS)
        obstacle = Path(orders.directory) / f"{FILE_NAME}.new"
        obstacle.mkdir()
        for log in (orders, clicks):
            log.append(batch())
        await world.store.tend()
        world.clock.advance(11)
        await world.store.tend()
        assert world.saved(orders) is None
        assert world.saved(clicks) is not None
        assert "no recovery point" in caplog.text
        obstacle.rmdir()
        await world.store.tend()
        assert world.saved(orders) is not None

    async def test_the_jobs_run_by_themselves(self, tmp_path: Path) -> None:
        config = BrokerConfig(data_dir=str(tmp_path), checkpoint_interval_ms=10)
        store = LogStore(config)
        store.start()
        log = store.open(ORDERS, TopicConfig())
        for _ in range(5):
            log.append(batch(value_bytes=1_000_000, timestamp=-1))
        await until(lambda: (tmp_path / "orders" / "0" / FILE_NAME).exists())
        await store.close()

    async def test_sealed_segments_are_synced_soon(self, world: World) -> None:
        log = world.open(segment_bytes=1024)
        for _ in range(3):
            log.append(batch(value_bytes=900))
        assert log.durable_offset == 0
        await world.store.tend()
        await world.store.group_commit.drained()
        assert log.durable_offset == 3


class TestFlush:
    async def test_nothing_is_synced_that_nobody_asked_for(self, world: World) -> None:
        log = world.open()
        log.append(batch())
        for _ in range(20):
            world.clock.advance(60)
            await world.store.tend()
        await world.store.group_commit.drained()
        assert log.durable_offset == 0
        assert not log.needs_sync_before_answer

    @pytest.mark.parametrize("flush_ms", [0, 5_000, 60_000])
    async def test_flush_ms_bounds_how_long_records_wait(self, world: World, flush_ms: int) -> None:
        """Recovery points in between, and a log that never rests, do not put it off."""
        log = world.open(flush_ms=flush_ms)
        waited_ms = 0
        log.append(batch())
        while log.durable_offset == 0:
            log.append(batch(value_bytes=1_000_000))
            await world.store.tend()
            await world.store.group_commit.drained()
            world.clock.advance(1)
            waited_ms += 1000
            assert waited_ms <= flush_ms + 2000
        assert waited_ms >= flush_ms

    async def test_flush_messages_asks_for_a_sync_before_the_answer(self, world: World) -> None:
        log = world.open(flush_messages=3)
        log.append(batch(2))
        assert not log.needs_sync_before_answer
        log.append(batch(1))
        assert log.needs_sync_before_answer
        await world.store.group_commit.until_durable(log, 3)
        assert not log.needs_sync_before_answer

    async def test_flush_messages_holds_without_answers_too(self, world: World) -> None:
        """With acks=0 nobody waits, and the records count all the same."""
        log = world.open(flush_messages=3)
        log.append(batch(3))
        await world.store.tend()
        await world.store.group_commit.drained()
        assert log.durable_offset == 3


class TestRetention:
    async def test_old_segments_and_their_files_go(self, world: World) -> None:
        log = world.open(segment_bytes=1024, retention_ms=10_000)
        log.append(batch(value_bytes=900))
        world.clock.advance(5)
        log.append(batch(value_bytes=900, timestamp=world.clock.wall_ms()))
        world.clock.advance(6)
        await world.store.apply_retention()
        names = sorted(name for name in os.listdir(log.directory) if name.startswith("0"))
        assert {name.split(".")[0] for name in names} == {f"{1:020d}"}
        assert offsets(log) == [1]

    async def test_where_the_log_starts_is_on_disk_before_files_go(self, world: World) -> None:
        log = world.open(segment_bytes=1024, retention_bytes=0)
        log.append(batch(value_bytes=900))
        await world.store.apply_retention()
        saved = world.saved(log)
        assert saved is not None
        assert saved.log_start_offset == 1

    async def test_idle_producers_are_forgotten(self, world: World) -> None:
        log = world.open()
        log.append(batch(producer_id=1, producer_epoch=0, base_sequence=0))
        world.clock.advance(86_401)
        await world.store.apply_retention()
        assert log.active_producers() == []

    async def test_a_log_whose_files_resist_does_not_stop_the_others(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        logs = [world.open(p, segment_bytes=1024, retention_bytes=0) for p in (ORDERS, CLICKS)]
        for log in logs:
            log.append(batch(value_bytes=900))
        blocked = Path(logs[0].directory) / f"{1:020d}.log"
        blocked.mkdir()  # where its next segment has to go
        await world.store.apply_retention()
        assert "retention failed" in caplog.text
        assert [log.log_start_offset for log in logs] == [0, 1]
        assert len(read_bytes(logs[0], 0)) > 900
        blocked.rmdir()
        await world.store.apply_retention()
        assert logs[0].log_start_offset == 1

    async def test_failed_logs_are_left_as_they_are(self, world: World) -> None:
        log = world.open(segment_bytes=1024, retention_bytes=0)
        log.append(batch(value_bytes=900))
        log.fail("on fire")
        await world.store.apply_retention()
        assert (Path(log.directory) / f"{0:020d}.log").exists()


class TestDeleteRecords:
    async def test_it_is_durable_on_return(self, world: World) -> None:
        log = world.open()
        for _ in range(5):
            log.append(batch())
        assert await world.store.delete_records_before(log, 3) == 3
        saved = world.saved(log)
        assert saved is not None
        assert saved.log_start_offset == 3
        log.abandon()
        assert world.open().log_start_offset == 3

    async def test_a_disk_that_will_not_have_it_is_an_error(self, world: World) -> None:
        log = world.open()
        log.append(batch())
        (Path(log.directory) / f"{FILE_NAME}.new").mkdir()
        with pytest.raises(StorageError, match="cannot write"):
            await world.store.delete_records_before(log, 1)

    async def test_a_failed_log_refuses(self, world: World) -> None:
        log = world.open()
        log.append(batch())
        log.fail("on fire")
        with pytest.raises(StorageError, match="on fire"):
            await world.store.delete_records_before(log, 1)


class TestClose:
    async def test_everything_is_on_disk(self, world: World) -> None:
        log = world.open(segment_bytes=1024)
        written = []
        for _ in range(20):
            data = batch(value_bytes=200)
            log.append(data)
            written.append(bytes(data))
        await world.restart()
        saved = world.saved(log)
        assert saved is not None
        assert saved.written == saved.durable
        assert saved.durable.offset == 20
        assert read_all(world.open()) == written

    async def test_no_older_recovery_point_comes_after_the_last(self, world: World) -> None:
        """A job that is writing one is waited for. A pipe in its way keeps it from getting done."""
        log, other = world.open(ORDERS), world.open(CLICKS)
        path = Path(log.directory) / FILE_NAME
        log.append(batch())
        await world.store.tend()
        world.clock.advance(11)
        os.mkfifo(f"{path}.new")
        tending = asyncio.create_task(world.store.tend())
        await asyncio.sleep(0)
        log.append(batch())
        restarting = asyncio.create_task(world.restart())
        for _ in range(5):  # time enough for a sync
            await world.store.group_commit.until_durable(other, other.append(batch()).end_offset)
        was_closed = log.is_synced
        await asyncio.to_thread(Path(f"{path}.new").read_bytes)
        await asyncio.gather(tending, restarting)
        assert not was_closed, "while its recovery point was being written"
        assert path.is_file()
        saved = world.saved(log)
        assert saved is not None
        assert saved.written.offset == 2

    async def test_those_who_wait_for_a_sync_are_answered(self, world: World) -> None:
        log = world.open()
        waiting = [
            world.store.group_commit.until_durable(log, log.append(batch()).end_offset)
            for _ in range(50)
        ]
        await world.restart()
        assert all(future.done() and future.exception() is None for future in waiting)
