"""The rules of syncing, heartbeats, sessions, leaving, static members and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import ErrorCode
from penstock.groups import Assignor

if TYPE_CHECKING:
    from tests.groups.conftest import Machine


def offer(*names: str, metadata: bytes = b"") -> tuple[Assignor, ...]:
    return tuple(Assignor(name=name, metadata=metadata) for name in names)


class TestSync:
    def test_gives_each_member_what_the_leader_assigned(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        b = machine.join()
        machine.join(a)
        follower = machine.sync(b.member_id)
        assert follower.waits
        leader = machine.sync(a, {a: b"0", b.member_id: b"1"})
        assert leader.synced is not None
        assert follower.synced is not None
        assert (leader.synced.assignment, follower.synced.assignment) == (b"0", b"1")
        assert leader.synced.protocol_type == "consumer"
        assert leader.synced.protocol_name == "range"
        assert machine.state == "Stable"

    def test_after_the_leader_is_answered_at_once(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        b = machine.join()
        machine.join(a)
        machine.sync(a, {b.member_id: b"1"})
        late = machine.sync(b.member_id)
        assert late.synced is not None
        assert late.synced.assignment == b"1"

    def test_of_a_stable_group_renews_the_session(self, machine: Machine) -> None:
        (a,) = machine.stable(1, session_s=10)
        machine.wait(9)
        machine.sync(a)
        machine.wait(9)
        assert machine.state == "Stable"

    def test_gives_members_the_leader_forgot_an_empty_assignment(self, machine: Machine) -> None:
        a = machine.join()
        done = machine.sync(a.member_id, {"somebody else": b"1"})
        assert done.synced is not None
        assert (done.error, done.synced.assignment) == (ErrorCode.none, b"")

    def test_is_answered_only_when_the_assignment_is_durable(self, machine: Machine) -> None:
        machine.holds_stores = True
        a = machine.join()
        leader = machine.sync(a.member_id, {a.member_id: b"0"})
        assert leader.waits
        assert machine.state == "CompletingRebalance"
        (store,) = machine.stores
        assert store.record.members[0].assignment == b"0"
        machine.finish_store()
        assert leader.error is ErrorCode.none
        assert machine.state == "Stable"

    def test_fails_for_all_if_the_assignment_cannot_be_stored(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        b = machine.join()
        machine.join(a)
        machine.holds_stores = True
        follower = machine.sync(b.member_id)
        leader = machine.sync(a, {a: b"0"})
        machine.finish_store(ErrorCode.coordinator_not_available)
        assert leader.error is follower.error is ErrorCode.coordinator_not_available
        assert machine.state == "PreparingRebalance", "the members may try again"
        machine.holds_stores = False
        machine.join(a)
        assert machine.join(b.member_id).generation == 3

    def test_ignores_a_store_that_ends_after_the_next_rebalance_began(
        self, machine: Machine
    ) -> None:
        machine.holds_stores = True
        a = machine.join()
        leader = machine.sync(a.member_id)
        b = machine.join()
        assert leader.error is ErrorCode.rebalance_in_progress
        machine.finish_store()
        assert machine.state == "PreparingRebalance"
        assert b.waits

    def test_repeated_by_the_leader_is_stored_once(self, machine: Machine) -> None:
        machine.holds_stores = True
        a = machine.join()
        lost = machine.sync(a.member_id, {a.member_id: b"0"})
        again = machine.sync(a.member_id, {a.member_id: b"0"})
        assert lost.error is ErrorCode.rebalance_in_progress
        assert len(machine.stores) == 1
        machine.finish_store()
        assert again.error is ErrorCode.none

    def test_during_a_rebalance_sends_the_member_back_to_join(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        machine.join()
        assert machine.sync(a).error is ErrorCode.rebalance_in_progress

    def test_of_another_generation_or_member_is_refused(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        assert machine.sync(a, generation=0).error is ErrorCode.illegal_generation
        assert machine.sync(a, generation=2).error is ErrorCode.illegal_generation
        assert machine.sync("nobody").error is ErrorCode.unknown_member_id

    def test_must_name_the_protocol_of_the_group_if_any(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        wrong = ErrorCode.inconsistent_group_protocol
        assert machine.sync(a, protocol_type="connect").error is wrong
        assert machine.sync(a, protocol_name="sticky").error is wrong
        right = machine.sync(a, protocol_type="consumer", protocol_name="range")
        assert right.error is ErrorCode.none

    def test_is_expected_within_the_rebalance_timeout(self, machine: Machine) -> None:
        (a,) = machine.stable(1, rebalance_s=5)
        b = machine.join(rebalance_s=5, session_s=60)
        machine.join(a, rebalance_s=5)
        machine.sync(a, {a: b"0"})
        machine.wait(4.9)
        assert machine.state == "Stable"
        machine.wait(0.1)
        assert machine.heartbeat(b.member_id) is ErrorCode.unknown_member_id
        assert machine.heartbeat(a) is ErrorCode.rebalance_in_progress


class TestHeartbeat:
    def test_renews_the_session(self, machine: Machine) -> None:
        (a,) = machine.stable(1, session_s=10)
        for _ in range(5):
            machine.wait(9)
            assert machine.heartbeat(a) is ErrorCode.none
        machine.wait(9.9)
        assert machine.state == "Stable"
        machine.wait(0.1)
        assert machine.state == "Empty"

    def test_of_another_generation_or_member_is_refused(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        assert machine.heartbeat(a, generation=5) is ErrorCode.illegal_generation
        assert machine.heartbeat("nobody") is ErrorCode.unknown_member_id

    def test_that_is_refused_does_not_renew_the_session(self, machine: Machine) -> None:
        (a,) = machine.stable(1, session_s=10)
        machine.wait(9)
        machine.heartbeat(a, generation=5)
        machine.wait(1)
        assert machine.state == "Empty"

    def test_is_fine_before_the_sync(self, machine: Machine) -> None:
        a = machine.join(session_s=10)
        machine.wait(9)
        assert machine.heartbeat(a.member_id) is ErrorCode.none
        machine.wait(9)
        assert machine.state == "CompletingRebalance"

    def test_tells_of_a_rebalance_and_renews_the_session_all_the_same(
        self, machine: Machine
    ) -> None:
        (a, b) = machine.stable(2, session_s=10)
        machine.join(b, protocols=offer("range", metadata=b"new"))
        for _ in range(3):
            machine.wait(9)
            assert machine.heartbeat(a) is ErrorCode.rebalance_in_progress


class TestASession:
    def test_that_ends_makes_the_others_rebalance(self, machine: Machine) -> None:
        (a, b) = machine.stable(2, session_s=10)
        machine.wait(6)
        machine.heartbeat(a)
        machine.wait(4)
        assert machine.heartbeat(b) is ErrorCode.unknown_member_id
        assert machine.heartbeat(a) is ErrorCode.rebalance_in_progress
        assert machine.join(a).generation == 3

    def test_does_not_end_while_the_member_waits_for_the_others(self, machine: Machine) -> None:
        (a, b) = machine.stable(2, session_s=10)
        again = machine.join(a, protocols=offer("range", metadata=b"new"))
        for _ in range(4):
            machine.wait(9)
            machine.heartbeat(b)
        assert again.waits
        assert machine.join(b).generation == again.generation == 3

    def test_does_not_end_while_the_member_waits_for_its_assignment(self, machine: Machine) -> None:
        (a,) = machine.stable(1, session_s=10)
        b = machine.join(session_s=10)
        machine.join(a)
        waits = machine.sync(b.member_id)
        for _ in range(4):
            machine.wait(9)
            machine.heartbeat(a)
        assert waits.waits
        machine.sync(a, {b.member_id: b"1"})
        assert waits.error is ErrorCode.none
        machine.wait(5)
        machine.heartbeat(a)
        machine.wait(4.9)
        assert machine.state == "Stable", "a new session began"
        machine.wait(0.1)
        assert machine.heartbeat(b.member_id) is ErrorCode.unknown_member_id

    def test_begins_when_the_join_is_answered(self, machine: Machine) -> None:
        a = machine.join(session_s=10)
        machine.wait(9.9)
        assert machine.state == "CompletingRebalance"
        machine.wait(0.1)
        assert machine.state == "Empty"
        assert machine.sync(a.member_id).error is ErrorCode.unknown_member_id


class TestLeaving:
    def test_makes_the_others_rebalance(self, machine: Machine) -> None:
        (a, b) = machine.stable(2)
        assert machine.leave(a) is ErrorCode.none
        assert machine.heartbeat(b) is ErrorCode.rebalance_in_progress
        again = machine.join(b)
        assert again.joined is not None
        assert again.joined.leader == b

    def test_of_the_last_member_empties_the_group(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        machine.leave(a)
        assert (machine.state, machine.group.generation) == ("Empty", 2)
        assert machine.stores[-1].record.members == ()

    def test_completes_a_rebalance_that_waited_for_the_member(self, machine: Machine) -> None:
        (a, b) = machine.stable(2)
        waiting = machine.join(a)
        machine.leave(b)
        assert waiting.generation == 3

    def test_answers_what_the_member_waits_for(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        b = machine.join()
        machine.leave("m-2")
        assert b.error is ErrorCode.unknown_member_id
        c = machine.join()
        machine.join(a)
        sync = machine.sync(c.member_id)
        machine.leave(c.member_id)
        assert sync.error is ErrorCode.unknown_member_id

    def test_of_somebody_unknown_is_refused(self, machine: Machine) -> None:
        machine.stable(1)
        assert machine.leave("nobody") is ErrorCode.unknown_member_id
        assert machine.leave("", instance="i") is ErrorCode.unknown_member_id
        assert machine.leave("") is ErrorCode.unknown_member_id
        assert machine.state == "Stable"

    def test_can_be_ordered_by_instance_id(self, machine: Machine) -> None:
        machine.stable(1, instances=["i"])
        assert machine.leave("", instance="i") is ErrorCode.none
        assert machine.state == "PreparingRebalance"

    def test_with_the_id_of_an_older_instance_is_fenced(self, machine: Machine) -> None:
        machine.stable(1, instances=["i"])
        assert machine.leave("older", instance="i") is ErrorCode.fenced_instance_id
        assert machine.state == "Stable"


class TestAStaticMember:
    def test_that_comes_back_keeps_its_assignment_without_a_rebalance(
        self, machine: Machine
    ) -> None:
        (_, s) = machine.stable(1, instances=["i"])
        back = machine.join(instance="i")
        assert (back.error, back.generation) == (ErrorCode.none, 2)
        assert back.member_id != s
        assert machine.state == "Stable"
        got = machine.sync(back.member_id, group_instance_id="i")
        assert got.synced is not None
        assert got.synced.assignment == f"of {s}".encode()

    def test_that_comes_back_is_told_its_id_when_that_is_durable(self, machine: Machine) -> None:
        machine.stable(1, instances=["i"])
        machine.holds_stores = True
        back = machine.join(instance="i")
        assert back.waits
        assert [m.group_instance_id for m in machine.stores[-1].record.members] == [None, "i"]
        machine.finish_store()
        assert back.error is ErrorCode.none

    def test_has_a_session_from_then_on_however_long_it_took(self, machine: Machine) -> None:
        (a, _) = machine.stable(1, instances=["i"], session_s=10)
        machine.holds_stores = True
        back = machine.join(instance="i", session_s=10)
        for _ in range(2):
            machine.wait(9)
            machine.heartbeat(a)
        machine.finish_store()
        assert back.error is ErrorCode.none
        machine.wait(9)
        machine.heartbeat(a)
        assert machine.heartbeat(back.member_id, instance="i") is ErrorCode.none
        for _ in range(2):
            machine.wait(9)
            machine.heartbeat(a)
        assert machine.heartbeat(back.member_id, instance="i") is ErrorCode.unknown_member_id

    def test_expires_if_it_is_gone_when_its_new_id_is_durable(self, machine: Machine) -> None:
        (a, _) = machine.stable(1, instances=["i"], session_s=10)
        machine.holds_stores = True
        machine.join(instance="i", session_s=10)
        for _ in range(2):
            machine.wait(9)
            machine.heartbeat(a)
        machine.finish_store()
        machine.wait(10)
        assert machine.group.members.static_member_id("i") is None

    def test_keeps_its_old_id_if_the_new_one_cannot_be_stored(self, machine: Machine) -> None:
        (a, s) = machine.stable(1, instances=["i"], session_s=10)
        machine.holds_stores = True
        back = machine.join(instance="i", session_s=10)
        machine.finish_store(ErrorCode.coordinator_not_available)
        assert (back.error, back.member_id) == (ErrorCode.coordinator_not_available, "")
        machine.wait(9)
        machine.heartbeat(a)
        assert machine.group.members.static_member_id("i") == s
        machine.wait(1)
        assert machine.heartbeat(s, instance="i") is ErrorCode.unknown_member_id, "nobody is there"

    def test_fences_its_older_self_everywhere(self, machine: Machine) -> None:
        (_, s) = machine.stable(1, instances=["i"])
        machine.join(instance="i")
        fenced = ErrorCode.fenced_instance_id
        assert machine.heartbeat(s, instance="i") is fenced
        assert machine.join(s, instance="i").error is fenced
        assert machine.sync(s, group_instance_id="i").error is fenced
        assert machine.commit(s, generation=2, instance="i") is fenced

    def test_releases_what_its_older_self_waits_for(self, machine: Machine) -> None:
        (_, s) = machine.stable(1, instances=["i"])
        machine.join()
        old_join = machine.join(s, instance="i")
        new = machine.join(instance="i")
        assert old_join.error is ErrorCode.fenced_instance_id
        assert new.waits

    def test_under_an_unknown_instance_id_is_refused(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        assert machine.heartbeat(a, instance="i") is ErrorCode.unknown_member_id

    def test_that_led_may_skip_the_assignment(self, machine: Machine) -> None:
        machine.stable(0, instances=["i", "j"])
        back = machine.join(instance="i", can_skip=True)
        assert back.joined is not None
        assert back.joined.skip_assignment
        assert back.joined.leader == back.member_id
        assert len(back.joined.members) == 2

    def test_that_led_is_told_of_the_old_leader_if_it_cannot_skip(self, machine: Machine) -> None:
        (s, _) = machine.stable(0, instances=["i", "j"])
        back = machine.join(instance="i")
        assert back.joined is not None
        assert (back.joined.leader, back.joined.members) == (s, ())
        assert not back.joined.skip_assignment

    def test_that_followed_skips_nothing(self, machine: Machine) -> None:
        (s, _) = machine.stable(0, instances=["i", "j"])
        back = machine.join(instance="j", can_skip=True)
        assert back.joined is not None
        assert (back.joined.skip_assignment, back.joined.leader) == (False, s)

    def test_that_changes_the_protocol_starts_a_rebalance(self, machine: Machine) -> None:
        machine.stable(0, instances=["i"], protocols=offer("range", "sticky"))
        back = machine.join(instance="i", protocols=offer("sticky"))
        assert back.joined is not None
        assert (back.generation, back.joined.protocol_name) == (2, "sticky")

    def test_that_comes_back_before_the_sync_starts_a_rebalance(self, machine: Machine) -> None:
        (a, s) = machine.stable(1, instances=["i"])
        machine.join(a)
        machine.join(s, instance="i")
        follower = machine.sync(s, group_instance_id="i")
        back = machine.join(instance="i")
        assert follower.error is ErrorCode.fenced_instance_id
        assert machine.state == "PreparingRebalance"
        machine.join(a)
        assert back.generation == 4

    def test_that_came_back_is_still_expected_to_sync(self, machine: Machine) -> None:
        (a, s) = machine.stable(1, instances=["i"], rebalance_s=5, session_s=60)
        machine.join(a, rebalance_s=5, session_s=60)
        machine.join(s, instance="i", rebalance_s=5, session_s=60)
        machine.sync(a, {})
        back = machine.join(instance="i", rebalance_s=5, session_s=60)
        assert machine.state == "Stable"
        machine.wait(5)
        assert machine.heartbeat(back.member_id) is ErrorCode.unknown_member_id
        assert machine.state == "PreparingRebalance"

    def test_expires_with_its_session_under_its_new_id(self, machine: Machine) -> None:
        (a, _) = machine.stable(1, instances=["i"], session_s=10)
        machine.wait(5)
        machine.heartbeat(a)
        back = machine.join(instance="i", session_s=10)
        machine.wait(9)
        machine.heartbeat(a)
        assert machine.state == "Stable"
        machine.wait(1)
        assert machine.heartbeat(back.member_id) is ErrorCode.unknown_member_id


class TestACommit:
    @pytest.fixture
    def members(self, machine: Machine) -> list[str]:
        return machine.stable(2, session_s=10)

    def test_needs_no_membership_while_the_group_is_empty(self, machine: Machine) -> None:
        assert machine.commit() is ErrorCode.none
        assert machine.commit("whoever") is ErrorCode.none

    def test_of_a_generation_is_refused_while_the_group_is_empty(self, machine: Machine) -> None:
        assert machine.commit("m", generation=1) is ErrorCode.unknown_member_id

    def test_needs_membership_when_there_are_members(
        self, machine: Machine, members: list[str]
    ) -> None:
        assert machine.commit() is ErrorCode.unknown_member_id
        assert machine.commit("nobody", generation=2) is ErrorCode.unknown_member_id

    def test_must_be_of_the_current_generation(self, machine: Machine, members: list[str]) -> None:
        (a, _) = members
        assert machine.commit(a, generation=2) is ErrorCode.none
        assert machine.commit(a, generation=1) is ErrorCode.illegal_generation
        assert machine.commit(a) is ErrorCode.illegal_generation

    def test_renews_the_session(self, machine: Machine, members: list[str]) -> None:
        (a, b) = members
        for _ in range(3):
            machine.wait(9)
            assert machine.commit(a, generation=2) is ErrorCode.none
            machine.heartbeat(b)
        assert machine.state == "Stable"

    def test_is_allowed_until_the_next_generation_begins(
        self, machine: Machine, members: list[str]
    ) -> None:
        (a, b) = members
        machine.join(b, protocols=offer("range", metadata=b"new"))
        assert machine.commit(a, generation=2) is ErrorCode.none
        machine.join(a)
        assert machine.commit(a, generation=2) is ErrorCode.illegal_generation
        assert machine.commit(a, generation=3) is ErrorCode.rebalance_in_progress


class TestADescription:
    def test_shows_metadata_and_assignments_of_a_stable_group(self, machine: Machine) -> None:
        (a,) = machine.stable(1, protocols=offer("range", metadata=b"topics"))
        described = machine.group.describe()
        assert (described.state.value, described.protocol) == ("Stable", "range")
        (member,) = described.members
        assert member.metadata("range") == b"topics"
        assert member.assignment == f"of {a}".encode()
        assert (member.client_id, member.client_host) == ("client", "host")

    def test_shows_only_names_during_a_rebalance(self, machine: Machine) -> None:
        machine.stable(1, protocols=offer("range", metadata=b"topics"))
        machine.join()
        described = machine.group.describe()
        assert (described.state.value, described.protocol) == ("PreparingRebalance", "")
        assert len(described.members) == 2
        assert {m.metadata("range") for m in described.members} == {b""}
        assert {m.assignment for m in described.members} == {b""}


class TestTheEnd:
    def test_of_a_group_with_members_is_refused(self, machine: Machine) -> None:
        machine.stable(1)
        assert machine.group.begin_delete() is ErrorCode.non_empty_group

    def test_refuses_everybody(self, machine: Machine) -> None:
        assert machine.group.begin_delete() is ErrorCode.none
        gone = ErrorCode.coordinator_not_available
        assert machine.join().error is gone
        assert machine.sync("m").error is gone
        assert machine.heartbeat("m") is gone
        assert machine.commit() is gone
        assert machine.group.begin_delete() is ErrorCode.group_id_not_found

    def test_can_be_taken_back(self, machine: Machine) -> None:
        machine.group.begin_delete()
        machine.group.revive()
        assert machine.join().generation == 1

    def test_by_unloading_answers_all_who_wait(self, machine: Machine) -> None:
        machine.stable(1)
        join = machine.join()
        machine.group.unload()
        machine.perform()
        assert join.error is ErrorCode.not_coordinator
        assert len(machine.timers) == 0
        other = type(machine)()
        b = other.join()
        other.holds_stores = True
        sync = other.sync(b.member_id)
        other.group.unload()
        other.perform()
        assert sync.error is ErrorCode.not_coordinator
