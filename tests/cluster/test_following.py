"""The rules of a follower: what it cuts off, what it believes, and what its leader refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.messages import EpochEnd, ReplicaFetched, StartAt
from penstock.errors import ErrorCode
from penstock.testing.simulation.disk import Record
from tests.cluster.conftest import Cluster, registration


def test_the_high_watermark_follows_what_is_in_the_log(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.produce(1)
    fetch = cluster.ask(2)
    answer = cluster.serve(1, fetch)
    answer = replace(answer, high_watermark=3, records=answer.records[:2])
    cluster[2].perform(cluster[2].replica.fetched(fetch, answer))
    assert (cluster[2].log.log_end_offset, cluster[2].high_watermark) == (2, 2)


def test_what_the_new_leader_does_not_have_is_cut_off(cluster: Cluster) -> None:
    cluster.produce(1)
    cluster.settle(1, 2, 3)
    cluster.produce(1)
    cluster.produce(1)
    cluster.elect(2)
    cluster.produce(2)
    cluster.settle(2, 1, 3)
    assert cluster[1].log.records == cluster[2].log.records
    assert cluster[2].high_watermark == 2


def test_what_the_new_leader_has_is_kept_above_our_own_high_watermark(cluster: Cluster) -> None:
    cluster.produce(1)
    cluster.fetch(2, 1)
    cluster.fetch(3, 1)
    cluster.elect(3)
    before = list(cluster[2].log.records)
    assert cluster[2].high_watermark == 0
    cluster.fetch(2, 3)
    assert cluster[2].log.records == before


def test_a_diverging_fetch_does_not_count_as_progress(cluster: Cluster) -> None:
    cluster.write(isr=cluster.isr(1, 2))
    cluster.produce(1)
    cluster.elect(2)
    cluster.produce(2)
    answer = cluster.serve(2, cluster.ask(1))
    assert answer.diverging is not None
    assert cluster[2].high_watermark == 0


def test_answers_to_other_fetches_are_ignored(cluster: Cluster) -> None:
    cluster.produce(1)
    first = cluster.ask(2)
    answer = cluster.serve(1, first)
    cluster[2].replica.fetch_lost(first)
    second = cluster.ask(2)
    assert cluster[2].replica.fetched(first, answer) == []
    cluster[2].perform(cluster[2].replica.fetched(second, answer))
    assert cluster[2].replica.fetched(second, answer) == []
    assert cluster[2].log.log_end_offset == 1


def test_one_fetch_is_under_way_at_a_time(cluster: Cluster) -> None:
    fetch = cluster.ask(2)
    assert cluster[2].replica.next_fetch() is None
    cluster[2].replica.fetch_lost(fetch)
    assert cluster[2].replica.next_fetch() is not None


def test_a_follower_below_the_leaders_log_starts_anew(cluster: Cluster) -> None:
    fetch = cluster.ask(2)
    answer = ReplicaFetched(log_start=40)
    assert cluster[2].replica.fetched(fetch, answer) == [StartAt(offset=40)]


def test_a_follower_without_records_has_nothing_to_cut_wherever_it_begins(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.produce(1)
    answer = cluster.serve(1, replace(cluster.ask(2), offset=2, last_epoch=-1))
    assert (answer.error, answer.diverging, answer.log_start) == (None, None, None)


def test_a_follower_that_ends_where_the_leaders_log_begins_is_compared_too(
    cluster: Cluster,
) -> None:
    """What differs is deleted at the leader, but not here: it must not be shown if this one leads."""
    cluster.produce(1, acks=1)
    cluster.elect(2)
    cluster.produce(2, acks=1)
    cluster[2].log.log_start_offset = 1
    answer = cluster.serve(2, cluster.ask(1))
    assert answer.diverging == (1, 0)


def test_a_follower_of_which_only_deleted_records_differ_does_not_ask_for_ever(
    cluster: Cluster,
) -> None:
    cluster.produce(1)
    cluster.fetch(2, 1)
    cluster[2].log.log_start_offset = 1
    answer = ReplicaFetched(diverging=EpochEnd(7, 1))
    assert cluster[2].replica.fetched(cluster.ask(2), answer) == [StartAt(offset=1)]


def test_a_follower_that_begins_beyond_the_leaders_log_starts_anew(cluster: Cluster) -> None:
    cluster.produce(1)
    answer = cluster.serve(1, replace(cluster.ask(2), offset=9, last_epoch=-1))
    assert answer.log_start == 0


class TestTheLeaderRefuses:
    @pytest.mark.parametrize(
        ("epoch", "code"),
        [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)],
    )
    def test_another_epoch(self, cluster: Cluster, epoch: int, code: ErrorCode) -> None:
        answer = cluster.serve(1, replace(cluster.ask(2), leader_epoch=epoch))
        assert answer.error is code
        assert cluster[1].is_refresh_wanted == (epoch == 2)

    def test_another_incarnation_than_is_registered(self, cluster: Cluster) -> None:
        cluster.produce(1)
        cluster.settle(1, 3)
        late = cluster.ask(2)
        cluster.brokers[2] = registration(2, start=2)
        assert cluster.serve(1, replace(late, offset=1, last_epoch=1)).error is (
            ErrorCode.stale_broker_epoch
        )
        assert cluster[1].high_watermark == 0

    def test_who_is_no_replica(self, cluster: Cluster) -> None:
        cluster.write(1, replicas=(1, 2), isr=cluster.isr(1, 2))
        assert cluster.serve(1, cluster.ask(3)).error is ErrorCode.not_leader_or_follower

    def test_everybody_when_it_does_not_lead(self, cluster: Cluster) -> None:
        fetch = cluster.ask(3)
        assert cluster.serve(2, fetch).error is ErrorCode.not_leader_or_follower
        assert cluster.serve(2, replace(fetch, leader_epoch=5)).error is (
            ErrorCode.unknown_leader_epoch
        )


def test_a_follower_that_is_refused_for_its_epoch_looks_for_news(cluster: Cluster) -> None:
    fetch = cluster.ask(2)
    answer = ReplicaFetched(error=ErrorCode.fenced_leader_epoch)
    cluster[2].perform(cluster[2].replica.fetched(fetch, answer))
    assert cluster[2].is_refresh_wanted


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 3)), max_size=8))
@settings(max_examples=200, deadline=None)
def test_whatever_leaders_wrote_a_follower_ends_with_its_leaders_log(
    history: list[tuple[int, int, int]],
) -> None:
    """Leaders 1 and 2 take turns; the other one fetches some, all or nothing of what each wrote."""
    cluster = Cluster()
    for leader, written, fetches in history:
        cluster.elect(leader)
        for _ in range(written):
            cluster.produce(leader, acks=1)
        for _ in range(fetches):
            cluster.fetch(3 - leader, leader)
    cluster.elect(1)
    for _ in range(2 * len(history) + 2):
        cluster.fetch(2, 1)
    assert cluster[2].log.records == cluster[1].log.records
    assert all(isinstance(record, Record) for record in cluster[2].log.records)
