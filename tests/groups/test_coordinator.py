"""The coordinator: waiting clients, timers, admin, restarts, and a store that fails."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, ErrorCode
from penstock.groups import Assignor, GroupCoordinator, JoinResult, Leaving, SyncRequest
from penstock.groups.storage import PART_BYTES_MAX
from penstock.metadata.errors import StoreCorrupt
from penstock.metadata.memory import MemoryStore
from penstock.settings import BrokerConfig

if TYPE_CHECKING:
    from tests.groups.conftest import Coordination, FaultyStore


def heartbeat(running: Coordination, member: JoinResult, group_id: str = "g") -> ErrorCode:
    try:
        running.groups.heartbeat(
            group_id, member_id=member.member_id, generation_id=member.generation_id
        )
    except ApiError as error:
        return error.code
    return ErrorCode.none


def states(running: Coordination) -> dict[str, str]:
    return {group.group_id: group.state.value for group in running.groups.list()}


async def turns(count: int = 5) -> None:
    """Let what is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


class TestMembers:
    async def test_wait_for_each_other_and_share_the_assignment(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        a = await running.stable()
        joining = running.asks_to_join("g")
        await turns()
        assert heartbeat(running, a) is ErrorCode.rebalance_in_progress
        a = await running.joined("g", a.member_id)
        b = await joining
        following = running.asks_to_sync("g", b)
        await turns()
        assert not following.done()
        leading = await running.asks_to_sync("g", a, {a.member_id: b"0", b.member_id: b"1"})
        assert (leading.assignment, (await following).assignment) == (b"0", b"1")
        assert states(running) == {"g": "Stable"}

    async def test_expire_by_the_clock(self, any_coordination: Coordination) -> None:
        running = any_coordination
        member = await running.stable(session_ms=10_000)
        running.advance(9.9)
        assert heartbeat(running, member) is ErrorCode.none
        running.advance(9.9)
        assert states(running) == {"g": "Stable"}
        running.advance(0.1)
        assert heartbeat(running, member) is ErrorCode.unknown_member_id
        assert states(running) == {"g": "Empty"}

    async def test_that_get_a_new_session_in_the_nick_of_time_keep_it(
        self, any_coordination: Coordination
    ) -> None:
        """Their old one ends before the clock is looked at, but after the rebalance that renews it."""
        running = any_coordination
        timeouts: dict[str, Any] = {"session_ms": 10_000, "rebalance_ms": 10_000}
        staying = await running.stable(**timeouts)
        coming = running.asks_to_join("g", **timeouts)
        await turns()
        running.advance(0.05)
        assert heartbeat(running, staying) is ErrorCode.rebalance_in_progress
        again = running.asks_to_join("g", staying.member_id, **timeouts)
        staying, gone = await again, await coming
        third = running.asks_to_join("g", **timeouts)
        await turns()
        running.advance(0.05)
        assert heartbeat(running, staying) is ErrorCode.rebalance_in_progress
        again = running.asks_to_join("g", staying.member_id, **timeouts)
        await turns()
        running.advance(10)
        staying, coming_too = await again, await third
        assert [one.error_code for one in (staying, coming_too)] == [ErrorCode.none] * 2
        assert heartbeat(running, gone) is ErrorCode.unknown_member_id
        synced = await running.asks_to_sync("g", staying, {staying.member_id: b"all"})
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")

    async def test_expire_by_a_timer_of_the_event_loop(self) -> None:
        """With a clock that stands, a session of no length is over at the next turn of the loop."""
        config = BrokerConfig(group_session_timeout_ms_min=1)
        groups = GroupCoordinator(MemoryStore(), config, ManualClock())
        await groups.load()
        pending = await groups.join(
            "g",
            member_id="",
            group_instance_id=None,
            client_id=None,
            client_host="host",
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
            protocol_type="consumer",
            protocols=[Assignor(name="range", metadata=b"")],
            requires_member_id=True,
            can_skip_assignment=False,
        )
        assert pending.error_code is ErrorCode.member_id_required
        wake = groups._driver._wake
        assert wake is not None, "one wake-up call is set"
        assert wake.when() - asyncio.get_running_loop().time() <= 0.001
        await groups.stop()

    async def test_that_hang_up_disturb_nobody(self, any_coordination: Coordination) -> None:
        running = any_coordination
        a = await running.stable()
        hung_up = running.asks_to_join("g")
        await turns()
        hung_up.cancel()
        await asyncio.wait([hung_up])
        b = await running.joined("g", a.member_id)
        assert (b.error_code, b.generation_id) == (ErrorCode.none, 2)
        assert len(b.members) == 2, "it may come back; if it does not, its session ends"

    async def test_are_refused_what_makes_no_sense(self, any_coordination: Coordination) -> None:
        running = any_coordination
        for session_ms in (5_999, 1_800_001):
            with pytest.raises(ApiError) as failure:
                await running.joined(session_ms=session_ms)
            assert failure.value.code is ErrorCode.invalid_session_timeout
        with pytest.raises(ApiError) as failure:
            await running.joined("")
        assert failure.value.code is ErrorCode.invalid_group_id
        with pytest.raises(ApiError) as failure:
            await running.joined("never-was", "member")
        assert failure.value.code is ErrorCode.unknown_member_id
        assert running.groups.leave("never-was", [Leaving(member_id="m")]) == [
            ErrorCode.unknown_member_id
        ]
        assert states(running) == {}

    async def test_leave_in_batches(self, any_coordination: Coordination) -> None:
        running = any_coordination
        a = await running.stable(instance="i")
        joining = running.asks_to_join("g")
        await running.joined("g", a.member_id, instance="i")
        b = await joining
        left = running.groups.leave(
            "g",
            [
                Leaving(member_id="", group_instance_id="i"),
                Leaving(member_id=b.member_id),
                Leaving(member_id="nobody"),
            ],
        )
        assert left == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id]
        assert states(running) == {"g": "Empty"}

    async def test_that_never_came_leave_no_group_behind(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        refused = await running.joined(protocol_type="")
        assert refused.error_code is ErrorCode.inconsistent_group_protocol
        assert states(running) == {}


class TestAHundredMembers:
    async def test_join_sync_and_rebalance(self, any_coordination: Coordination) -> None:
        running = any_coordination
        first = await running.stable()
        others = [running.asks_to_join("g") for _ in range(99)]
        await turns()
        leader = await running.joined("g", first.member_id)
        members = [leader, *[await other for other in others]]
        assert {member.generation_id for member in members} == {2}
        assert len(leader.members) == 100
        following = [running.asks_to_sync("g", member) for member in members[1:]]
        plan = {member.member_id: str(i).encode() for i, member in enumerate(members)}
        leading = await running.asks_to_sync("g", leader, plan)
        got = [leading, *[await one for one in following]]
        assert [one.assignment for one in got] == [str(i).encode() for i in range(100)]

        assert running.groups.leave("g", [Leaving(member_id=members[7].member_id)]) == [
            ErrorCode.none
        ]
        del members[7]
        assert {heartbeat(running, m) for m in members} == {ErrorCode.rebalance_in_progress}
        again = [running.asks_to_join("g", member.member_id) for member in members]
        rejoined = [await one for one in again]
        assert {(one.error_code, one.generation_id) for one in rejoined} == {(ErrorCode.none, 3)}
        assert len(rejoined[0].members) == 99


class TestARestart:
    async def test_lets_members_go_on_in_their_generation(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable("a/b %ü\n", topics=["t", "u"])
        before = running.groups.describe("a/b %ü\n")
        await running.restart()
        assert running.groups.describe("a/b %ü\n") == before
        assert heartbeat(running, member, "a/b %ü\n") is ErrorCode.none
        synced = await running.asks_to_sync("a/b %ü\n", member)
        assert (synced.assignment, synced.protocol_name) == (b"all", "range")
        assert await running.commit("a/b %ü\n", by=member, t_0=5) is ErrorCode.none

    async def test_gives_members_a_fresh_session(self, any_coordination: Coordination) -> None:
        running = any_coordination
        await running.stable(session_ms=10_000)
        running.clock.advance(1000)
        await running.restart()
        running.advance(9.9)
        assert states(running) == {"g": "Stable"}
        running.advance(0.1)
        assert states(running) == {"g": "Empty"}

    async def test_keeps_static_members_and_the_leader(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        first = await running.stable(instance="i")
        joining = running.asks_to_join("g")
        first = await running.joined("g", first.member_id, instance="i")
        await joining
        await running.asks_to_sync("g", first)
        back = await running.joined(instance="i")
        assert back.skip_assignment
        await running.restart()
        assert heartbeat(running, back) is ErrorCode.none
        again = await running.joined(instance="i")
        assert (again.generation_id, again.leader) == (2, again.member_id)

    async def test_keeps_an_empty_group_empty(self, any_coordination: Coordination) -> None:
        running = any_coordination
        member = await running.stable()
        await running.commit(by=member, t_0=5)
        running.groups.leave("g", [Leaving(member_id=member.member_id)])
        await turns()
        await running.restart()
        assert states(running) == {"g": "Empty"}
        assert (await running.joined()).generation_id == 3

    async def test_in_the_middle_of_a_rebalance_goes_back_to_the_last_generation(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable()
        waiting = running.asks_to_join("g")
        await turns()
        await running.restart()
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert heartbeat(running, member) is ErrorCode.none

    async def test_with_a_lower_limit_makes_the_group_rebalance(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        a = await running.stable()
        joining = running.asks_to_join("g")
        a = await running.joined("g", a.member_id)
        b = await joining
        await running.asks_to_sync("g", a)
        await running.restart(group_members_max=1)
        assert heartbeat(running, b) is ErrorCode.rebalance_in_progress
        first = running.asks_to_join("g", a.member_id)
        await turns()
        second = await running.joined("g", b.member_id)
        assert second.error_code is ErrorCode.group_max_size_reached
        assert (await first).error_code is ErrorCode.none

    async def test_brings_back_a_group_too_large_for_one_write(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.joined()
        large = bytes(range(256)) * (3 * PART_BYTES_MAX // 256)
        synced = await running.asks_to_sync("g", member, {member.member_id: large})
        assert synced.error_code is ErrorCode.none
        await running.store.put("groups/g/7/000000", b"left behind by a crash")
        await running.restart()
        assert (await running.asks_to_sync("g", member)).assignment == large
        parts = [e.key for e in (await running.store.get_prefix("groups/g/")).entries]
        assert len(parts) > 3
        assert "groups/g/7/000000" not in parts

        member = await running.joined("g", member.member_id, topics=["u"])
        await running.asks_to_sync("g", member, {member.member_id: b"small"})
        keys = [e.key for e in (await running.store.get_prefix("groups/")).entries]
        assert keys == ["groups/g"], "the parts are gone with the generation"
        await running.restart()
        assert (await running.asks_to_sync("g", member)).assignment == b"small"

    async def test_with_what_is_no_group_says_which_key(self) -> None:
        for key, value in {
            "groups/g": b"{",
            "groups/h": b'{"generation": 1}',
            "groups/p": b'{"version": 1, "parts": 1}',
            "offsets/g/t/0": b"{}",
            "offsets/g/0": b"{}",
        }.items():
            store = MemoryStore()
            await store.put(key, value)
            groups = GroupCoordinator(store, BrokerConfig(), ManualClock())
            with pytest.raises(StoreCorrupt, match=key):
                await groups.load()

    async def test_finds_json_that_people_can_read(self, any_coordination: Coordination) -> None:
        member = await any_coordination.stable("a/b")
        entry = await any_coordination.store.get("groups/a%2Fb")
        assert entry is not None
        kept = json.loads(entry.value)
        assert (kept["generation"], kept["leader"]) == (1, member.member_id)


class TestAStoreThatFails:
    async def test_fails_the_sync_and_the_group_recovers(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        member = await faulty.joined()
        faulty_store.refuses = True
        synced = await faulty.asks_to_sync("g", member)
        assert synced.error_code is ErrorCode.coordinator_not_available
        faulty_store.refuses = False
        member = await faulty.joined("g", member.member_id)
        synced = await faulty.asks_to_sync("g", member, {member.member_id: b"all"})
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")

    async def test_fails_the_return_of_a_static_member_and_keeps_the_old_one(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        member = await faulty.stable(instance="i")
        faulty_store.refuses = True
        back = await faulty.joined(instance="i")
        assert back.error_code is ErrorCode.coordinator_not_available
        assert heartbeat(faulty, member) is ErrorCode.none

    async def test_fails_a_deletion_and_the_group_is_unharmed(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.commit(t_0=5)
        faulty_store.refuses = True
        with pytest.raises(ApiError) as failure:
            await faulty.groups.delete("g")
        assert failure.value.code is ErrorCode.coordinator_not_available
        assert faulty.offsets() == {"t_0": 5}
        faulty_store.refuses = False
        await faulty.groups.delete("g")
        assert states(faulty) == {}

    async def test_slow_writes_do_not_bring_a_deleted_group_back(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        member = await faulty.joined()
        faulty_store.gate.clear()
        synced = faulty.asks_to_sync("g", member)
        await turns()
        faulty.groups.leave("g", [Leaving(member_id=member.member_id)])
        assert (await synced).error_code is ErrorCode.unknown_member_id
        deleting = asyncio.create_task(faulty.groups.delete("g"))
        await turns()
        faulty_store.gate.set()
        await deleting
        await turns()
        assert (await faulty_store.get_prefix("groups/")).entries == ()

    async def test_slow_writes_of_a_group_stay_in_order(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        member = await faulty.joined()
        faulty_store.gate.clear()
        synced = faulty.asks_to_sync("g", member)
        await turns()
        again = await faulty.joined("g", member.member_id, topics=["u"])
        assert (await synced).error_code is ErrorCode.rebalance_in_progress
        next_sync = faulty.asks_to_sync("g", again, {again.member_id: b"new"})
        await turns()
        assert faulty_store.commits == 1, "the second write waits for the first"
        faulty_store.gate.set()
        assert (await next_sync).assignment == b"new"
        await faulty.restart()
        assert heartbeat(faulty, again) is ErrorCode.none


class TestAdmin:
    async def test_lists_by_state_and_type(self, any_coordination: Coordination) -> None:
        running = any_coordination
        await running.stable("stable")
        await running.commit("simple", t_0=1)
        assert states(running) == {"stable": "Stable", "simple": "Empty"}

        def names(**filters: list[str]) -> set[str]:
            return {group.group_id for group in running.groups.list(**filters)}

        assert names(states=["stable"]) == {"stable"}
        assert names(states=["EMPTY", "Dead"]) == {"simple"}
        assert names(types=["Classic"]) == {"stable", "simple"}
        assert names(types=["consumer"]) == set()

    async def test_deletes_only_empty_groups_and_all_of_them(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        member = await running.stable()
        await running.commit(by=member, t_0=5)
        with pytest.raises(ApiError) as failure:
            await running.groups.delete("g")
        assert failure.value.code is ErrorCode.non_empty_group
        running.groups.leave("g", [Leaving(member_id=member.member_id)])
        await running.groups.delete("g")
        for prefix in ("groups/", "offsets/"):
            assert (await running.store.get_prefix(prefix)).entries == ()
        with pytest.raises(ApiError) as failure:
            await running.groups.delete("g")
        assert failure.value.code is ErrorCode.group_id_not_found
        with pytest.raises(ApiError):
            running.groups.describe("g")

    async def test_does_not_touch_groups_with_similar_names(
        self, any_coordination: Coordination
    ) -> None:
        running = any_coordination
        for name in ("g", "g/", "g/t", "gg", "g%2F"):
            await running.commit(name, t_0=1)
        await running.groups.delete("g")
        await running.restart()
        assert set(states(running)) == {"g/", "g/t", "gg", "g%2F"}


class TestTheCoordinatorItself:
    async def test_before_loading_asks_for_patience(self) -> None:
        groups = GroupCoordinator(MemoryStore(), BrokerConfig(), ManualClock())
        groups.heartbeat("g", member_id="m", generation_id=1)
        with pytest.raises(ApiError) as failure:
            groups.list()
        assert failure.value.code is ErrorCode.coordinator_load_in_progress
        with pytest.raises(ApiError) as failure:
            await groups.sync("g", SyncRequest(member_id="m", generation_id=1))
        assert failure.value.code is ErrorCode.rebalance_in_progress

    async def test_after_stopping_sends_everybody_away(
        self, faulty: Coordination, faulty_store: FaultyStore
    ) -> None:
        await faulty.groups.start()
        await faulty.stable()
        joining = faulty.asks_to_join("g")
        other = await faulty.joined("h")
        faulty_store.gate.clear()
        syncing = faulty.asks_to_sync("h", other)
        committing = asyncio.create_task(faulty.commit("s", t_0=1))
        await turns()
        stopping = asyncio.create_task(faulty.groups.stop())
        await turns()
        assert (await joining).error_code is ErrorCode.not_coordinator
        assert (await syncing).error_code is ErrorCode.not_coordinator
        assert not stopping.done(), "a commit is on its way to the store"
        faulty_store.gate.set()
        await stopping
        assert await committing is ErrorCode.none
        with pytest.raises(ApiError) as failure:
            await faulty.joined()
        assert failure.value.code is ErrorCode.coordinator_not_available
        assert faulty.groups._driver._wake is None
