"""The rules of changing and deleting topics, and of starting again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import LogStore
from tests.log.support import power_cut

if TYPE_CHECKING:
    from tests.topics.conftest import World


class TestGrow:
    async def test_new_partitions_follow_the_old(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 2)
        any_world.append("t", 1, 1_000)
        await any_world.catalog.grow(topic, 5)
        assert [p.index for p in topic.partitions] == [0, 1, 2, 3, 4]
        assert [p.log.log_end_offset for p in topic.partitions] == [0, 1, 0, 0, 0]

    @pytest.mark.parametrize("count", [2, 1, 0, -1, 100_001])
    async def test_a_topic_only_grows(self, world: World, count: int) -> None:
        topic = await world.catalog.create("t", 2)
        with pytest.raises(ApiError) as caught:
            await world.catalog.grow(topic, count)
        assert caught.value.code is ErrorCode.invalid_partitions

    async def test_validate_only_changes_nothing(self, world: World) -> None:
        topic = await world.catalog.create("t", 2)
        await world.catalog.grow(topic, 5, validate_only=True)
        assert len(topic.partitions) == 2

    @pytest.mark.parametrize("assignments", [[[7]], [[7], [8]], [[7], []], []])
    async def test_assignments_place_each_new_partition_here(
        self, world: World, assignments: list[list[int]]
    ) -> None:
        topic = await world.catalog.create("t", 1)
        with pytest.raises(ApiError) as caught:
            await world.catalog.grow(topic, 3, assignments=assignments)
        assert caught.value.code is ErrorCode.invalid_replica_assignment
        await world.catalog.grow(topic, 3, assignments=[[7], [7]])

    async def test_of_growths_at_once_the_smaller_may_come_too_late(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 1)
        await asyncio.gather(
            *(any_world.catalog.grow(topic, n) for n in (4, 3, 6, 5)), return_exceptions=True
        )
        assert len(topic.partitions) == 6
        assert [p.index for p in topic.partitions] == list(range(6))


class TestSettings:
    async def test_a_change_reaches_open_logs_at_once(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 2)
        await any_world.catalog.set_overrides(topic, {"max.message.bytes": "2000"})
        assert topic.config.max_message_bytes == 2000
        assert [p.log.config.max_message_bytes for p in topic.partitions] == [2000, 2000]

    async def test_what_is_not_given_again_is_the_default_again(self, world: World) -> None:
        topic = await world.catalog.create("t", 1, {"retention.ms": "5", "segment.ms": "6"})
        await world.catalog.set_overrides(topic, {"segment.ms": "7"})
        assert topic.overrides == {"segment.ms": "7"}
        assert topic.config.retention_ms == 604_800_000

    async def test_a_bad_value_changes_nothing(self, world: World) -> None:
        topic = await world.catalog.create("t", 1, {"retention.ms": "5"})
        with pytest.raises(ApiError, match=r"retention\.ms") as caught:
            await world.catalog.set_overrides(topic, {"retention.ms": "-2"})
        assert caught.value.code is ErrorCode.invalid_config
        assert topic.config.retention_ms == 5

    async def test_changes_at_once_are_all_kept(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 1)

        async def add(name: str) -> None:
            def change(overrides: Mapping[str, str]) -> dict[str, str]:
                return {**overrides, name: "1234"}

            await any_world.catalog.change_overrides(topic, change)

        await asyncio.gather(add("retention.ms"), add("segment.ms"), add("flush.ms"))
        assert topic.overrides == dict.fromkeys(("retention.ms", "segment.ms", "flush.ms"), "1234")


class TestDelete:
    async def test_nothing_of_it_stays(self, any_world: World, tmp_path: Path) -> None:
        topic = await any_world.catalog.create("t", 2, {"retention.ms": "5"})
        await any_world.catalog.delete(topic)
        assert any_world.catalog.get("t") is None
        assert any_world.catalog.get_by_id(topic.id) is None
        assert (await any_world.store.get_prefix("topics/")).entries == ()
        assert not (tmp_path / "t").exists()

    async def test_the_name_is_free_for_another_topic(self, any_world: World) -> None:
        old = await any_world.catalog.create("t", 2)
        any_world.append("t", 0, 1_000)
        await any_world.catalog.delete(old)
        new = await any_world.catalog.create("t", 1)
        assert new.id != old.id
        assert new.partitions[0].log.log_end_offset == 0

    async def test_the_longest_name_is_free_again_as_well(
        self, any_world: World, tmp_path: Path
    ) -> None:
        name = "n" * 249
        await any_world.catalog.delete(await any_world.catalog.create(name, 1))
        assert not (tmp_path / name).exists()
        assert (await any_world.store.get_prefix("topics/")).entries == ()
        await any_world.catalog.create(name, 1)

    async def test_listeners_are_told_before_it_is_answered(self, world: World) -> None:
        told: list[str] = []

        async def tell(name: str) -> None:
            await asyncio.sleep(0)
            told.append(name)

        world.catalog.on_delete(told.append)
        world.catalog.on_delete(tell)
        await world.catalog.delete(await world.catalog.create("t", 1))
        assert told == ["t", "t"]

    async def test_a_listener_that_fails_is_told_again_before_the_name_is_used_again(
        self, any_world: World, tmp_path: Path
    ) -> None:
        told: list[str] = []
        failures = [ApiError(ErrorCode.coordinator_not_available, "the disk is full")] * 2

        async def forget_offsets(_: str) -> None:
            if failures:
                raise failures.pop()
            told.append("offsets")

        any_world.catalog.on_delete(forget_offsets)
        any_world.catalog.on_delete(lambda _: told.append("others"))
        await any_world.catalog.delete(await any_world.catalog.create("t", 1))
        assert any_world.catalog.get("t") is None
        assert told == ["others"]
        assert not (tmp_path / "t").exists()

        with pytest.raises(StorageError, match="still being deleted"):
            await any_world.catalog.create("t", 1)
        assert told == ["others", "others"]
        await any_world.catalog.create("t", 1)
        assert told == ["others", "others", "others", "offsets"]

    async def test_a_topic_is_deleted_once(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 1)
        results = await asyncio.gather(
            *(any_world.catalog.delete(topic) for _ in range(3)), return_exceptions=True
        )
        codes = [result.code for result in results if isinstance(result, ApiError)]
        assert codes == [ErrorCode.unknown_topic_or_partition] * 2

    async def test_a_deleted_topic_can_not_be_changed(self, world: World) -> None:
        topic = await world.catalog.create("t", 1)
        await world.catalog.delete(topic)
        await world.catalog.create("t", 1)
        with pytest.raises(ApiError) as caught:
            await world.catalog.grow(topic, 2)
        assert caught.value.code is ErrorCode.unknown_topic_or_partition


class StickyFiles(LogStore):
    """Can not rename anything away, as on a file system gone read-only."""

    def remove_topic(self, topic: str) -> None:
        raise OSError(30, "read-only file system")


class TestRestart:
    async def test_everything_is_as_it_was(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 2, {"retention.ms": "5000"})
        any_world.append("t", 1, 1_000, 2_000)
        await any_world.catalog.grow(topic, 3)
        await any_world.catalog.create("u", 1)
        await any_world.restart()
        again = any_world.catalog.get("t")
        assert again is not None
        assert again.id == topic.id
        assert again.overrides == {"retention.ms": "5000"}
        assert [p.log.log_end_offset for p in again.partitions] == [0, 2, 0]
        assert [p.log.config.retention_ms for p in again.partitions] == [5000] * 3
        assert any_world.catalog.get("u") is not None

    async def test_deleted_topics_stay_deleted(self, any_world: World) -> None:
        await any_world.catalog.delete(await any_world.catalog.create("t", 1))
        await any_world.restart()
        assert any_world.catalog.all() == []

    async def test_a_deletion_that_was_cut_off_is_finished(
        self, any_world: World, tmp_path: Path
    ) -> None:
        await any_world.stop()
        any_world.open_logs = StickyFiles
        await any_world.start()
        topic = await any_world.catalog.create("t", 1)
        any_world.append("t", 0, 1_000)
        await any_world.catalog.delete(topic)
        assert any_world.catalog.get("t") is None
        assert (tmp_path / "t").exists()
        await any_world.stop()
        any_world.open_logs = LogStore
        await any_world.start()
        assert any_world.catalog.get("t") is None
        assert not (tmp_path / "t").exists()
        new = await any_world.catalog.create("t", 1)
        assert new.partitions[0].log.log_end_offset == 0

    async def test_leader_epochs_come_from_the_store(self, any_world: World) -> None:
        await any_world.catalog.create("t", 2)
        await any_world.store.put("partitions/t/1", b'{"leader_epoch":4}')
        await any_world.restart()
        assert any_world.catalog.partition("t", 0).leader_epoch == 0
        assert any_world.catalog.partition("t", 1).leader_epoch == 4
        assert any_world.catalog.partition("t", 1).log.leader_epoch == 4

    async def test_a_stop_begins_no_leader_epoch(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 2)
        await any_world.restart()
        await any_world.restart()
        topic = any_world.catalog.require("t")
        assert [partition.leader_epoch for partition in topic.partitions] == [0, 0]

    async def test_a_power_cut_begins_one_for_its_offsets_may_be_used_again(
        self, any_world: World, tmp_path: Path
    ) -> None:
        """A consumer that read what is lost is told where it parts from the log, as by Kafka."""
        await any_world.catalog.create("t", 200)
        any_world.append("t", 1, 1_000, 2_000)
        for epoch in (1, 2):
            await any_world.stop()
            power_cut(tmp_path)
            await any_world.start()
            topic = any_world.catalog.require("t")
            assert {partition.leader_epoch for partition in topic.partitions} == {epoch}
            with pytest.raises(ApiError) as caught:
                topic.partitions[1].check_leader_epoch(epoch - 1)
            assert caught.value.code is ErrorCode.fenced_leader_epoch
            any_world.append("t", 1, 3_000)
        log = any_world.catalog.partition("t", 1).log
        assert [log.end_offset_for_epoch(epoch) for epoch in range(3)] == [(0, 2), (1, 3), (2, 4)]
        await any_world.restart()
        assert any_world.catalog.partition("t", 1).leader_epoch == 2
        await any_world.catalog.delete(any_world.catalog.require("t"))
        assert (await any_world.catalog.create("t", 2)).partitions[1].leader_epoch == 0

    async def test_a_setting_that_is_no_longer_legal_falls_to_its_default(
        self, world: World
    ) -> None:
        topic = await world.catalog.create("t", 1, {"segment.ms": "60000"})
        value = b'{"id":"%s","partitions":1,"overrides":{"gone":"1","segment.ms":"60000"}}'
        await world.store.put("topics/t", value % str(topic.id).encode())
        await world.restart()
        again = world.catalog.get("t")
        assert again is not None
        assert again.config.segment_ms == 60_000


class TestDamage:
    async def damage(self, world: World, directory: Path) -> None:
        """Three topics' worth of data; the middle batch of t-1 is damaged while the broker is down."""
        await world.catalog.create("t", 3)
        await world.catalog.create("u", 1)
        for name, partition in (("t", 0), ("t", 1), ("t", 2), ("u", 0)):
            for timestamp in (1_000, 2_000, 3_000):
                world.append(name, partition, timestamp)
        await world.stop()
        segment = directory / "t" / "1" / f"{0:020d}.log"
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0xFF
        segment.write_bytes(data)
        os.remove(directory / "t" / "1" / "checkpoint")
        await world.start()

    async def test_one_damaged_partition_does_not_stop_the_others(
        self, any_world: World, tmp_path: Path
    ) -> None:
        await self.damage(any_world, tmp_path)
        topic = any_world.catalog.get("t")
        assert topic is not None
        assert [p.failure is None for p in topic.partitions] == [True, False, True]
        assert topic.partitions[0].log.log_end_offset == 3
        assert any_world.catalog.partition("u", 0).log.log_end_offset == 3
        for _ in range(2):
            with pytest.raises(StorageError, match="penstock log"):
                _ = topic.partitions[1].log

    async def test_its_topic_can_still_be_changed_and_deleted(
        self, world: World, tmp_path: Path
    ) -> None:
        await self.damage(world, tmp_path)
        topic = world.catalog.get("t")
        assert topic is not None
        await world.catalog.set_overrides(topic, {"retention.ms": "5000"})
        await world.catalog.grow(topic, 4)
        assert [p.failure is None for p in topic.partitions] == [True, False, True, True]
        await world.catalog.delete(topic)
        assert len((await world.catalog.create("t", 1)).partitions) == 1
