"""The rules of creating topics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.broker.catalog import AUTO_CREATIONS_AT_ONCE, AUTO_CREATIONS_MAX
from penstock.broker.topics import Topic, TopicCatalog
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import LogStore, PartitionLog
from penstock.metadata.errors import StoreUnavailable
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import CommitResult, Transaction
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig

if TYPE_CHECKING:
    from tests.topics.conftest import World


def codes(results: Iterable[Topic | BaseException]) -> list[ErrorCode]:
    return [result.code for result in results if isinstance(result, ApiError)]


class TestCreate:
    async def test_a_new_topic_is_found_by_name_and_by_id(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 3)
        assert any_world.catalog.get("t") is topic
        assert any_world.catalog.get_by_id(topic.id) is topic
        assert any_world.catalog.all() == [topic]

    async def test_its_partitions_are_open_and_empty(self, any_world: World) -> None:
        topic = await any_world.catalog.create("t", 3)
        assert [p.index for p in topic.partitions] == [0, 1, 2]
        assert [p.log.log_end_offset for p in topic.partitions] == [0, 0, 0]
        assert [p.leader_epoch for p in topic.partitions] == [0, 0, 0]

    async def test_the_default_partition_count_is_the_brokers(self, world: World) -> None:
        topic = await world.catalog.create("t")
        assert len(topic.partitions) == world.config.default_partitions

    async def test_its_settings_reach_its_logs(self, world: World) -> None:
        topic = await world.catalog.create("t", 1, {"retention.ms": "5000"})
        assert topic.config.retention_ms == 5000
        assert topic.partitions[0].log.config.retention_ms == 5000

    async def test_it_is_in_the_store_when_it_is_answered(self, any_world: World) -> None:
        await any_world.catalog.create("t", 1)
        assert await any_world.store.get("topics/t") is not None

    async def test_a_thousand_partitions_are_one_write(self, world: World) -> None:
        before = (await world.store.get_prefix("")).revision
        topic = await world.catalog.create("t", 1_000)
        assert len(topic.partitions) == 1_000
        assert (await world.store.get_prefix("")).revision == before + 1

    async def test_validate_only_changes_nothing(self, world: World) -> None:
        topic = await world.catalog.create("t", 4, {"segment.ms": "60000"}, validate_only=True)
        assert topic.record.partition_count == 4
        assert topic.config.segment_ms == 60_000
        assert world.catalog.get("t") is None
        assert (await world.store.get_prefix("topics/")).entries == ()

    async def test_a_directory_that_is_in_the_way_is_set_aside(
        self, world: World, tmp_path: Path
    ) -> None:
        (tmp_path / "t" / "0").mkdir(parents=True)
        (tmp_path / "t" / "0" / "precious").write_text("kept")
        await world.catalog.create("t", 1)
        assert [p.read_text() for p in tmp_path.glob("@orphaned/*/0/precious")] == ["kept"]


class TestRefusal:
    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n", "@own"])
    async def test_an_illegal_name(self, world: World, name: str) -> None:
        with pytest.raises(ApiError) as caught:
            await world.catalog.create(name, 1)
        assert caught.value.code is ErrorCode.invalid_topic_exception
        assert caught.value.message

    @pytest.mark.parametrize("name", ["a", "x" * 249, "A.b_c-9", "...", "__consumer_offsets"])
    async def test_but_not_a_legal_one(self, world: World, name: str) -> None:
        assert (await world.catalog.create(name, 1)).name == name

    async def test_a_name_that_is_taken(self, world: World) -> None:
        await world.catalog.create("t", 1)
        with pytest.raises(ApiError) as caught:
            await world.catalog.create("t", 1)
        assert caught.value.code is ErrorCode.topic_already_exists

    async def test_names_that_differ_in_dots_and_underscores_only(self, world: World) -> None:
        await world.catalog.create("a.b_c", 1)
        with pytest.raises(ApiError, match=r"a\.b_c") as caught:
            await world.catalog.create("a_b.c", 1)
        assert caught.value.code is ErrorCode.invalid_topic_exception

    @pytest.mark.parametrize("count", [0, -2, 100_001])
    async def test_a_partition_count_out_of_range(self, world: World, count: int) -> None:
        with pytest.raises(ApiError) as caught:
            await world.catalog.create("t", count)
        assert caught.value.code is ErrorCode.invalid_partitions

    @pytest.mark.parametrize("factor", [0, -2, 2, 3])
    async def test_more_replicas_than_brokers(self, world: World, factor: int) -> None:
        with pytest.raises(ApiError) as caught:
            await world.catalog.create("t", 1, replication_factor=factor)
        assert caught.value.code is ErrorCode.invalid_replication_factor

    @pytest.mark.parametrize(
        "assignments", [{0: [1]}, {0: []}, {0: [7, 7]}, {1: [7]}, {0: [7], 2: [7]}, {0: [7, 8]}]
    )
    async def test_an_assignment_to_other_brokers(
        self, world: World, assignments: dict[int, list[int]]
    ) -> None:
        with pytest.raises(ApiError) as caught:
            await world.catalog.create("t", assignments=assignments)
        assert caught.value.code is ErrorCode.invalid_replica_assignment

    async def test_but_not_an_assignment_to_this_one(self, world: World) -> None:
        topic = await world.catalog.create("t", assignments={0: [7], 1: [7]})
        assert len(topic.partitions) == 2

    @pytest.mark.parametrize(
        "overrides",
        [
            {"retention.ms": "soon"},
            {"no.such": "1"},
            {"segment.bytes": "-1"},
            {"unclean.leader.election.enable": "yes"},
        ],
    )
    async def test_a_bad_setting(self, world: World, overrides: dict[str, str]) -> None:
        with pytest.raises(ApiError, match=re.escape(next(iter(overrides)))) as caught:
            await world.catalog.create("t", 1, overrides)
        assert caught.value.code is ErrorCode.invalid_config

    async def test_leaves_no_trace(self, world: World) -> None:
        for name, count in (("t", 0), ("a/b", 1)):
            with pytest.raises(ApiError):
                await world.catalog.create(name, count)
        assert (await world.store.get_prefix("topics/")).entries == ()
        assert world.catalog.all() == []


class TestConcurrency:
    async def test_of_creations_of_one_name_exactly_one_wins(self, any_world: World) -> None:
        results = await asyncio.gather(
            *(any_world.catalog.create("t", 2) for _ in range(20)), return_exceptions=True
        )
        assert codes(results) == [ErrorCode.topic_already_exists] * 19
        (winner,) = [result for result in results if isinstance(result, Topic)]
        assert any_world.catalog.get("t") is winner

    async def test_of_names_that_collide_exactly_one_wins(self, any_world: World) -> None:
        results = await asyncio.gather(
            *(any_world.catalog.create(name, 1) for name in ("a.b", "a_b", "a.b", "a_b")),
            return_exceptions=True,
        )
        assert len(codes(results)) == 3
        assert len(any_world.catalog.all()) == 1

    async def test_two_brokers_on_one_store_do_not_both_create(
        self, world: World, tmp_path: Path
    ) -> None:
        config = BrokerConfig(data_dir=str(tmp_path / "@other"))
        logs = LogStore(config)
        other = TopicCatalog(world.store, logs, config, 8)
        results = await asyncio.gather(
            world.catalog.create("t", 1), other.create("t", 1), return_exceptions=True
        )
        assert codes(results) == [ErrorCode.topic_already_exists]
        mine, theirs = world.catalog.get("t"), other.get("t")
        assert mine is not None
        assert theirs is not None
        assert mine.id == theirs.id
        await logs.close()

    async def test_different_names_do_not_wait_for_each_other(self, any_world: World) -> None:
        topics = await asyncio.gather(*(any_world.catalog.create(f"t{i}", 1) for i in range(50)))
        assert len({topic.id for topic in topics}) == 50

    async def test_a_caller_that_is_cancelled_does_not_leave_half_a_topic(
        self, any_world: World
    ) -> None:
        creation = asyncio.create_task(any_world.catalog.create("t", 40))
        await asyncio.sleep(0)
        creation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creation
        await any_world.catalog.close()
        topic = any_world.catalog.get("t")
        assert topic is not None
        assert len(topic.partitions) == 40


class HalfBrokenLogs(LogStore):
    """Refuses to open partition 2 of anything while `is_broken`."""

    is_broken = True

    def open(
        self, partition: TopicPartition, config: TopicConfig, cluster_id: str | None = None
    ) -> PartitionLog:
        if self.is_broken and partition.partition == 2:
            raise StorageError("no space left on device")
        return super().open(partition, config, cluster_id)


class UncertainStore(MemoryStore):
    """Commits, then says it did not, while `is_uncertain`: as a store whose answer was lost."""

    is_uncertain = False

    async def commit(self, transaction: Transaction) -> CommitResult:
        result = await super().commit(transaction)
        if self.is_uncertain:
            raise StoreUnavailable("the answer was lost")
        return result


class TestFailure:
    async def test_a_log_that_does_not_open_is_told_and_the_topic_taken_back(
        self, world: World
    ) -> None:
        await world.stop()
        world.open_logs = HalfBrokenLogs
        await world.start()
        with pytest.raises(StorageError, match="no space left"):
            await world.catalog.create("t", 3)
        assert world.catalog.get("t") is None
        assert (await world.store.get_prefix("topics/")).entries == ()
        assert len((await world.catalog.create("t", 2)).partitions) == 2

    async def test_an_uncertain_creation_is_found_by_the_next(self, tmp_path: Path) -> None:
        store, config = UncertainStore(), BrokerConfig(data_dir=str(tmp_path))
        logs = LogStore(config)
        catalog = TopicCatalog(store, logs, config, 0)
        store.is_uncertain = True
        with pytest.raises(StorageError, match="the answer was lost"):
            await catalog.create("t", 2)
        assert catalog.get("t") is None
        store.is_uncertain = False
        with pytest.raises(ApiError) as caught:
            await catalog.create("t", 5)
        assert caught.value.code is ErrorCode.topic_already_exists
        topic = catalog.get("t")
        assert topic is not None
        assert len(topic.partitions) == 2
        await logs.close()

    async def test_an_uncertain_change_is_found_by_the_next(self, tmp_path: Path) -> None:
        store, config = UncertainStore(), BrokerConfig(data_dir=str(tmp_path))
        logs = LogStore(config)
        catalog = TopicCatalog(store, logs, config, 0)
        topic = await catalog.create("t", 1)
        store.is_uncertain = True
        with pytest.raises(StorageError):
            await catalog.grow(topic, 3)
        store.is_uncertain = False
        await catalog.set_overrides(topic, {"retention.ms": "1000"})
        assert len(topic.partitions) == 3
        assert topic.partitions[2].log.config.retention_ms == 1000
        await logs.close()


class GatedStore(MemoryStore):
    """Holds every commit until the gate opens, and counts those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.is_full = asyncio.Event()
        self.waiting = 0
        self.waiting_max = 0

    async def commit(self, transaction: Transaction) -> CommitResult:
        self.waiting += 1
        self.waiting_max = max(self.waiting_max, self.waiting)
        if self.waiting >= AUTO_CREATIONS_AT_ONCE:
            self.is_full.set()
        await self.gate.wait()
        self.waiting -= 1
        return await super().commit(transaction)


