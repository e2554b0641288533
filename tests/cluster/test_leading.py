"""The rules of a leader: what it may append, what may be read, whom it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.cluster.messages import Role
from penstock.errors import ApiError, ErrorCode
from tests.cluster.conftest import registration

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


def refusal(cluster: Cluster, broker: int, *, acks: int = -1, epoch: int = -1) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        cluster[broker].replica.check_append(acks, cluster.now, epoch)
    return caught.value.code


class TestHighWatermark:
    def test_is_the_smallest_log_end_in_the_isr(self, cluster: Cluster) -> None:
        for _ in range(3):
            cluster.produce(1)
        cluster.settle(1, 2)
        assert cluster[1].high_watermark == 0
        cluster.settle(1, 3)
        assert cluster[1].high_watermark == 3

    def test_is_not_moved_by_a_replica_outside_the_isr(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        cluster.produce(1)
        cluster.settle(1, 2)
        cluster.produce(1)
        cluster.settle(1, 2)
        cluster.fetch(3, 1)  # at 0: far from the high watermark
        assert cluster[1].high_watermark == 2

    def test_never_goes_back_when_somebody_joins_the_isr(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        cluster.produce(1)
        cluster.settle(1, 2)
        cluster.write(isr=cluster.isr(1, 2, 3))  # however it came to be
        cluster.tick(1)
        assert cluster[1].high_watermark == 1

    def test_waits_for_members_that_are_only_proposed(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        cluster.settle(1, 3)
        (proposal,) = cluster[1].proposals
        assert proposal.state.isr.keys() == {1, 2, 3}
        cluster.produce(1)
        cluster.settle(1, 2)
        assert cluster[1].high_watermark == 0
        cluster.settle(1, 3)
        assert cluster[1].high_watermark == 1

    def test_waits_for_members_whose_removal_is_only_proposed(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 2)
        del cluster.brokers[3]
        cluster.tick(1)
        (proposal,) = cluster[1].proposals
        assert cluster[1].high_watermark == 0
        assert cluster.commit(proposal)
        cluster[1].perform(
            cluster[1].replica.proposal_committed(proposal, cluster.revision, cluster.now)
        )
        assert cluster[1].high_watermark == 1

    def test_obeys_a_proposal_of_unknown_outcome_until_the_partition_is_seen(
        self, cluster: Cluster
    ) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        cluster.settle(1, 3)
        leader = cluster[1].replica
        leader.proposal_unknown(cluster[1].proposals[-1])
        cluster.produce(1)
        cluster.settle(1, 2)
        assert cluster[1].high_watermark == 0
        cluster.write(ready=frozenset((1, 2)))  # a later revision, without 3 in the ISR
        assert cluster[1].high_watermark == 1

    def test_of_a_new_leader_starts_at_what_it_knew(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 2, 3)
        cluster.produce(1)
        cluster.fetch(2, 1)  # has two records, knows of one that they are committed
        cluster.elect(2)
        assert cluster[2].replica.readable_end() == 1
        cluster.settle(2, 1, 3)
        assert cluster[2].replica.readable_end() == 2

    def test_of_a_leader_that_is_alone_is_what_its_disk_has(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1))
        cluster.produce(1, acks=1)
        assert cluster[1].high_watermark == 0
        assert cluster[1].is_sync_wanted
        cluster.sync(1)
        assert cluster[1].high_watermark == 1


class TestAppending:
    def test_needs_the_lease(self, cluster: Cluster) -> None:
        cluster[1].term.lease_until_s = cluster.now
        assert refusal(cluster, 1, acks=1) is ErrorCode.not_leader_or_follower

    def test_needs_the_partition_to_be_reported_ready(self, cluster: Cluster) -> None:
        cluster.write(ready=frozenset((2, 3)))
        assert refusal(cluster, 1, acks=1) is ErrorCode.leader_not_available

    def test_needs_enough_replicas_in_sync_for_acks_all_only(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1))
        assert refusal(cluster, 1) is ErrorCode.not_enough_replicas
        cluster.produce(1, acks=1)

    def test_counts_a_shrunk_isr_as_soon_as_it_is_proposed(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        del cluster.brokers[2], cluster.brokers[3]
        cluster.tick(1)
        cluster.sync(1)
        assert len(cluster[1].proposals) == 1
        assert refusal(cluster, 1) is ErrorCode.not_enough_replicas

    def test_is_for_the_leader_only(self, cluster: Cluster) -> None:
        assert refusal(cluster, 2) is ErrorCode.not_leader_or_follower

    @pytest.mark.parametrize(
        ("epoch", "code"),
        [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)],
    )
    def test_fences_other_epochs(self, cluster: Cluster, epoch: int, code: ErrorCode) -> None:
        assert refusal(cluster, 1, epoch=epoch) is code
        with pytest.raises(ApiError) as caught:
            cluster[1].replica.readable_end(epoch)
        assert caught.value.code is code


class TestAcknowledging:
    def test_all_waits_for_every_member_of_the_isr(self, cluster: Cluster) -> None:
        cluster.produce(1, "w")
        cluster.settle(1, 2)
        assert cluster[1].answers == {}
        cluster.settle(1, 3)
        assert cluster[1].answers == {"w": None}

    def test_of_a_repeated_record_waits_for_the_one_in_the_log(self, cluster: Cluster) -> None:
        cluster.produce(1)
        leader = cluster[1]
        leader.perform(leader.replica.appended(cluster.now, end_offset=1, token="again"))
        assert leader.answers == {}
        cluster.settle(1, 2, 3)
        leader.perform(leader.replica.appended(cluster.now, end_offset=1, token="and again"))
        assert leader.answers == {"again": None, "and again": None}

    def test_times_out_with_an_error_of_its_own(self, cluster: Cluster) -> None:
        cluster.produce(1, "w")
        cluster.wait(4.9)
        cluster.tick(1)
        assert cluster[1].answers == {}
        cluster.wait(0.2)
        cluster.tick(1)
        assert cluster[1].answers == {"w": ErrorCode.request_timed_out}

    def test_is_not_given_when_too_few_replicas_are_left(self, cluster: Cluster) -> None:
        cluster.produce(1, "w")
        cluster[1].log.sync(cluster[1].log.position)
        cluster.write(isr=cluster.isr(1))
        assert cluster[1].answers == {"w": ErrorCode.not_enough_replicas_after_append}

    def test_ends_with_the_leadership(self, cluster: Cluster) -> None:
        cluster.produce(1, "w")
        cluster.elect(2)
        assert cluster[1].answers == {"w": ErrorCode.not_leader_or_follower}
        assert cluster[1].replica.role is Role.FOLLOWER

    def test_is_held_back_while_the_lease_may_have_run_out(self, cluster: Cluster) -> None:
        """A broker stopped for longer than its lease wakes up and finds the fetches it missed."""
        cluster.produce(1, "w")
        cluster.fetch(2, 1)
        cluster.fetch(3, 1)
        cluster[1].term.lease_until_s = cluster.now + 1
        missed = [cluster.ask(2), cluster.ask(3)]
        cluster.wait(2)
        for fetch in missed:
            cluster.serve(1, fetch)
        assert cluster[1].high_watermark == 1  # they do have it, so it may be read
        assert cluster[1].answers == {}
        cluster[1].term.lease_renewed(cluster.now, 3)
        cluster[1].perform(cluster[1].replica.lease_renewed(cluster.now))
        assert cluster[1].answers == {"w": None}


class TestLease:
    def test_is_counted_from_before_the_request_and_less_by_the_drift_of_clocks(
        self, cluster: Cluster
    ) -> None:
        term = cluster[1].term
        term.lease_until_s = 0
        term.lease_renewed(sent_at=100, ttl_s=10)
        assert term.holds_lease(109.4)
        assert not term.holds_lease(109.6)

    def test_is_not_shortened_by_an_answer_that_comes_late(self, cluster: Cluster) -> None:
        term = cluster[1].term
        term.lease_until_s = 0
        term.lease_renewed(sent_at=103, ttl_s=10)
        term.lease_renewed(sent_at=100, ttl_s=10)
        assert term.holds_lease(112)

    def test_that_was_given_up_is_not_brought_back_by_a_late_answer(self, cluster: Cluster) -> None:
        term = cluster[1].term
        term.end()
        term.lease_renewed(cluster.now, 10)
        assert not term.holds_lease(cluster.now)
        term.begin("1.2", cluster.now, 10)
        assert term.holds_lease(cluster.now)

    def test_does_not_matter_for_reads(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 2, 3)
        cluster[1].term.lease_until_s = 0
        assert cluster[1].replica.readable_end() == 1


class TestRoles:
    def test_come_from_the_store(self, cluster: Cluster) -> None:
        assert [cluster[b].replica.role for b in (1, 2)] == [Role.LEADER, Role.FOLLOWER]
        cluster.elect(2)
        assert [cluster[b].replica.role for b in (1, 2)] == [Role.FOLLOWER, Role.LEADER]
        cluster.elect(None)
        assert [cluster[b].replica.role for b in (1, 2)] == [Role.OFFLINE, Role.OFFLINE]

    def test_are_not_taken_back_by_old_news(self, cluster: Cluster) -> None:
        old, revision = cluster.state, cluster.revision
        cluster.elect(2)
        assert cluster[1].replica.update(old, revision, cluster.now) == []
        assert cluster[1].replica.role is Role.FOLLOWER

    def test_of_a_leader_end_with_its_registration(self, cluster: Cluster) -> None:
        cluster.produce(1, "w")
        cluster[1].term.incarnation = "1.2"
        cluster[1].perform(cluster[1].replica.registered_anew(cluster.now))
        assert cluster[1].replica.leadership is None
        assert cluster[1].answers == {"w": ErrorCode.not_leader_or_follower}
        cluster.brokers[1] = registration(1, start=2)
        cluster.elect(1)
        assert cluster[1].replica.role is Role.LEADER

    def test_end_when_the_partition_is_kept_elsewhere(self, cluster: Cluster) -> None:
        cluster.write(replicas=(1, 2), isr=cluster.isr(1, 2))
        assert cluster[3].is_dropped
        assert cluster[3].replica.role is Role.OFFLINE
        assert not cluster[1].is_dropped
