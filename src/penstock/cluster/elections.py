"""Who leads. Pure: a partition's state in, its next state out; the same one if nothing is to be done.

A leader is elected from the ISR, so it has all that is committed, and every election raises the leader
epoch. The ISR itself stays as it is, dead members too: it is the new leader's to shrink, which it does at
once for those that are not registered, after a sync if that leaves it alone. So whoever of the ISR comes
back first after an outage of all may lead: nothing was committed without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.cluster.state import PartitionState, Readiness
from penstock.cluster.view import ClusterView
from penstock.model import TopicPartition

__all__ = ["elect", "elect_preferred", "fence_removed", "is_eligible", "is_led"]


def is_led(view: ClusterView, state: PartitionState) -> bool:
    """Whether its leader is registered, as the one that was elected, and could open the partition."""
    registered = None if state.leader is None else view.brokers.get(state.leader)
    return (
        registered is not None
        and registered.incarnation == state.leader_incarnation
        and state.readiness(registered.id) is not Readiness.ERROR
    )


def is_eligible(view: ClusterView, state: PartitionState, broker: int) -> bool:
    """Whether it has all that is committed.

    It does if it is in the ISR with the disk it has now. The last member of the ISR does with any
    disk of its own: while it was alone, nothing was committed that was not synced.
    """
    registered = view.brokers.get(broker)
    if registered is None or broker not in state.isr:
        return False
    if state.readiness(broker) is Readiness.ERROR:
        return False
    return registered.storage_id == state.isr[broker] or len(state.isr) == 1


def elect(
    view: ClusterView, partition: TopicPartition, state: PartitionState, *, unclean: bool = False
) -> PartitionState:
    """Give the partition a leader if it has none, or one that should lead it no longer."""
    eligible = [broker for broker in state.isr if is_eligible(view, state, broker)]
    staying = [broker for broker in eligible if not _should_give_up(view, state, broker)]
    if is_led(view, state):
        assert state.leader is not None
        if not staying or not _should_give_up(view, state, state.leader):
            return state
    if staying or eligible:
        return _led_by(view, state, _best(view, partition, state, staying or eligible))
    able = _survivors(view, partition, state)
    if unclean and not able:
        able = [broker for broker in state.replicas if _is_able(view, state, broker)]
    if able:
        return _led_by(view, replace(state, isr={}), _best(view, partition, state, able))
    if state.leader is None:
        return state
    return replace(state, leader=None, leader_incarnation=None, leader_epoch=state.leader_epoch + 1)


def elect_preferred(view: ClusterView, state: PartitionState) -> PartitionState:
    """Let the first replica lead if it can and another one does."""
    preferred = state.target[0]
    if (
        state.leader == preferred
        or not is_led(view, state)
        or not is_eligible(view, state, preferred)
        or state.readiness(preferred) is not Readiness.READY
        or _should_give_up(view, state, preferred)
    ):
        return state
    return _led_by(view, state, preferred)


def fence_removed(before: PartitionState, after: PartitionState) -> PartitionState:
    """Raise the epoch if a replica is gone, also under the same leader.

    A replica that is removed drops its log. Were it to come back in the same epoch, the leader might
    count on what it held before: on what it remembers, or on a fetch that was long under way.
    """
    if set(before.replicas) <= set(after.replicas) or after.leader_epoch > before.leader_epoch:
        return after
    return replace(after, leader_epoch=before.leader_epoch + 1)


def _led_by(view: ClusterView, state: PartitionState, leader: int) -> PartitionState:
    registered = view.brokers[leader]
    return replace(
        state,
        leader=leader,
        leader_incarnation=registered.incarnation,
        leader_epoch=state.leader_epoch + 1,
        isr={**state.isr, leader: registered.storage_id},
    )


def _best(
    view: ClusterView, partition: TopicPartition, state: PartitionState, brokers: Iterable[int]
) -> int:
    """The one with the longest log has least to cut off; ready before pending; then the smallest id."""

    def rank(broker: int) -> tuple[bool, int, int]:
        ready = state.readiness(broker) is Readiness.READY
        return (not ready, -view.log_end(broker, partition), broker)

    return min(brokers, key=rank)


def _should_give_up(view: ClusterView, state: PartitionState, broker: int) -> bool:
    """It leaves the cluster, or the partition, and others are there to take over."""
    if view.brokers[broker].is_leaving:
        return True
    return broker in state.removing and state.isr.keys() >= set(state.target)


def _survivors(view: ClusterView, partition: TopicPartition, state: PartitionState) -> list[int]:
    """All members of the ISR, if all are back and none with the disk it had: a power cut of the site.

    There is nobody left to wait for. What the longest of their logs does not hold is lost, whoever
    leads, so that one may: the alternative is a partition that never comes back by itself.
    """
    if all(
        _is_able(view, state, member) and view.log_end(member, partition) >= 0
        for member in state.isr
    ):
        return list(state.isr)
    return []


def _is_able(view: ClusterView, state: PartitionState, broker: int) -> bool:
    return view.is_live(broker) and state.readiness(broker) is not Readiness.ERROR
