"""Committed offsets: durable before seen, deleted, forgotten and expired by the rules."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups import Leaving, NewOffset
from penstock.groups.offsets import CommittedOffset, OffsetTable
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import TRANSACTION_OPERATIONS_MAX
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from tests.groups.conftest import Coordination, FaultyStore

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
DAY_S = 86_400.0
RETENTION_S = 7 * DAY_S


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def listed(running: Coordination) -> set[str]:
    return {group.group_id for group in running.groups.list()}


@contextlib.asynccontextmanager
async def busy(running: Coordination) -> AsyncIterator[None]:
    """Commits of the group for topic `u` that overlap: one is under way at any moment."""

    async def commit_for_ever(partition: int) -> None:
        at = TopicPartition("u", partition)
        for offset in itertools.count():
            await running.groups.commit_offsets("g", {at: NewOffset(offset=offset)})

    committing = []
    for partition in range(4):
        committing.append(asyncio.create_task(commit_for_ever(partition)))
        await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in committing:
            task.cancel()
        await asyncio.wait(committing)


class TestACommit:
    async def test_keeps_offset_epoch_metadata_and_time_across_a_restart(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        offset = NewOffset(offset=2**62, leader_epoch=3, metadata='{"é": "\x00"}')
        assert await running.groups.commit_offsets("g", {T0: offset}) == {T0: ErrorCode.none}
        for _ in range(2):
            kept = running.groups.offsets("g").get("t", 0)
            assert kept is not None
            assert (kept.offset, kept.leader_epoch) == (2**62, 3)
            assert kept.metadata == '{"é": "\x00"}'
            assert kept.commit_ms == running.clock.wall_ms()
            await running.restart()

    async def test_of_a_group_that_never_was_makes_a_simple_one(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        assert await running.commit("", t_0=1) is ErrorCode.none, "even one without a name"
        (group,) = running.groups.list()
        assert (group.group_id, group.protocol_type, group.state) == ("", "", "Empty")
        await running.restart()
        assert running.offsets("") == {"t_0": 1}

    async def test_of_a_generation_of_a_group_that_never_was_is_refused(
        self, any_coordination: Coordination
    ) -> None:
        with pytest.raises(ApiError) as failure:
            await any_coordination.groups.commit_offsets(
                "g", {T0: NewOffset(offset=1)}, member_id="m", generation_id=1
            )
        assert failure.value.code is ErrorCode.group_id_not_found
        assert listed(any_coordination) == set()

    async def test_is_fenced_by_member_and_generation(self, any_coordination: Coordination) -> None:
        running = any_coordination
        member = await running.stable()
        assert await running.commit(by=member, t_0=1) is ErrorCode.none
        assert await running.commit(t_0=2) is ErrorCode.unknown_member_id
        member = await running.joined("g", member.member_id, topics=["u"])
        assert await running.commit(by=member, t_0=3) is ErrorCode.rebalance_in_progress
        assert running.offsets() == {"t_0": 1}

    async def test_with_too_long_a_note_is_refused_for_that_partition_alone(
        self, any_coordination: Coordination
    ) -> None:
        notes = {0: "x" * 4096, 1: "x" * 4097, 2: "é" * 2049, 3: None}
        errors = await any_coordination.groups.commit_offsets(
            "g",
            {
                TopicPartition("t", p): NewOffset(offset=p, metadata=note)
                for p, note in notes.items()
            },
        )
        too_large = ErrorCode.offset_metadata_too_large
        assert list(errors.values()) == [ErrorCode.none, too_large, too_large, ErrorCode.none]
        assert any_coordination.offsets() == {"t_0": 0, "t_3": 3}

    async def test_is_seen_only_when_it_is_durable(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.commit(t_0=1)
        faulty_store.gate.clear()
        committing = asyncio.create_task(faulty.commit(t_0=2))
        await turns()
        assert faulty.offsets() == {"t_0": 1}
        assert not committing.done()
        faulty_store.gate.set()
        await committing
        assert faulty.offsets() == {"t_0": 2}

    async def test_waits_for_those_before_it_of_the_same_partition(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        """A store need not keep the order of writes that are under way together."""
        faulty_store.gate.clear()
        first = asyncio.create_task(faulty.commit(t_0=1, t_1=1))
        await turns()
        second = asyncio.create_task(faulty.commit(t_1=2))
        other = asyncio.create_task(faulty.commit(t_2=3))
        await turns()
        assert faulty_store.commits == 2, "the first, and the one of another partition"
        faulty_store.gate.set()
        assert {await first, await second, await other} == {ErrorCode.none}
        assert faulty_store.commits == 3
        assert faulty.offsets() == {"t_0": 1, "t_1": 2, "t_2": 3}

    async def test_that_cannot_be_stored_changes_nothing(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        member = await faulty.stable()
        await faulty.commit(by=member, t_0=1)
        faulty_store.refuses = True
        error = await faulty.commit(by=member, t_0=2)
        assert error is ErrorCode.coordinator_not_available
        assert faulty.offsets() == {"t_0": 1}
        assert await faulty.commit("new", t_0=2) is ErrorCode.coordinator_not_available
        await turns()
        assert listed(faulty) == {"g"}, "a group without anything is no group"
        faulty_store.refuses = False
        assert await faulty.commit(by=member, t_0=3) is ErrorCode.none

    async def test_goes_on_when_its_client_hangs_up(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        faulty_store.gate.clear()
        committing = asyncio.create_task(faulty.commit(t_0=2))
        await turns()
        committing.cancel()
        faulty_store.gate.set()
        await turns()
        assert faulty.offsets() == {"t_0": 2}

    @pytest.mark.parametrize("group_id", ["g", "g" * 20_000], ids=["many keys", "long keys"])
    async def test_of_more_than_a_transaction_holds_is_split(
        self, any_coordination: Coordination, group_id: str
    ) -> None:
        running = any_coordination
        count = 3 * TRANSACTION_OPERATIONS_MAX + 1
        errors = await running.groups.commit_offsets(
            group_id, {TopicPartition("t", p): NewOffset(offset=p) for p in range(count)}
        )
        assert set(errors.values()) == {ErrorCode.none}
        await running.restart()
        kept = running.groups.offsets(group_id).of_topic("t")
        assert {p: value.offset for p, value in kept.items()} == {p: p for p in range(count)}

    async def test_is_one_transaction(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.commit(t_0=1, t_1=2, u_0=3)
        assert faulty_store.commits == 1

    async def test_shares_the_sync_of_those_that_wait_with_it(
        self, sqlite: tuple[SqliteStore, Coordination]
    ) -> None:
        store, running = sqlite
        before = store.groups_written
        errors = await asyncio.gather(*[running.commit(f"g{i}", t_0=i) for i in range(100)])
        assert set(errors) == {ErrorCode.none}
        assert store.groups_written - before < 10

    @pytest.fixture
    async def sqlite(
        self, tmp_path: Path, faulty: Coordination
    ) -> AsyncIterator[tuple[SqliteStore, Coordination]]:
        store = await SqliteStore.open(tmp_path / "db")
        running = type(faulty)(store, faulty.clock, faulty.config, faulty.groups)
        await running.restart()
        yield store, running
        await running.groups.stop()
        await store.close()


class TestTheTable:
    def test_keeps_the_newest_write_whatever_is_reported_first(self) -> None:
        table = OffsetTable()
        table.put(T0, _kept(2), revision=12)
        table.put(T0, _kept(1), revision=11)
        assert table.get("t", 0) == _kept(2)

    def test_does_not_remove_what_was_written_after_the_deletion(self) -> None:
        table = OffsetTable()
        table.put(T0, _kept(2), revision=12)
        table.remove(T0, revision=11)
        assert table.get("t", 0) == _kept(2)
        table.remove(T0, revision=13)
        assert not table
        assert table.topics() == ()


def _kept(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, leader_epoch=-1, metadata="", commit_ms=0)


class TestDeletion:
    async def test_removes_what_is_asked_for_and_no_more(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        await running.commit(t_0=1, t_1=2, u_0=3)
        missing = TopicPartition("t", 9)
        errors = await running.groups.delete_offsets("g", [T0, U0, missing])
        assert set(errors.values()) == {ErrorCode.none}
        await running.restart()
        assert running.offsets() == {"t_1": 2}

    async def test_spares_topics_that_consumers_are_at_work_on(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable(topics=["t"])
        await running.commit(by=member, t_0=1, u_0=2)
        errors = await running.groups.delete_offsets("g", [T0, U0])
        assert errors == {T0: ErrorCode.group_subscribed_to_topic, U0: ErrorCode.none}
        assert running.offsets() == {"t_0": 1}

    async def test_is_refused_when_members_are_no_consumers(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        await running.stable(protocol_type="connect")
        with pytest.raises(ApiError) as failure:
            await running.groups.delete_offsets("g", [T0])
        assert failure.value.code is ErrorCode.non_empty_group

    async def test_of_an_unknown_group_is_refused(self, any_coordination: Coordination) -> None:
        with pytest.raises(ApiError) as failure:
            await any_coordination.groups.delete_offsets("g", [T0])
        assert failure.value.code is ErrorCode.group_id_not_found

    async def test_of_all_offsets_of_a_simple_group_ends_it(
        self, any_coordination: Coordination
    ) -> None:
        await any_coordination.commit(t_0=1)
        await any_coordination.groups.delete_offsets("g", [T0])
        assert listed(any_coordination) == set()

    async def test_takes_in_what_the_store_knows_better(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        await running.commit(t_0=1, t_1=1)
        other = await running.store.get("offsets/g/t/0")
        assert other is not None
        await running.store.put("offsets/g/t/0", other.value.replace(b":1,", b":7,", 1))
        await running.groups.delete_offsets("g", [T0, TopicPartition("t", 1)])
        assert running.offsets() == {}
        assert (await running.store.get_prefix("offsets/")).entries == ()

    async def test_does_not_wait_for_a_pause_between_commits(self, faulty: Coordination) -> None:
        await faulty.commit(t_0=1)
        async with busy(faulty), asyncio.timeout(5):
            outcome = await faulty.groups.delete_offsets("g", [T0])
        assert outcome == {T0: ErrorCode.none}
        assert "t_0" not in faulty.offsets()

    async def test_that_fails_leaves_the_offsets(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.commit(t_0=1)
        faulty_store.refuses = True
        with pytest.raises(ApiError) as failure:
            await faulty.groups.delete_offsets("g", [T0])
        assert failure.value.code is ErrorCode.coordinator_not_available
        assert faulty.offsets() == {"t_0": 1}


class TestADeletedTopic:
    async def test_is_forgotten_by_every_group(self, any_coordination: Coordination) -> None:
        running = any_coordination
        await running.commit("a", t_0=1, t_1=1, tt_0=1)
        await running.commit("b", t_0=1, u_0=1)
        await running.commit("c", t_0=1)
        await running.groups.forget_topic("t")
        for _ in range(2):
            assert listed(running) == {"a", "b"}
            assert running.offsets("a") == {"tt_0": 1}
            assert running.offsets("b") == {"u_0": 1}
            await running.restart()

    async def test_is_forgotten_with_the_commits_on_their_way(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        faulty_store.gate.clear()
        committing = asyncio.create_task(faulty.commit(t_0=1))
        await turns()
        forgetting = asyncio.create_task(faulty.groups.forget_topic("t"))
        await turns()
        faulty_store.gate.set()
        await committing
        await forgetting
        assert faulty.offsets() == {}
        assert (await faulty_store.get_prefix("offsets/")).entries == ()

    async def test_is_forgotten_without_a_pause_between_commits_of_others(
        self, faulty: Coordination
    ) -> None:
        await faulty.commit(t_0=1)
        async with busy(faulty), asyncio.timeout(5):
            await faulty.groups.forget_topic("t")
        assert "t_0" not in faulty.offsets()

    async def test_found_after_a_crash_is_forgotten_then(
        self, any_coordination: Coordination
    ) -> None:
        await any_coordination.commit(t_0=1, u_0=2)
        await any_coordination.groups.retain_topics(lambda name: name == "u")
        await any_coordination.restart()
        assert any_coordination.offsets() == {"u_0": 2}

    async def test_that_cannot_be_forgotten_now_is_an_error(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.commit(t_0=1)
        faulty_store.refuses = True
        with pytest.raises(ApiError):
            await faulty.groups.forget_topic("t")
        assert faulty.offsets() == {"t_0": 1}


class TestExpiry:
    async def test_of_a_simple_group_counts_from_each_commit(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        await running.commit(t_0=1, t_1=1)
        running.advance(DAY_S)
        await running.commit(t_1=2)
        running.advance(RETENTION_S - DAY_S - 1)
        await running.groups.expire()
        assert running.offsets() == {"t_0": 1, "t_1": 2}
        running.advance(1)
        await running.groups.expire()
        assert running.offsets() == {"t_1": 2}
        running.advance(DAY_S)
        await running.groups.expire()
        assert listed(running) == set()
        assert (await running.store.get_prefix("offsets/")).entries == ()

    async def test_of_a_group_counts_from_when_its_last_member_went(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable(session_ms=1_800_000)
        await running.commit(by=member, t_0=1)
        running.advance(1000)
        running.groups.leave("g", [Leaving(member_id=member.member_id)])
        await running.commit(u_0=1)
        running.advance(RETENTION_S - 1)
        await running.groups.expire()
        assert running.offsets() == {"t_0": 1, "u_0": 1}
        await running.restart()
        running.advance(1)
        await running.groups.expire()
        assert listed(running) == set()
        assert (await running.store.get_prefix("")).entries == ()

    async def test_counts_from_a_commit_after_the_last_member_went(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable()
        running.groups.leave("g", [Leaving(member_id=member.member_id)])
        running.advance(RETENTION_S - 1)
        await running.commit(t_0=1)
        running.advance(1)
        await running.groups.expire()
        assert running.offsets() == {"t_0": 1}, "an admin has just reset it"

    async def test_of_a_working_group_is_for_topics_it_left(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable(topics=["t"])
        await running.commit(by=member, t_0=1, u_0=1)
        running.clock.advance(RETENTION_S)
        await running.groups.expire()
        assert running.offsets() == {"t_0": 1}

    async def test_never_takes_what_may_be_subscribed(self, any_coordination: Coordination) -> None:
        running = any_coordination
        member = await running.stable(protocol_type="connect")
        await running.commit(by=member, t_0=1)
        running.clock.advance(RETENTION_S)
        await running.groups.expire()
        assert running.offsets() == {"t_0": 1}

    async def test_follows_the_time_that_an_old_client_asks_for(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        for group, retention_ms in {"short": 1_000, "long": 30 * 86_400_000}.items():
            await running.groups.commit_offsets(
                group, {T0: NewOffset(offset=1)}, retention_ms=retention_ms
            )
        await running.restart()
        running.advance(1)
        await running.groups.expire()
        assert listed(running) == {"long"}
        running.advance(RETENTION_S)
        await running.groups.expire()
        assert listed(running) == {"long"}

    async def test_ends_an_empty_group_without_offsets(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable()
        running.groups.leave("g", [Leaving(member_id=member.member_id)])
        await turns()
        await running.restart()
        await running.groups.expire()
        assert listed(running) == set()
        assert (await running.store.get_prefix("")).entries == ()

    async def test_does_not_take_a_group_whose_first_commit_is_on_its_way(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        member = await faulty.stable()
        faulty.groups.leave("g", [Leaving(member_id=member.member_id)])
        await turns()
        faulty_store.gate.clear()
        committing = asyncio.create_task(faulty.commit(t_0=1))
        await turns()
        await faulty.groups.expire()
        faulty_store.gate.set()
        assert await committing is ErrorCode.none
        await turns()
        assert faulty.offsets() == {"t_0": 1}

    async def test_does_not_wait_for_a_pause_between_commits(self, faulty: Coordination) -> None:
        await faulty.commit(t_0=1)
        faulty.advance(RETENTION_S)
        async with busy(faulty):
            await faulty.groups.expire()
        assert "t_0" not in faulty.offsets()
        assert "u_0" in faulty.offsets()

    async def test_that_fails_is_tried_again(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.commit(t_0=1)
        faulty.advance(RETENTION_S)
        faulty_store.refuses = True
        await faulty.groups.expire()
        assert faulty.offsets() == {"t_0": 1}
        faulty_store.refuses = False
        await faulty.groups.expire()
        assert listed(faulty) == set()

    async def test_spares_an_offset_that_the_store_has_newer(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        await running.commit(t_0=1)
        running.advance(RETENTION_S)
        stored = await running.store.get("offsets/g/t/0")
        assert stored is not None
        await running.store.put("offsets/g/t/0", stored.value.replace(b":1,", b":7,", 1))
        await running.groups.expire()
        assert running.offsets() == {"t_0": 7}

    async def test_runs_by_itself(self, faulty: Coordination) -> None:
        await faulty.restart(retention_check_interval_ms=10)
        await faulty.commit(t_0=1)
        faulty.advance(RETENTION_S)
        revision = (await faulty.store.get_prefix("")).revision
        await faulty.groups.start()
        async with asyncio.timeout(5):
            event = await anext(faulty.store.watch("offsets/", revision + 1))
        assert event.deleted
