"""The rules of the controller: what it makes of topics and brokers, and that anyone can go on from there."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from penstock.cluster import requests
from penstock.cluster.controller import BrokerReport, Loss
from penstock.cluster.placement import Placement
from penstock.cluster.state import Readiness, broker_key, encode_broker, partition_key
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.store import TRANSACTION_OPERATIONS_MAX
from penstock.model import TopicPartition
from tests.cluster.desk import Desk, registration

ORDERS = TopicPartition("t", 0)


@pytest.fixture
def desk() -> Desk:
    """Three brokers and a topic with one partition on all of them; broker 1 leads in epoch 0."""
    made = Desk()
    made.create()
    made.open_all()
    return made


class TestPlacement:
    def test_spreads_leaders_and_replicas_evenly(self) -> None:
        desk = Desk(brokers=5)
        desk.create(partitions=50, replicas=3)
        leaders = Counter(state.leader for state in desk.states())
        replicas = Counter(broker for state in desk.states() for broker in state.replicas)
        assert set(leaders.values()) == {10}
        assert max(replicas.values()) - min(replicas.values()) <= 2

    def test_gives_a_tie_to_the_smallest_id(self, desk: Desk) -> None:
        assert desk[0].replicas == (1, 2, 3)
        assert desk[0].leader == 1

    def test_puts_replicas_into_different_racks(self) -> None:
        racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "c"}
        brokers = {b: registration(b, rack=rack) for b, rack in racks.items()}
        placement = Placement(brokers, {}, {})
        for _ in range(20):
            assert {racks[broker] for broker in placement.place(3)} == {"a", "b", "c"}

    def test_leaves_out_who_is_about_to_leave(self) -> None:
        brokers = {1: registration(1, is_leaving=True), 2: registration(2)}
        assert Placement(brokers, {}, {}).place(2) == (2,)


class TestTopics:
    def test_begin_with_everybody_in_sync_and_nobody_ready(self) -> None:
        desk = Desk()
        desk.create()
        assert desk[0].isr == desk.isr(1, 2, 3)
        assert desk[0].ready == frozenset()
        assert requests.opening(desk.view, "t") == (3, {})

    def test_are_open_when_every_broker_says_so(self, desk: Desk) -> None:
        assert requests.opening(desk.view, "t") == (0, {})

    def test_tell_why_a_replica_did_not_open(self) -> None:
        desk = Desk()
        desk.create()
        desk.report(2, opened={ORDERS: "disk full " * 100})
        assert desk[0].readiness(2) is Readiness.ERROR
        pending, errors = requests.opening(desk.view, "t")
        assert pending == 2
        assert errors[ORDERS].startswith("broker 2: disk full")

    def test_grow_without_moving_what_is_there(self, desk: Desk) -> None:
        before = desk[0]
        desk.settle([requests.grow_topic(desk.view, "t", 4)])
        assert desk[0] == before
        assert {desk[p].leader for p in (1, 2)} == {2, 3}
        assert len(desk.states()) == 4

    def test_are_placed_by_hand_if_asked(self) -> None:
        desk = Desk()
        desk.create(partitions=3, replicas=2, assignment=((3, 1), (2, 3)))
        assert [desk[p].replicas for p in (0, 1)] == [(3, 1), (2, 3)]
        assert desk[0].leader == 3
        assert len(desk[2].replicas) == 2

    def test_of_a_thousand_partitions_fit_into_few_transactions(self) -> None:
        desk = Desk()
        desk.create(partitions=1000)
        big = [t for t in desk.committed if len(t.puts) > 1]
        assert sum(len(t.puts) for t in big) == 1000
        assert len(big) == -(-1000 // (TRANSACTION_OPERATIONS_MAX - 2))

    def test_go_with_their_partitions(self, desk: Desk) -> None:
        desk.settle([requests.delete_topic(desk.view, "t")])
        assert [entry.key for entry in desk.space.snapshot("partitions/").entries] == []
        desk.watch("topics/t", partition_key(ORDERS))
        assert desk.states() == []
        desk.create()
        assert desk[0].leader == 1

    def test_leave_no_partition_behind_that_a_controller_made_too_late(self, desk: Desk) -> None:
        desk.write("topics/t", None)
        desk.controller = desk.take_over()
        desk.settle(desk.controller.take_over(desk.now))
        assert desk.states() == []

    @pytest.mark.parametrize(
        ("name", "factor", "assignment", "code"),
        [
            ("t", 1, (), ErrorCode.topic_already_exists),
            ("new", 4, (), ErrorCode.invalid_replication_factor),
            ("new", 0, (), ErrorCode.invalid_replication_factor),
            ("new", 2, ((1, 9),), ErrorCode.invalid_replica_assignment),
            ("new", 2, ((1, 1),), ErrorCode.invalid_replica_assignment),
        ],
    )
    def test_are_refused_if_they_can_not_be(
        self, desk: Desk, name: str, factor: int, assignment: object, code: ErrorCode
    ) -> None:
        with pytest.raises(ApiError) as caught:
            desk.create(name, replicas=factor, assignment=assignment)
        assert caught.value.code is code


class TestElections:
    def test_follow_the_loss_of_a_leader_and_raise_the_epoch(self, desk: Desk) -> None:
        desk.lose(1)
        assert (desk[0].leader, desk[0].leader_epoch) == (2, 1)
        assert desk[0].leader_incarnation == "2.1"

    def test_leave_the_isr_to_the_new_leader(self, desk: Desk) -> None:
        desk.lose(1)
        assert desk[0].isr == desk.isr(1, 2, 3)

    def test_take_the_longest_log_known(self, desk: Desk) -> None:
        desk.report(2, log_ends={ORDERS: 10})
        desk.report(3, log_ends={ORDERS: 11})
        desk.lose(1)
        assert desk[0].leader == 3

    def test_take_nobody_from_outside_the_isr(self, desk: Desk) -> None:
        desk.as_leader(0, isr=desk.isr(1))
        desk.lose(1)
        assert (desk[0].leader, desk[0].leader_epoch) == (None, 1)
        desk.join(registration(1, start=2))
        assert (desk[0].leader, desk[0].leader_epoch) == (1, 2)

    def test_take_anybody_if_the_topic_says_so(self) -> None:
        desk = Desk()
        desk.create(overrides={"unclean.leader.election.enable": "true"})
        desk.open_all()
        desk.as_leader(0, isr=desk.isr(1))
        desk.lose(1)
        assert (desk[0].leader, desk[0].isr) == (2, desk.isr(2))

    def test_do_not_take_a_member_whose_disk_may_have_forgotten(self, desk: Desk) -> None:
        desk.join(registration(2, start=2, disk=2))
        desk.lose(1)
        assert desk[0].leader == 3

    def test_wait_for_a_member_whose_disk_may_be_whole(self, desk: Desk) -> None:
        for broker in (1, 2, 3):
            desk.lose(broker)
        for broker in (1, 2):
            desk.join(registration(broker, start=2, disk=2))
            desk.report(broker, log_ends={ORDERS: 100})
        assert [state.leader for state in desk.states()] == [None]
        desk.join(registration(3, start=2))
        assert (desk[0].leader, desk[0].isr) == (3, desk.isr(1, 2, 3))

    def test_take_the_longest_log_when_the_power_failed_everywhere(self, desk: Desk) -> None:
        """Everybody is back and everybody may have forgotten: waiting brings nothing back."""
        for broker in (1, 2, 3):
            desk.lose(broker)
        for broker, log_end in ((1, 90), (2, 95), (3, 80)):
            desk.join(registration(broker, start=2, disk=2))
            assert desk[0].leader is None
            desk.report(broker, log_ends={ORDERS: log_end})
        assert (desk[0].leader, desk[0].isr) == (2, {2: "2.2"})

    def test_say_what_was_committed_and_is_in_no_log_any_more(self, desk: Desk) -> None:
        desk.report(1, log_ends={ORDERS: 100}, high_watermarks={ORDERS: 97})
        for broker in (1, 2, 3):
            desk.lose(broker)
        for broker, log_end in ((1, 90), (2, 95), (3, 80)):
            desk.join(registration(broker, start=2, disk=2))
            desk.report(broker, log_ends={ORDERS: log_end})
        assert desk.controller.losses == [Loss(ORDERS, leader=2, log_end=95, high_watermark=97)]

    def test_raise_no_alarm_when_a_member_in_sync_takes_over(self, desk: Desk) -> None:
        """What it reported last may be older than what was committed; that it holds it is certain."""
        desk.report(1, log_ends={ORDERS: 100}, high_watermarks={ORDERS: 97})
        desk.report(2, log_ends={ORDERS: 50})
        desk.lose(1)
        assert desk[0].leader == 2
        assert desk.controller.losses == []

    def test_take_the_last_member_with_whatever_its_disk_kept(self, desk: Desk) -> None:
        """Alone, it had synced all it answered for."""
        desk.as_leader(0, isr=desk.isr(1))
        desk.join(registration(1, start=2, disk=2))
        assert (desk[0].leader, desk[0].isr) == (1, {1: "1.2"})

    def test_come_after_a_restart_even_if_nobody_saw_the_leader_go(self, desk: Desk) -> None:
        desk.report(1, log_ends={ORDERS: 5})
        desk.join(registration(1, start=2))
        assert (desk[0].leader, desk[0].leader_incarnation, desk[0].leader_epoch) == (1, "1.2", 1)

    def test_pass_over_who_could_not_open_it(self, desk: Desk) -> None:
        desk.report(1, opened={ORDERS: "damaged"})
        assert desk[0].leader == 2
        desk.lose(2)
        assert desk[0].leader == 3

    def test_move_leaders_away_from_who_leaves(self, desk: Desk) -> None:
        desk.join(registration(1, is_leaving=True))
        assert (desk[0].leader, desk[0].leader_epoch) == (2, 1)

    def test_leave_the_lead_with_who_leaves_if_there_is_nobody_else(self, desk: Desk) -> None:
        desk.as_leader(0, isr=desk.isr(1))
        desk.join(registration(1, is_leaving=True))
        assert (desk[0].leader, desk[0].leader_epoch) == (1, 0)

    def test_put_the_preferred_leader_back_when_it_is_in_sync(self, desk: Desk) -> None:
        desk.lose(1)
        desk.as_leader(0, isr=desk.isr(2, 3))
        desk.join(registration(1, start=2))
        desk.settle(desk.controller.prefer([ORDERS]))
        assert desk[0].leader == 2
        desk.as_leader(0, isr=desk.isr(1, 2, 3))
        desk.settle(desk.controller.prefer([ORDERS]))
        assert (desk[0].leader, desk[0].leader_epoch) == (1, 2)

    def test_rest_on_who_is_there_if_somebody_is_elected_who_was_not_in_sync(
        self, desk: Desk
    ) -> None:
        """All have lost their disks, come back and are in sync again: the watch of brokers is behind."""
        for broker in (1, 2, 3):
            desk.report(broker, log_ends={ORDERS: 10})
        back = [registration(broker, start=2, disk=2) for broker in (1, 2, 3)]
        for returned in back:
            desk.write(broker_key(returned.id), encode_broker(returned))
        desk.as_leader(
            0,
            leader_incarnation="1.2",
            leader_epoch=7,
            isr={returned.id: returned.storage_id for returned in back},
        )
        assert desk[0].leader_epoch == 7
        assert desk[0].isr == {1: "1.2", 2: "2.2", 3: "3.2"}


class TestReplicas:
    def test_that_were_missing_at_creation_come_when_a_broker_joins(self) -> None:
        desk = Desk(brokers=3)
        desk.create(partitions=1, replicas=3)
        desk.lose(3)
        desk.settle([requests.grow_topic(desk.view, "t", 3)])
        assert len(desk[2].replicas) == 2
        desk.join(registration(3, start=2))
        assert set(desk[2].replicas) == {1, 2, 3}
        assert desk[2].isr == desk.isr(1, 2), "it has to catch up first"

    def test_of_a_broker_gone_for_long_are_replaced(self) -> None:
        desk = Desk(brokers=4)
        desk.create(partitions=1, replicas=3)
        desk.lose(3)
        desk.as_leader(0, isr=desk.isr(1, 2))
        desk.now = 59
        desk.settle(desk.controller.tick(desk.now))
        assert desk[0].replicas == (1, 2, 3)
        desk.now = 61
        desk.settle(desk.controller.tick(desk.now))
        assert (desk[0].replicas, desk[0].leader_epoch) == ((1, 2, 4), 1)

    def test_in_the_isr_are_not_replaced(self) -> None:
        desk = Desk(brokers=4)
        desk.create(partitions=1, replicas=3)
        desk.lose(3)
        desk.now = 61
        desk.settle(desk.controller.tick(desk.now))
        assert desk[0].replicas == (1, 2, 3)


class TestReassignment:
    def test_adds_waits_hands_over_and_removes(self) -> None:
        desk = Desk(brokers=4)
        desk.create(replicas=2)
        desk.open_all()
        assert desk[0].replicas == (1, 2)
        desk.reassign(0, (3, 4))
        assert list(desk[0].replicas) == [3, 4, 1, 2]
        assert (desk[0].adding, desk[0].removing) == ((3, 4), (1, 2))
        desk.as_leader(0, isr=desk.isr(1, 2, 3))
        assert desk[0].leader == 1
        desk.as_leader(0, isr=desk.isr(1, 2, 3, 4))
        assert (desk[0].leader, desk[0].leader_epoch) == (3, 1)
        desk.as_leader(0, isr=desk.isr(3, 4))
        assert (desk[0].replicas, desk[0].is_reassigning) == ((3, 4), False)
        assert desk[0].leader_epoch == 2, "who was removed is fenced"

    def test_can_be_cancelled(self) -> None:
        desk = Desk(brokers=3)
        desk.create(replicas=2)
        desk.reassign(0, (3, 1))
        desk.as_leader(0, isr=desk.isr(1, 2, 3))
        desk.reassign(0, None)
        assert (desk[0].adding, desk[0].removing) == ((), (3,))
        desk.as_leader(0, isr=desk.isr(1, 2))
        assert (set(desk[0].replicas), desk[0].is_reassigning) == ({1, 2}, False)
        with pytest.raises(ApiError) as caught:
            desk.reassign(0, None)
        assert caught.value.code is ErrorCode.no_reassignment_in_progress

    def test_only_changes_the_order_if_the_brokers_are_the_same(self, desk: Desk) -> None:
        desk.reassign(0, (2, 3, 1))
        assert (desk[0].replicas, desk[0].is_reassigning) == ((2, 3, 1), False)

    @pytest.mark.parametrize("target", [(), (1, 1), (1, 9)])
    def test_is_refused_if_it_can_not_be(self, desk: Desk, target: tuple[int, ...]) -> None:
        with pytest.raises(ApiError) as caught:
            desk.reassign(0, target)
        assert caught.value.code is ErrorCode.invalid_replica_assignment


class TestFailover:
    def test_a_controller_that_was_replaced_decides_nothing_more(self, desk: Desk) -> None:
        old, old_view = desk.controller, desk.view
        desk.take_over()
        desk.controller, desk.view = old, old_view
        desk.lose(1)
        assert old.is_deposed
        assert desk[0].leader == 1

    def test_what_is_done_is_not_done_again(self, desk: Desk) -> None:
        written = len(desk.committed)
        new = desk.take_over()
        assert new.take_over(desk.now) == []
        assert len(desk.committed) == written + 1  # the claim

    @pytest.mark.parametrize("stop_after", range(6))
    def test_can_happen_anywhere_in_the_middle(self, stop_after: int) -> None:
        """A topic of 400 partitions and the loss of a broker, each cut short after some commits."""
        desk = Desk(brokers=4)
        desk.create("big", partitions=400, replicas=3)
        desk.write("brokers/1", None)
        change = desk.view.apply("brokers/1", None, desk.space.revision)
        assert change is not None
        desk.controller.changed(change, desk.now)
        for decision in desk.controller.decide()[:stop_after]:
            desk.commit(decision.transaction)
        desk.controller = desk.take_over()
        desk.settle(desk.controller.take_over(desk.now))
        assert all(state.leader not in (1, None) for state in desk.states())
        assert max(state.leader_epoch for state in desk.states()) == 1

    def test_somebody_elses_change_is_taken_over_and_decided_on(self, desk: Desk) -> None:
        """The leader shrinks the ISR while the controller elects: both are in what comes out."""
        desk.write("brokers/1", None)
        change = desk.view.apply("brokers/1", None, desk.space.revision)
        assert change is not None
        desk.controller.changed(change, desk.now)
        decisions = desk.controller.decide()
        name = partition_key(ORDERS)
        entry = desk.space.get(name)
        assert entry is not None
        desk.write(name, entry.value.replace(b'"2":"2.1",', b""))
        desk.settle(decisions)
        assert (desk[0].leader, desk[0].isr) == (3, desk.isr(1, 3))

    def test_an_outcome_that_is_not_known_is_looked_at_again(self, desk: Desk) -> None:
        desk.write("brokers/1", None)
        change = desk.view.apply("brokers/1", None, desk.space.revision)
        assert change is not None
        desk.controller.changed(change, desk.now)
        (decision,) = desk.controller.decide()
        assert desk.controller.decide() == []
        desk.commit(decision.transaction)  # applied, but the answer is lost
        desk.controller.unknown(decision)
        desk.settle(desk.controller.tick(desk.now))
        assert (desk[0].leader, desk[0].leader_epoch) == (2, 1)


class TestReports:
    def test_from_an_earlier_term_are_ignored(self, desk: Desk) -> None:
        desk.join(registration(2, start=2))
        late = BrokerReport(broker=2, incarnation="2.1", opened={ORDERS: "damaged"})
        assert desk.controller.report(late) == []

    def test_are_written_once(self, desk: Desk) -> None:
        written = len(desk.committed)
        desk.report(2, opened={ORDERS: None})
        assert len(desk.committed) == written

    def test_of_a_replica_that_opens_after_all_clear_its_error(self, desk: Desk) -> None:
        desk.report(2, opened={ORDERS: "damaged"})
        desk.report(2, opened={ORDERS: None})
        assert desk[0].readiness(2) is Readiness.READY


def test_a_broker_lost_with_a_thousand_partitions_costs_little_and_few_transactions() -> None:
    desk = Desk()
    desk.create(partitions=1000)
    desk.open_all()
    led = sum(state.leader == 1 for state in desk.states())
    before = len(desk.committed)
    began = time.process_time()
    desk.lose(1)
    assert time.process_time() - began < 2
    assert all(state.leader in (2, 3) for state in desk.states())
    assert len(desk.committed) - before - 1 == -(-led // (TRANSACTION_OPERATIONS_MAX - 1))
    assert Counter(state.leader for state in desk.states()) == {2: 667, 3: 333}