class TestEnsure:
    async def test_it_creates_what_is_not_there(self, world: World) -> None:
        topic = await world.catalog.ensure("t")
        assert world.catalog.get("t") is topic
        assert await world.catalog.ensure("t") is topic

    async def test_many_that_ask_at_once_get_the_same_topic(self, any_world: World) -> None:
        topics = await asyncio.gather(*(any_world.catalog.ensure("t") for _ in range(20)))
        assert len(set(topics)) == 1

    async def test_it_does_not_mind_a_creation_beside_it(self, any_world: World) -> None:
        created, ensured = await asyncio.gather(
            any_world.catalog.create("t", 3), any_world.catalog.ensure("t")
        )
        assert ensured is created

    async def test_it_keeps_the_name_rules(self, world: World) -> None:
        with pytest.raises(ApiError) as caught:
            await world.catalog.ensure("a/b")
        assert caught.value.code is ErrorCode.invalid_topic_exception

    async def test_a_flood_of_names_is_bounded(self, tmp_path: Path) -> None:
        store, config = GatedStore(), BrokerConfig(data_dir=str(tmp_path))
        logs = LogStore(config)
        catalog = TopicCatalog(store, logs, config, 0)
        flood = [
            asyncio.create_task(catalog.ensure(f"t{i}")) for i in range(AUTO_CREATIONS_MAX + 50)
        ]
        await store.is_full.wait()
        store.gate.set()
        results = await asyncio.gather(*flood, return_exceptions=True)
        assert codes(results) == [ErrorCode.leader_not_available] * 50
        assert store.waiting_max == AUTO_CREATIONS_AT_ONCE
        assert len(catalog.all()) == AUTO_CREATIONS_MAX
        await logs.close()
