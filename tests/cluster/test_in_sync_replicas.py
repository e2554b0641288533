"""The rules of the ISR: who leaves it, who comes back, and that only the store decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.cluster.conftest import registration

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


def proposed(cluster: Cluster, broker: int = 1) -> set[int] | None:
    """The members of the ISR that the broker proposed last."""
    proposals = cluster[broker].proposals
    return set(proposals[-1].state.isr) if proposals else None


class TestShrinking:
    def test_takes_out_who_was_not_caught_up_for_too_long(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.wait(9)
        cluster.settle(1, 2)
        cluster.wait(2)
        cluster.tick(1)
        assert proposed(cluster) == {1, 2}

    def test_leaves_an_idle_follower_that_has_everything(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 2, 3)
        cluster.wait(60)
        cluster.tick(1)
        assert proposed(cluster) is None

    def test_leaves_a_follower_that_keeps_up_under_load(self, cluster: Cluster) -> None:
        """It never has all we have, but always all we had a moment ago."""
        for _ in range(30):
            cluster.produce(1)
            cluster.fetch(2, 1)
            cluster.fetch(3, 1)
            cluster.produce(1)
            cluster.wait(1)
            cluster.tick(1)
        assert proposed(cluster) is None

    def test_takes_out_who_is_too_many_records_behind_if_that_is_set(
        self, cluster: Cluster
    ) -> None:
        cluster[1].local.settings = replace(cluster[1].local.settings, lag_records_max=5)
        for _ in range(6):
            cluster.produce(1)
            cluster.settle(1, 2)
        assert proposed(cluster) is None
        cluster.fetch(3, 1)  # at 0 with 6 behind it
        assert proposed(cluster) == {1, 2}

    def test_does_not_wait_for_who_is_no_longer_registered(self, cluster: Cluster) -> None:
        del cluster.brokers[3]
        cluster[1].perform(cluster[1].replica.brokers_changed(cluster.now))
        assert proposed(cluster) == {1, 2}

    def test_does_not_trust_a_disk_that_may_have_forgotten(self, cluster: Cluster) -> None:
        cluster.brokers[3] = registration(3, start=2, disk=2)
        cluster[1].perform(cluster[1].replica.brokers_changed(cluster.now))
        assert proposed(cluster) == {1, 2}

    def test_trusts_a_disk_through_a_restart_of_its_broker(self, cluster: Cluster) -> None:
        cluster.brokers[3] = registration(3, start=2, disk=1)
        cluster[1].perform(cluster[1].replica.brokers_changed(cluster.now))
        assert proposed(cluster) is None

    def test_to_one_comes_after_a_sync(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 2, 3)
        del cluster.brokers[2], cluster.brokers[3]
        cluster.tick(1)
        assert proposed(cluster) is None
        assert cluster[1].is_sync_wanted
        cluster.sync(1)
        assert proposed(cluster) == {1}

    def test_to_one_syncs_what_a_new_leader_was_elected_with(self, cluster: Cluster) -> None:
        """Its high watermark may be behind what its predecessor answered for."""
        cluster.produce(1)
        cluster.fetch(2, 1)
        assert cluster[2].high_watermark == 0
        del cluster.brokers[1], cluster.brokers[3]
        cluster.elect(2)
        assert proposed(cluster, 2) is None
        cluster.sync(2)
        assert proposed(cluster, 2) == {2}

    def test_is_not_proposed_without_the_lease(self, cluster: Cluster) -> None:
        cluster[1].term.lease_until_s = 0
        del cluster.brokers[3]
        cluster.tick(1)
        assert proposed(cluster) is None


class TestExpanding:
    def test_takes_in_who_has_reached_the_high_watermark(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        cluster.produce(1)
        cluster.settle(1, 2)
        cluster.fetch(3, 1)
        assert proposed(cluster) is None
        cluster.fetch(3, 1)
        assert proposed(cluster) == {1, 2, 3}

    def test_asks_for_all_the_leader_had_when_its_epoch_began(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2))
        for _ in range(2):
            cluster.produce(1)
            cluster.fetch(2, 1)
        cluster[3].log.append(cluster[1].log.records[0])
        cluster.elect(2)  # with two records, and a high watermark of 0
        cluster.serve(2, cluster.ask(3))
        assert proposed(cluster, 2) is None

    def test_does_not_believe_what_was_said_before_a_restart(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 2, 3)
        cluster.write(isr=cluster.isr(1, 2))
        cluster[1].proposals.clear()
        cluster.brokers[3] = registration(3, start=2, disk=2)
        cluster.tick(1)
        assert proposed(cluster) is None

    def test_leaves_out_who_is_being_removed(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2), removing=(3,))
        cluster.settle(1, 3)
        assert proposed(cluster) is None


class TestProposals:
    def test_are_made_one_at_a_time(self, cluster: Cluster) -> None:
        del cluster.brokers[3]
        cluster.tick(1)
        cluster.tick(1)
        assert len(cluster[1].proposals) == 1

    def test_compare_with_what_the_leader_knows(self, cluster: Cluster) -> None:
        del cluster.brokers[3]
        cluster.tick(1)
        proposal = cluster[1].proposals[0]
        assert proposal.revision == cluster.revision
        assert proposal.state.partition_epoch == cluster.state.partition_epoch + 1
        cluster.elect(2, 2, 3)  # the leader has not heard
        assert not cluster.commit(proposal)

    def test_are_made_anew_when_the_store_held_something_else(self, cluster: Cluster) -> None:
        del cluster.brokers[3]
        cluster.tick(1)
        cluster.write(ready=frozenset((1, 2)))
        assert len(cluster[1].proposals) == 2
        assert cluster.commit(cluster[1].proposals[-1])

    def test_are_tried_again_when_their_outcome_is_not_known(self, cluster: Cluster) -> None:
        del cluster.brokers[3]
        cluster.tick(1)
        cluster[1].replica.proposal_unknown(cluster[1].proposals[0])
        cluster.tick(1)
        assert len(cluster[1].proposals) == 2

    def test_are_shut_out_by_another_when_they_are_not_wanted_any_more(
        self, cluster: Cluster
    ) -> None:
        """Else a shrink of unknown outcome would hold up acks=all for ever."""
        lost = cluster.brokers.pop(3)
        cluster.tick(1)
        cluster[1].replica.proposal_unknown(cluster[1].proposals[0])
        cluster.brokers[3] = lost
        cluster.tick(1)
        assert proposed(cluster) == {1, 2, 3}
        assert cluster.commit(cluster[1].proposals[-1])
        assert not cluster.commit(cluster[1].proposals[0])

    def test_take_out_who_leaves_once_all_who_come_are_in_sync(self, cluster: Cluster) -> None:
        cluster.write(isr=cluster.isr(1, 2), adding=(3,), removing=(2,))
        assert proposed(cluster) is None
        cluster.write(isr=cluster.isr(1, 2, 3))
        assert proposed(cluster) == {1, 3}

    def test_take_out_who_could_not_open_its_replica(self, cluster: Cluster) -> None:
        cluster.write(errors={3: "disk full"})
        assert proposed(cluster) == {1, 2}


class TestBeingSettled:
    def test_a_leader_without_a_lease_is_not_while_it_has_a_change_to_propose(
        self, cluster: Cluster
    ) -> None:
        leader = cluster[1]
        cluster.settle(1, 2, 3)
        assert leader.replica.leadership is not None
        assert leader.replica.leadership.is_settled
        leader.term.lease_until_s = cluster.now
        del cluster.brokers[3]
        leader.perform(leader.replica.brokers_changed(cluster.now))
        cluster.tick(1)
        assert proposed(cluster) is None
        assert not leader.replica.leadership.is_settled
        leader.term.lease_renewed(cluster.now, 1_000_000)
        cluster.tick(1)
        assert proposed(cluster) == {1, 2}
