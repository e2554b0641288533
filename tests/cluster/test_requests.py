"""What operators may ask of partitions: moves and elections, and what the controller makes of them."""

from __future__ import annotations

import pytest

from penstock.cluster import requests
from penstock.cluster.batching import KeyChange, batched
from penstock.cluster.controller import ControllerSettings, Decision
from penstock.cluster.state import topic_key
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.store import TRANSACTION_OPERATIONS_MAX, Rejected
from penstock.model import TopicPartition
from tests.cluster.desk import Desk, registration

ORDERS = TopicPartition("t", 0)


@pytest.fixture
def desk() -> Desk:
    """Four brokers and a partition on three of them; broker 1 leads."""
    made = Desk(brokers=4)
    made.create()
    made.open_all()
    return made


def commit(desk: Desk, change: KeyChange | None) -> None:
    """Write it as a broker would that is not the controller; then the controller hears of it."""
    assert change is not None
    (transaction,) = batched([change])
    assert not isinstance(desk.commit(transaction), Rejected)
    desk.watch(change.key)


def refused(desk: Desk, *, unclean: bool = False) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        requests.elect(desk.view, ORDERS, unclean=unclean)
    return caught.value.code


def move(
    desk: Desk, *target: int, may_change_count: bool = True, partition: TopicPartition = ORDERS
) -> KeyChange | None:
    return requests.move(desk.view, partition, target, may_change_count=may_change_count)


def give_up_the_lead(desk: Desk) -> None:
    """Broker 1 is away for a moment: another one leads, and both are in sync."""
    desk.lose(1)
    desk.join(registration(1, start=2))
    assert desk[0].leader == 2


class TestPreferredElection:
    def test_puts_the_first_replica_back_in_a_new_epoch(self, desk: Desk) -> None:
        give_up_the_lead(desk)
        epoch = desk[0].leader_epoch
        commit(desk, requests.elect(desk.view, ORDERS))
        assert (desk[0].leader, desk[0].leader_epoch) == (1, epoch + 1)
        assert desk[0].leader_incarnation == "1.2"

    def test_is_not_needed_where_it_leads(self, desk: Desk) -> None:
        assert refused(desk) is ErrorCode.election_not_needed

    def test_is_refused_while_the_first_replica_is_away(self, desk: Desk) -> None:
        desk.lose(1)
        assert refused(desk) is ErrorCode.preferred_leader_not_available

    def test_is_refused_while_the_first_replica_is_not_in_sync(self, desk: Desk) -> None:
        give_up_the_lead(desk)
        desk.as_leader(0, isr=desk.isr(2, 3))
        assert refused(desk) is ErrorCode.preferred_leader_not_available

    def test_of_what_is_not_there_is_refused(self, desk: Desk) -> None:
        with pytest.raises(ApiError) as caught:
            requests.elect(desk.view, TopicPartition("t", 7))
        assert caught.value.code is ErrorCode.unknown_topic_or_partition


class TestUncleanElection:
    @pytest.fixture
    def leaderless(self, desk: Desk) -> Desk:
        """Only the leader was in sync, and it is gone."""
        desk.as_leader(0, isr=desk.isr(1))
        desk.lose(1)
        assert desk[0].leader is None
        return desk

    def test_lets_the_controller_elect_the_longest_log_outside_the_isr(
        self, leaderless: Desk
    ) -> None:
        leaderless.report(2, log_ends={ORDERS: 3})
        leaderless.report(3, log_ends={ORDERS: 5})
        commit(leaderless, requests.elect(leaderless.view, ORDERS, unclean=True))
        assert leaderless[0].leader == 3
        assert list(leaderless[0].isr) == [3]

    def test_happens_once(self, leaderless: Desk) -> None:
        commit(leaderless, requests.elect(leaderless.view, ORDERS, unclean=True))
        leader = leaderless[0].leader
        assert leader is not None
        leaderless.lose(leader)
        assert leaderless[0].leader is None, "the next one needs another request"

    def test_is_not_needed_while_somebody_leads(self, desk: Desk) -> None:
        assert refused(desk, unclean=True) is ErrorCode.election_not_needed

    def test_is_refused_if_no_replica_is_there(self, leaderless: Desk) -> None:
        leaderless.lose(2)
        leaderless.lose(3)
        assert refused(leaderless, unclean=True) is ErrorCode.eligible_leaders_not_available

    @pytest.mark.parametrize(
        ("by_default", "own", "elects"),
        [(True, None, True), (True, "false", False), (False, "true", True), (False, None, False)],
    )
    def test_comes_by_itself_if_topic_or_broker_allow_it(
        self, by_default: bool, own: str | None, elects: bool
    ) -> None:
        desk = Desk()
        desk.settings = ControllerSettings(unclean_elections=by_default)
        desk.controller = desk.take_over()
        desk.create(overrides={} if own is None else {"unclean.leader.election.enable": own})
        desk.open_all()
        desk.as_leader(0, isr=desk.isr(1))
        desk.lose(1)
        assert (desk[0].leader is not None) is elects


