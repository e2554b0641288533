"""The rules of joining a group and of the rebalance that follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.groups import Assignor

if TYPE_CHECKING:
    from tests.groups.conftest import Machine


def offer(*names: str, metadata: bytes = b"") -> tuple[Assignor, ...]:
    return tuple(Assignor(name=name, metadata=metadata) for name in names)


class TestTheFirstMember:
    def test_starts_generation_one_and_leads_it(self, machine: Machine) -> None:
        first = machine.join()
        assert first.joined is not None
        assert (first.error, first.generation) == (ErrorCode.none, 1)
        assert first.joined.leader == first.member_id
        assert first.joined.protocol_type == "consumer"
        assert first.joined.protocol_name == "range"
        assert machine.state == "CompletingRebalance"

    def test_needs_a_protocol_type_and_a_protocol(self, machine: Machine) -> None:
        assert machine.join(protocol_type="").error is ErrorCode.inconsistent_group_protocol
        assert machine.join(protocols=()).error is ErrorCode.inconsistent_group_protocol
        assert machine.state == "Empty"
        assert machine.group.is_vacant

    def test_with_a_delay_waits_for_others(self, machine_with: Callable[..., Machine]) -> None:
        machine = machine_with(group_initial_rebalance_delay_ms=3_000)
        first = machine.join()
        machine.wait(2.9)
        second = machine.join()
        assert first.waits
        assert second.waits
        machine.wait(0.1)  # the delay is over, but somebody came: it is extended
        assert first.waits
        machine.wait(3)
        assert first.generation == second.generation == 1

    def test_is_not_delayed_beyond_the_rebalance_timeout(
        self, machine_with: Callable[..., Machine]
    ) -> None:
        machine = machine_with(group_initial_rebalance_delay_ms=3_000)
        first = machine.join(rebalance_s=7)
        for seconds in (2.4, 2.4, 2.1):
            machine.wait(seconds)
            machine.join(rebalance_s=7)
            assert first.waits
        machine.wait(0.1)
        assert first.generation == 1, "somebody came again, but seven seconds are over"


class TestALaterMember:
    def test_makes_the_others_rejoin(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        b = machine.join()
        assert b.waits
        assert machine.heartbeat(a) is ErrorCode.rebalance_in_progress
        again = machine.join(a)
        assert again.generation == b.generation == 2
        assert machine.state == "CompletingRebalance"

    def test_only_the_leader_learns_of_all_members(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        b = machine.join(protocols=offer("range", metadata=b"b's"))
        again = machine.join(a, protocols=offer("range", metadata=b"a's"))
        assert again.joined is not None
        assert b.joined is not None
        told = {m.member_id: m.metadata for m in again.joined.members}
        assert told == {a: b"a's", b.member_id: b"b's"}
        assert b.joined.members == ()
        assert b.joined.leader == a

    def test_must_be_of_the_same_protocol_type(self, machine: Machine) -> None:
        machine.stable(1)
        assert machine.join(protocol_type="connect").error is ErrorCode.inconsistent_group_protocol
        assert machine.state == "Stable"

    def test_must_support_a_protocol_that_all_support(self, machine: Machine) -> None:
        machine.stable(2, protocols=offer("range", "sticky"))
        wrong = machine.join(protocols=offer("roundrobin"))
        assert wrong.error is ErrorCode.inconsistent_group_protocol
        assert machine.join(protocols=offer("sticky")).waits

    def test_cannot_bring_a_protocol_that_only_some_support(self, machine: Machine) -> None:
        (a,) = machine.stable(1, protocols=offer("range", "sticky"))
        b = machine.join(protocols=offer("sticky"))
        machine.join(a, protocols=offer("range", "sticky"))
        assert b.error is ErrorCode.none
        assert machine.join(protocols=offer("range")).error is ErrorCode.inconsistent_group_protocol

    def test_with_an_unknown_id_is_refused(self, machine: Machine) -> None:
        assert machine.join("nobody").error is ErrorCode.unknown_member_id
        machine.stable(1)
        assert machine.join("nobody").error is ErrorCode.unknown_member_id
        assert machine.state == "Stable"


class TestTheProtocol:
    def test_with_most_votes_among_those_all_support_is_taken(self, machine: Machine) -> None:
        (a, b) = machine.stable(2, protocols=offer("range", "sticky"))
        c = machine.join(protocols=offer("newest", "sticky", "range"))
        machine.join(a, protocols=offer("range", "sticky"))
        machine.join(b, protocols=offer("sticky", "range"))
        assert c.joined is not None
        assert c.joined.protocol_name == "sticky"

    def test_a_vote_goes_to_the_first_choice_that_all_support(self, machine: Machine) -> None:
        (a,) = machine.stable(1, protocols=offer("range", "sticky"))
        b = machine.join(protocols=offer("newest", "range", "sticky"))
        machine.join(a, protocols=offer("range", "sticky"))
        assert b.joined is not None
        assert b.joined.protocol_name == "range"


class TestAMemberId:
    def test_is_to_be_brought_by_new_clients(self, machine: Machine) -> None:
        refused = machine.join(requires_id=True)
        assert refused.error is ErrorCode.member_id_required
        assert refused.member_id
        assert machine.state == "Empty"
        assert machine.join(refused.member_id, requires_id=True).generation == 1

    def test_given_out_holds_up_a_rebalance(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        pending = machine.join(requires_id=True)
        b = machine.join()
        again = machine.join(a)
        assert b.waits
        c = machine.join(pending.member_id, requires_id=True)
        assert b.generation == again.generation == c.generation == 2

    def test_given_out_expires_with_the_session(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        pending = machine.join(requires_id=True, session_s=10)
        b = machine.join()
        again = machine.join(a)
        machine.wait(9.9)
        assert b.waits
        machine.wait(0.1)
        assert b.generation == again.generation == 2
        late = machine.join(pending.member_id)
        assert late.error is ErrorCode.unknown_member_id

    def test_handed_back_holds_up_nothing(self, machine: Machine) -> None:
        (a,) = machine.stable(1)
        pending = machine.join(requires_id=True)
        b = machine.join()
        again = machine.join(a)
        machine.leave(pending.member_id)
        assert b.generation == again.generation == 2

    def test_given_out_can_be_handed_back(self, machine: Machine) -> None:
        pending = machine.join(requires_id=True)
        assert machine.leave(pending.member_id) is ErrorCode.none
        assert machine.group.is_vacant

    def test_is_not_asked_of_static_members(self, machine: Machine) -> None:
        assert machine.join(instance="i", requires_id=True).generation == 1


class TestTheRebalance:
    def test_drops_those_who_do_not_rejoin_in_time(self, machine: Machine) -> None:
        (a, b) = machine.stable(2, rebalance_s=8)
        c = machine.join(rebalance_s=8)
        again = machine.join(b, rebalance_s=8)
        machine.wait(7.9)
        assert c.waits
        machine.wait(0.1)
        assert again.generation == c.generation == 3
        assert again.joined is not None
        assert again.joined.leader == b, "the leader was dropped"
        assert machine.heartbeat(a) is ErrorCode.unknown_member_id

    def test_waits_as_long_as_the_most_patient_member_asks(self, machine: Machine) -> None:
        (_, b) = machine.stable(2, rebalance_s=50)
        machine.join(b, rebalance_s=50, protocols=offer("range", metadata=b"new"))
        c = machine.join(rebalance_s=5)
        for _ in range(5):  # a heartbeats, yet does not rejoin
            machine.wait(9)
            machine.heartbeat("m-1")
        assert c.waits
        machine.wait(6)
        assert c.generation == 3

    def test_keeps_static_members_that_do_not_rejoin(self, machine: Machine) -> None:
        (a, s) = machine.stable(1, instances=["i"], rebalance_s=5, session_s=60)
        again = machine.join(a, rebalance_s=5, session_s=60)
        machine.wait(5)
        assert again.joined is not None
        assert {m.member_id for m in again.joined.members} == {a, s}

    def test_of_static_members_only_waits_for_one_of_them(self, machine: Machine) -> None:
        (a, _) = machine.stable(1, instances=["i"], rebalance_s=5, session_s=30)
        machine.leave(a)
        assert machine.state == "PreparingRebalance"
        machine.wait(12)
        assert machine.state == "PreparingRebalance", "nobody joined: there is no generation"
        machine.wait(20)
        assert machine.state == "Empty", "the static member's session is over"

    def test_repeated_by_a_member_that_lost_its_answer_is_answered_again(
        self, machine: Machine
    ) -> None:
        a = machine.join()
        again = machine.join(a.member_id)
        assert again.joined == a.joined
        assert machine.state == "CompletingRebalance"

    def test_begins_anew_when_a_member_changes_its_subscription(self, machine: Machine) -> None:
        a = machine.join()
        waits_for_sync = machine.sync("m-1")  # the store answers at once: stable
        assert waits_for_sync.error is ErrorCode.none
        changed = machine.join(a.member_id, protocols=offer("range", metadata=b"other"))
        assert changed.generation == 2

    def test_begins_when_the_stable_leader_joins_again(self, machine: Machine) -> None:
        (a, b) = machine.stable(2)
        assert machine.join(b).generation == 2, "a follower without news is told the generation"
        assert machine.state == "Stable"
        assert machine.join(a).waits
        assert machine.state == "PreparingRebalance"

    def test_releases_a_lost_join_when_the_member_repeats_it(self, machine: Machine) -> None:
        (a, b) = machine.stable(2)
        lost = machine.join(a)
        again = machine.join(a)
        assert lost.error is ErrorCode.rebalance_in_progress
        machine.join(b)
        assert again.generation == 3


class TestRoom:
    def test_ends_at_the_limit(self, machine_with: Callable[..., Machine]) -> None:
        machine = machine_with(group_members_max=2)
        machine.stable(2)
        refused = machine.join()
        assert (refused.error, refused.member_id) == (ErrorCode.group_max_size_reached, "")
        assert machine.state == "Stable"

    def test_is_kept_for_members_that_rejoin(self, machine_with: Callable[..., Machine]) -> None:
        machine = machine_with(group_members_max=2)
        (a, b) = machine.stable(2)
        first = machine.join(a)
        assert machine.join(b).generation == first.generation == 3

    def test_is_kept_for_a_static_member_that_lost_its_id(
        self, machine_with: Callable[..., Machine]
    ) -> None:
        machine = machine_with(group_members_max=2)
        machine.stable(1, instances=["i"])
        assert machine.join(instance="i").error is ErrorCode.none

    def test_is_bounded_for_ids_given_out_too(self, machine_with: Callable[..., Machine]) -> None:
        machine = machine_with(group_members_max=2)
        machine.join(requires_id=True)
        machine.join(requires_id=True)
        assert machine.join(requires_id=True).error is ErrorCode.group_max_size_reached

    def test_is_denied_to_the_last_to_rejoin_of_a_group_over_its_limit(
        self, machine_with: Callable[..., Machine]
    ) -> None:
        machine = machine_with(group_members_max=2)
        (a, b) = machine.stable(2)
        c = machine.join()
        assert c.error is ErrorCode.group_max_size_reached
        machine.join(a)
        assert machine.join().waits, "there is room: b has not rejoined"
        assert machine.join(b).error is ErrorCode.group_max_size_reached
        assert machine.heartbeat(b) is ErrorCode.unknown_member_id
        assert machine.group.generation == 3


class TestANewMemberThatWaits:
    def test_is_not_expired_by_its_session(self, machine: Machine) -> None:
        (a,) = machine.stable(1, session_s=60, rebalance_s=100)
        b = machine.join(session_s=6)
        machine.wait(30)
        again = machine.join(a, session_s=60)
        assert b.generation == again.generation == 2

    def test_is_given_up_after_five_minutes(self, machine: Machine) -> None:
        (a,) = machine.stable(1, session_s=900, rebalance_s=800)
        b = machine.join(session_s=6)
        machine.wait(299)
        assert b.waits
        machine.wait(1)
        assert (b.error, b.member_id) == (ErrorCode.unknown_member_id, "")
        assert machine.join(a).generation == 2
