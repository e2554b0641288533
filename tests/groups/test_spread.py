"""Several brokers share the groups of a cluster: who coordinates, what moves, and what is never lost.

Every rule holds on the memory store and on a real etcd.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups import Leaving
from penstock.groups.slots import SLOTS, owner_of, slot_key, slot_of
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import MetadataStore, Rejected
from tests.groups.brokers import Brokers, Node, commit, error_of, join, name_in, sync, until


async def stored(brokers: Brokers, group_id: str = "g", topic: str = "t") -> bytes | None:
    entry = await brokers.store.get(f"offsets/{group_id}/{topic}/0")
    return None if entry is None else entry.value


async def claim_revision(brokers: Brokers, group_id: str = "g") -> int:
    entry = await brokers.store.get(slot_key(slot_of(group_id)))
    return 0 if entry is None else entry.mod_revision


def owned_by(broker_id: int, *brokers: int) -> str:
    """A group that belongs to `broker_id` among `brokers`."""
    return next(name_in(s) for s in range(SLOTS) if owner_of(s, brokers) == broker_id)


class TestSlots:
    async def test_are_shared_out_and_everybody_knows_where_a_group_is(
        self, brokers: Brokers
    ) -> None:
        await brokers.start(1, 2, 3)
        held = [node.slots for node in brokers.nodes.values()]
        assert sorted(slot for slots in held for slot in slots) == list(range(SLOTS))
        assert min(map(len, held)) >= SLOTS / 3 / 2
        for slot in range(SLOTS):
            name = name_in(slot)
            found = {node.groups.coordinator_of(name) for node in brokers.nodes.values()}
            (owner,) = found
            for node in brokers.nodes.values():
                expected = ErrorCode.none if node.id == owner else ErrorCode.not_coordinator
                assert error_of(lambda node=node, name=name: node.groups.of(name)) is expected  # type: ignore[misc]

    async def test_cost_no_writes_while_nothing_happens(self, brokers: Brokers) -> None:
        await brokers.start(1, 2)
        before = (await brokers.store.get_prefix("coordinators/")).revision
        commits = [node.link.commits for node in brokers.nodes.values()]
        brokers.tell()
        await asyncio.sleep(0.5)
        assert (await brokers.store.get_prefix("coordinators/")).revision == before
        assert [node.link.commits for node in brokers.nodes.values()] == commits

    async def test_of_nobody_are_not_available(self, brokers: Brokers) -> None:
        node = await brokers.prepare(1)
        assert node.groups.coordinator_of("g") is None
        assert error_of(lambda: node.groups.of("g")) is ErrorCode.not_coordinator
        assert error_of(node.groups.list) is ErrorCode.coordinator_not_available

    async def test_are_listed_by_the_broker_that_holds_them(self, brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        names = {f"group-{i}" for i in range(30)}
        for name in names:
            await brokers.commit(1, name)
        listed = [{g.group_id for g in n.groups.list()} for n in brokers.nodes.values()]
        assert all(listed)
        assert set().union(*listed) == names
        assert sum(map(len, listed)) == len(names)

    async def test_a_name_is_needed(self, brokers: Brokers) -> None:
        await brokers.start(1)
        assert error_of(lambda: brokers.nodes[1].groups.of("")) is ErrorCode.invalid_group_id


class TestALostLease:
    async def test_moves_groups_with_their_offsets_and_generation(self, brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        first = brokers.coordinator()
        member = await brokers.stable()
        assert await brokers.commit(5, by=member) is ErrorCode.none
        before = brokers.groups().describe("g")
        await first.end_lease()
        first.lose_lease()
        brokers.gone(first.id)
        await brokers.settled()
        assert brokers.coordinator() is not first
        assert brokers.groups().describe("g") == before
        brokers.groups().heartbeat(
            "g", member_id=member.member_id, generation_id=member.generation_id
        )
        assert await sync(brokers.groups(), "g", member) == b"all"
        assert brokers.offset() == 5
        assert await brokers.commit(6, by=member) is ErrorCode.none

    async def test_by_time_alone_moves_them_too(self, brokers: Brokers) -> None:
        """A broker dies: nobody revokes its lease, nobody keeps it alive."""
        await brokers.start(1, 2)
        name = owned_by(1, 1, 2)
        node = brokers.nodes[1]
        await brokers.commit(5, name)
        node.lose_lease()
        node.lease = await node.link.lease(1)
        node.groups.registered(node.lease, "short-lived")
        node.is_sure = True
        await brokers.settled()
        node.pause()
        brokers.gone(1)
        await brokers.settled()
        assert brokers.offset(name) == 5

    async def test_sends_everybody_away_at_once(self, brokers: Brokers) -> None:
        await brokers.start(1)
        node = brokers.nodes[1]
        await brokers.stable()
        waiting = asyncio.create_task(join(brokers.groups(), "g"))
        await asyncio.sleep(0)
        node.lose_lease()
        assert (await waiting).error_code is ErrorCode.not_coordinator
        assert error_of(lambda: node.groups.of("g")) is ErrorCode.not_coordinator
        assert node.groups.coordinator_of("g") is None

    async def test_that_comes_back_is_no_trouble(self, brokers: Brokers) -> None:
        """The claims of the earlier registration are taken over, though its lease has not ended."""
        await brokers.start(1)
        node = brokers.nodes[1]
        await brokers.commit(5)
        node.lose_lease()
        await node.register()
        await brokers.settled()
        assert brokers.offset() == 5
        assert await brokers.commit(6) is ErrorCode.none

    async def test_a_restart_takes_its_own_slots_back_at_once(self, brokers: Brokers) -> None:
        await brokers.start(1, 2)
        await brokers.commit(5)
        brokers.nodes[1].pause()  # killed: its lease lives on for a while
        del brokers.nodes[1]
        await brokers.start(1)
        assert brokers.offset() == 5


class TestAStaleCoordinator:
    async def takeover(self, brokers: Brokers) -> tuple[Node, str]:
        """A broker that still believes it coordinates a group which another one has taken over."""
        await brokers.start(1, 2)
        name = owned_by(1, 1, 2)
        await brokers.commit(5, name)
        stale = brokers.nodes[1]
        stale.pause()
        await stale.end_lease()
        brokers.gone(1)
        await brokers.settled()
        assert stale.serves(name), "it does not know"
        return stale, name

    async def test_can_not_commit(self, brokers: Brokers) -> None:
        stale, name = await self.takeover(brokers)
        assert await brokers.commit(7, name) is ErrorCode.none
        kept = await stored(brokers, name)
        refused = await commit(stale.groups.of(name), 6, name)
        assert refused is ErrorCode.coordinator_not_available
        assert await stored(brokers, name) == kept
        assert brokers.offset(name) == 7
        assert error_of(lambda: stale.groups.of(name)) is ErrorCode.not_coordinator

    async def test_can_not_begin_a_generation(self, brokers: Brokers) -> None:
        stale, name = await self.takeover(brokers)
        member = await brokers.stable(name)
        other = await join(stale.groups.of(name), name)
        with pytest.raises(ApiError) as failure:
            await sync(stale.groups.of(name), name, other, {other.member_id: b"all"})
        assert failure.value.code is ErrorCode.not_coordinator
        assert await sync(brokers.groups(name), name, member) == b"all"

    async def test_can_not_delete(self, brokers: Brokers) -> None:
        stale, name = await self.takeover(brokers)
        with pytest.raises(ApiError) as failure:
            await stale.groups.of(name).delete(name)
        assert failure.value.code is ErrorCode.coordinator_not_available
        assert await stored(brokers, name) is not None

    async def test_sends_those_who_wait_to_the_new_one(self, brokers: Brokers) -> None:
        stale, name = await self.takeover(brokers)
        member = await join(stale.groups.of(name), name)
        syncing = asyncio.create_task(
            sync(stale.groups.of(name), name, member, {member.member_id: b"all"})
        )
        with pytest.raises(ApiError) as failure:
            await syncing
        assert failure.value.code is ErrorCode.not_coordinator

    async def test_answers_nothing_when_its_lease_is_not_certain(self, brokers: Brokers) -> None:
        stale, name = await self.takeover(brokers)
        stale.is_sure = False
        assert error_of(lambda: stale.groups.of(name)) is ErrorCode.not_coordinator
        assert error_of(stale.groups.list) is ErrorCode.coordinator_not_available
        assert stale.groups.coordinator_of(name) is None

    async def test_stops_when_it_hears_of_it(self, brokers: Brokers) -> None:
        stale, name = await self.takeover(brokers)
        stale.link.hears.set()
        await until(lambda: not stale.serves(name))
        assert stale.groups.coordinator_of(name) == 2


async def handing_over(
    brokers: Brokers,
) -> tuple[Node, str, asyncio.Task[ErrorCode], asyncio.Task[None]]:
    """A group goes from broker 1 to broker 2, which starts, while a commit of it can not be written."""
    await brokers.start(1)
    node, name = brokers.nodes[1], owned_by(2, 1, 2)
    node.link.sends.clear()
    committing = asyncio.create_task(brokers.commit(5, name))
    await asyncio.sleep(0)
    starting = asyncio.create_task(brokers.start(2))
    await until(lambda: not node.serves(name))
    return node, name, committing, starting


class TestAHandOver:
    async def test_at_a_join_loses_nothing(self, brokers: Brokers) -> None:
        await brokers.start(1)
        member = await brokers.stable("a")
        for i in range(20):
            await brokers.commit(i, f"group-{i}")
        await brokers.start(2)
        await brokers.start(3)
        for i in range(20):
            assert brokers.offset(f"group-{i}") == i
        assert await sync(brokers.groups("a"), "a", member) == b"all"
        assert all(node.slots for node in brokers.nodes.values())

    async def test_at_a_leave_loses_nothing_and_does_not_wait_for_the_lease(
        self, brokers: Brokers
    ) -> None:
        await brokers.start(1, 2)
        for i in range(20):
            await brokers.commit(i, f"group-{i}")
        leaving = brokers.gone(1)
        await leaving.groups.leave()
        assert leaving.slots == set()
        await brokers.settled()
        for i in range(20):
            assert brokers.offset(f"group-{i}") == i

    async def test_after_stopping_still_frees_the_slots(self, brokers: Brokers) -> None:
        await brokers.start(1, 2)
        leaving = brokers.nodes[1]
        await leaving.groups.stop()
        await leaving.groups.leave()
        brokers.gone(1)
        await brokers.settled()

    async def test_under_load_loses_no_acknowledged_offset(self, brokers: Brokers) -> None:
        await brokers.start(1, 2)
        acknowledged = {f"group-{i}": 0 for i in range(12)}
        stop = False

        async def consume(name: str) -> None:
            while not stop:
                await brokers.commit_somehow(acknowledged[name] + 1, name)
                acknowledged[name] += 1
                await asyncio.sleep(0)

        consumers = [asyncio.create_task(consume(name)) for name in acknowledged]
        before = dict(acknowledged)
        await brokers.start(3)
        leaving = brokers.gone(1)
        await leaving.groups.leave()
        await brokers.settled()
        await until(lambda: all(acknowledged[n] > before[n] + 5 for n in acknowledged))
        stop = True
        await asyncio.gather(*consumers)
        for name, offset in acknowledged.items():
            assert brokers.offset(name) == offset

    async def test_waits_for_what_is_being_written(self, brokers: Brokers) -> None:
        node, name, committing, starting = await handing_over(brokers)
        assert not committing.done()
        assert await claim_revision(brokers, name), "the claim stands until it is written"
        node.link.sends.set()
        assert await committing is ErrorCode.none
        await starting
        assert brokers.offset(name) == 5

    async def test_that_outlives_its_lease_leaves_the_next_one_alone(
        self, brokers: Brokers
    ) -> None:
        node, name, committing, starting = await handing_over(brokers)
        await node.end_lease()
        await until(lambda: 2 in brokers.nodes and brokers.nodes[2].serves(name))
        await until(lambda: node.groups.coordinator_of(name) == 2)
        revision = await claim_revision(brokers, name)
        node.link.sends.set()
        assert await committing is not ErrorCode.none
        await node.register()
        await starting
        assert await claim_revision(brokers, name) == revision

    async def test_tells_members_to_look_anew(self, brokers: Brokers) -> None:
        await brokers.start(1)
        name = owned_by(2, 1, 2)
        await brokers.stable(name)
        waiting = asyncio.create_task(join(brokers.groups(name), name))
        await asyncio.sleep(0)
        await brokers.start(2)
        assert (await waiting).error_code is ErrorCode.not_coordinator

    async def test_takes_nothing_back_after_leaving(self, brokers: Brokers) -> None:
        await brokers.start(1)
        node = brokers.nodes[1]
        await node.groups.leave()
        node.groups.brokers_changed(())
        brokers.tell()
        await asyncio.sleep(0.1)
        assert node.slots == set()
        await node.register()
        await brokers.settled()


class TestAnswersThatGetLost:
    async def test_a_claim_is_found_by_looking(self, brokers: Brokers) -> None:
        node = await brokers.prepare(1)
        node.link.loses_answers = True
        await node.register()
        node.groups.brokers_changed([1])
        await until(lambda: len(node.slots) == SLOTS)

    async def test_a_commit_is_found_when_the_slot_is_loaded_anew(self, brokers: Brokers) -> None:
        await brokers.start(1)
        node = brokers.nodes[1]
        before = await claim_revision(brokers)
        node.link.loses_answers = True
        assert await brokers.commit(5) is ErrorCode.coordinator_not_available
        assert not node.serves("g"), "nobody knows what the store holds"
        node.link.loses_answers = False
        await brokers.settled()
        assert brokers.offset() == 5
        assert await claim_revision(brokers) > before

    async def test_a_commit_that_comes_late_does_not_undo_a_later_one(
        self, brokers: Brokers
    ) -> None:
        await brokers.start(1)
        node = brokers.nodes[1]
        node.link.delays = True
        assert await brokers.commit(5) is ErrorCode.coordinator_not_available
        node.link.delays = False
        await brokers.settled()
        assert await brokers.commit(6) is ErrorCode.none
        late = await node.link.arrive()
        assert all(isinstance(result, Rejected) for result in late)
        kept = await stored(brokers)
        assert kept is not None
        assert b'"offset":6' in kept

    async def test_members_go_on_after_the_store_was_away(self, brokers: Brokers) -> None:
        await brokers.start(1)
        node = brokers.nodes[1]
        member = await brokers.stable()
        node.link.delays = True
        assert await brokers.commit(5, by=member) is ErrorCode.coordinator_not_available
        node.link.delays = False
        await brokers.settled()
        brokers.groups().heartbeat(
            "g", member_id=member.member_id, generation_id=member.generation_id
        )
        assert await brokers.commit(6, by=member) is ErrorCode.none

    async def test_a_hand_over_is_tried_again(self, brokers: Brokers) -> None:
        await brokers.start(1)
        node = brokers.nodes[1]
        node.link.delays = True
        starting = asyncio.create_task(brokers.start(2))
        await until(lambda: len(node.link.delayed) > 0)
        node.link.delays = False
        await starting


class TestLoading:
    async def test_asks_for_patience_and_takes_heartbeats(self, brokers: Brokers) -> None:
        node = await brokers.prepare(1)
        await until(lambda: "coordinators/" in node.link.prefixes_read)
        node.link.reads.clear()
        await node.register()
        node.groups.brokers_changed([1])
        await until(lambda: node.groups.coordinator_of("g") == 1)
        groups = node.groups.of("g")
        assert error_of(lambda: groups.describe("g")) is ErrorCode.coordinator_load_in_progress
        assert error_of(node.groups.list) is ErrorCode.coordinator_load_in_progress
        groups.heartbeat("g", member_id="m", generation_id=1)
        node.link.reads.set()
        await until(lambda: node.serves("g"))

    async def test_a_thousand_groups_takes_one_look(self, brokers: Brokers) -> None:
        await brokers.start(1)
        names = [f"group-{i}" for i in range(1000)]
        for start in range(0, 1000, 100):
            batch = names[start : start + 100]
            await asyncio.gather(*[brokers.commit(7, name) for name in batch])
        node = brokers.nodes[1]
        await node.end_lease()
        node.lose_lease()
        brokers.gone(1)
        await brokers.start(2)
        read = brokers.nodes[2].link.prefixes_read
        for prefix in ("groups/", "offsets/", "topics/"):
            assert read.count(prefix) == 1
        assert {brokers.offset(name) for name in names} == {7}

    async def test_what_is_no_group_keeps_only_its_slot_out_of_service(
        self, brokers: Brokers
    ) -> None:
        await brokers.store.put("groups/g", b"{")
        node = await brokers.prepare(1)
        await node.register()
        node.groups.brokers_changed([1])
        await until(lambda: node.slots == set(range(SLOTS)) - {slot_of("g")})
        await until(lambda: node.groups.coordinator_of("g") is None)


class TestATopicThatIsDeleted:
    async def delete(self, brokers: Brokers, name: str) -> None:
        entry = await brokers.store.get(f"topics/{name}")
        assert entry is not None
        lease = await brokers.store.lease(60)
        await brokers.store.put(f"topics/{name}", b"", lease=lease)
        await lease.revoke()

    async def tell(self, brokers: Brokers, name: str) -> None:
        await asyncio.gather(*[n.groups.forget_topic(name) for n in brokers.nodes.values()])

    async def test_takes_its_offsets_along_everywhere(self, brokers: Brokers) -> None:
        await brokers.start(1, 2, 3)
        names = [f"group-{i}" for i in range(20)]
        for name in names:
            await brokers.commit(5, name, "t")
            await brokers.commit(6, name, "u")
        await self.delete(brokers, "t")
        await self.tell(brokers, "t")
        for name in names:
            assert (brokers.offset(name, "t"), brokers.offset(name, "u")) == (None, 6)
            assert await stored(brokers, name, "t") is None

    async def test_and_is_there_again_keeps_what_was_committed_since(
        self, brokers: Brokers
    ) -> None:
        await brokers.start(1)
        await brokers.commit(5, "old")
        await brokers.commit(5, "both")
        await self.delete(brokers, "t")
        await brokers.store.put("topics/t", b"again")
        await brokers.commit(1, "both")
        await brokers.commit(2, "new")
        await self.tell(brokers, "t")
        assert [brokers.offset(name) for name in ("old", "both", "new")] == [None, 1, 2]

    async def test_that_is_there_loses_nothing_whatever_is_said(self, brokers: Brokers) -> None:
        await brokers.start(1)
        await brokers.commit(5)
        await self.tell(brokers, "t")
        assert brokers.offset() == 5

    async def test_while_nobody_coordinates_is_noticed_when_somebody_does(
        self, brokers: Brokers
    ) -> None:
        await brokers.start(1)
        await brokers.commit(5, "gone", "t")
        await brokers.commit(5, "renewed", "u")
        await brokers.commit(5, "renewed", "t")
        node = brokers.gone(1)
        await node.groups.leave()
        await self.delete(brokers, "t")
        await self.delete(brokers, "u")
        await brokers.store.put("topics/u", b"again")
        await brokers.start(2)
        assert brokers.offset("gone", "t") is None
        assert brokers.offset("renewed", "u") is None
        assert (await brokers.store.get_prefix("offsets/")).entries == ()

    async def test_while_somebody_loads_the_groups_is_noticed_too(self, brokers: Brokers) -> None:
        """What it has read of the store by then knows only of the topic as it was."""
        await brokers.start(1)
        await brokers.commit(5, "g", "t")
        await brokers.commit(6, "g", "u")
        left = brokers.gone(1)
        await left.groups.leave()
        node = brokers.nodes[2] = await brokers.prepare(2)
        await node.register()
        brokers.tell()
        node.link.topics_found.clear()
        await until(lambda: node.link.has_found_topics)
        await self.delete(brokers, "t")
        await self.tell(brokers, "t")
        await brokers.store.put("topics/t", b"again")
        node.link.topics_found.set()
        await brokers.settled()
        await until(lambda: brokers.offset("g", "t") is None)
        assert brokers.offset("g", "u") == 6
        assert await stored(brokers, "g", "t") is None


class TestTheWatch:
    async def test_goes_on_when_its_history_is_gone(self) -> None:
        store = MemoryStore(history_events_max=80)

        async def connect() -> MetadataStore:
            return store

        brokers = Brokers(connect)
        await brokers.open()
        await brokers.start(1, 2)
        for node in brokers.nodes.values():
            node.pause()
        gone = brokers.nodes[1]
        await gone.end_lease()
        for _ in range(300):
            await store.put("coordinators/filler", b"")
        for node in brokers.nodes.values():
            node.link.hears.set()
        brokers.gone(1)
        await brokers.settled()
        assert gone.slots == set()
        await brokers.close()

    async def test_is_not_misled_by_strange_keys(self, brokers: Brokers) -> None:
        await brokers.store.put("coordinators/strange", b"")
        await brokers.store.put("coordinators/63", b"what is this")
        node = await brokers.prepare(1)
        await node.register()
        node.groups.brokers_changed([1])
        await until(lambda: len(node.slots) == SLOTS - 1)


async def test_a_member_that_leaves_and_a_group_that_is_deleted_are_gone_for_the_next_one_too(
    brokers: Brokers,
) -> None:
    await brokers.start(1)
    member = await brokers.stable("g")
    await brokers.commit(5, "h")
    assert brokers.groups("g").leave("g", [Leaving(member_id=member.member_id)]) == [ErrorCode.none]
    await brokers.groups("h").delete("h")
    node = brokers.gone(1)
    await node.groups.leave()
    await brokers.start(2)
    assert brokers.groups("g").describe("g").members == ()
    with contextlib.suppress(ApiError):
        brokers.groups("h").describe("h")
        pytest.fail("the group is back")