class TestMoves:
    def test_to_where_it_is_change_nothing(self, desk: Desk) -> None:
        assert move(desk, 1, 2, 3) is None

    def test_keep_a_replica_whose_broker_is_away(self, desk: Desk) -> None:
        desk.lose(3)
        commit(desk, move(desk, 1, 3, 4))
        assert (desk[0].adding, desk[0].removing) == ((4,), (2,))

    def test_take_nobody_new_who_is_away(self, desk: Desk) -> None:
        desk.lose(4)
        with pytest.raises(ApiError) as caught:
            move(desk, 1, 2, 4)
        assert caught.value.code is ErrorCode.invalid_replica_assignment

    def test_may_be_kept_from_changing_the_number_of_replicas(self, desk: Desk) -> None:
        with pytest.raises(ApiError) as caught:
            move(desk, 1, 2, may_change_count=False)
        assert caught.value.code is ErrorCode.invalid_replication_factor
        commit(desk, move(desk, 4, 2, 3, may_change_count=False))
        assert desk[0].adding == (4,)

    def test_to_fewer_brokers_are_not_undone_by_the_controller(self, desk: Desk) -> None:
        commit(desk, move(desk, 1, 2))
        desk.as_leader(0, isr=desk.isr(1, 2))
        assert (desk[0].replicas, desk[0].is_reassigning) == ((1, 2), False)
        commit(desk, move(desk, 2, 1))
        assert desk[0].replicas == (2, 1), "nor by another move"

    def test_back_to_as_many_as_the_topic_wants_follow_the_topic_again(self, desk: Desk) -> None:
        commit(desk, move(desk, 1, 2))
        desk.as_leader(0, isr=desk.isr(1, 2))
        commit(desk, move(desk, 1, 2, 4))
        assert desk[0].replica_count is None

    def test_that_are_cancelled_want_as_many_replicas_as_before(self, desk: Desk) -> None:
        commit(desk, move(desk, 4))
        desk.reassign(0, None)
        desk.as_leader(0, isr=desk.isr(1, 2, 3))
        assert set(desk[0].replicas) == {1, 2, 3}
        assert (desk[0].replica_count, desk[0].is_reassigning) == (None, False)

    def test_that_change_course_want_as_many_replicas_as_the_last_of_them(self, desk: Desk) -> None:
        commit(desk, move(desk, 1, 2))
        desk.as_leader(0, isr=desk.isr(1, 2))
        commit(desk, move(desk, 1, 2, 3))
        commit(desk, move(desk, 1, 4))
        desk.as_leader(0, isr=desk.isr(1, 2, 4))
        desk.as_leader(0, isr=desk.isr(1, 4))
        assert (desk[0].replicas, desk[0].is_reassigning) == ((1, 4), False)

    def test_that_change_course_may_be_kept_from_changing_the_number_again(
        self, desk: Desk
    ) -> None:
        commit(desk, move(desk, 1, 2))
        with pytest.raises(ApiError) as caught:
            move(desk, 1, 2, 4, may_change_count=False)
        assert caught.value.code is ErrorCode.invalid_replication_factor
        commit(desk, move(desk, 1, 4, may_change_count=False))
        assert desk[0].target == (1, 4)

    def test_are_listed_until_they_are_done(self, desk: Desk) -> None:
        commit(desk, move(desk, 4, 2, 3))
        assert list(desk.view.moving) == [ORDERS]
        desk.as_leader(0, isr=desk.isr(1, 2, 3, 4))
        desk.as_leader(0, isr=desk.isr(2, 3, 4))
        assert not desk.view.moving

    def test_that_were_worked_out_from_an_older_state_are_refused(self, desk: Desk) -> None:
        change = move(desk, 4, 2, 3)
        assert change is not None
        desk.as_leader(0, isr=desk.isr(1, 2))
        (transaction,) = batched([change])
        assert isinstance(desk.commit(transaction), Rejected)

    def test_of_a_thousand_partitions_fit_into_few_transactions(self) -> None:
        desk = Desk(brokers=4)
        desk.create(partitions=1000, assignment=((1, 2, 3),) * 1000)
        changes = [
            change
            for index in range(1000)
            if (change := move(desk, 4, 2, 3, partition=TopicPartition("t", index))) is not None
        ]
        transactions = list(batched(changes))
        assert sum(len(transaction.puts) for transaction in transactions) == 1000
        assert len(transactions) <= 1000 // TRANSACTION_OPERATIONS_MAX + 8


class TestPlacementByHand:
    def test_gives_every_partition_as_many_replicas(self) -> None:
        with pytest.raises(ApiError) as caught:
            Desk().create(partitions=2, replicas=2, assignment=((1, 2), (3,)))
        assert caught.value.code is ErrorCode.invalid_replica_assignment

    @pytest.mark.parametrize("added", [[(1, 2, 3)], [(1, 2, 3), (1, 2)], [(1, 2, 3), (1, 2, 9)]])
    def test_of_added_partitions_must_fit(self, desk: Desk, added: list[tuple[int, ...]]) -> None:
        with pytest.raises(ApiError) as caught:
            requests.grow_topic(desk.view, "t", 3, added)
        assert caught.value.code is ErrorCode.invalid_replica_assignment

    def test_of_added_partitions_is_kept_to(self, desk: Desk) -> None:
        grown: Decision = requests.grow_topic(desk.view, "t", 3, [(4, 1, 2), (3, 4, 1)])
        desk.commit(grown.transaction)
        desk.watch(topic_key("t"))
        assert (desk[1].replicas, desk[2].replicas) == ((4, 1, 2), (3, 4, 1))
