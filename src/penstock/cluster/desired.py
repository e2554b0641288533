"""What a partition should be, but for who leads it. Pure: states in, states out."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.placement import Placement
from penstock.cluster.state import (
    ERROR_CHARS_MAX,
    PartitionState,
    TopicState,
    partition_cluster_id,
)
from penstock.cluster.view import ClusterView
from penstock.model import TopicPartition

__all__ = ["Opened", "new_partition", "wanted_replicas", "with_enough_replicas", "with_readiness"]


class Opened(NamedTuple):
    """What a broker said of its replica, in one incarnation; `error` None: it is open."""

    incarnation: str
    error: str | None


def new_partition(
    view: ClusterView, topic: TopicState, partition: TopicPartition, placement: Placement
) -> PartitionState | None:
    """Everybody is in sync with an empty log, and nobody has opened it yet. None: nobody is there."""
    by_hand = topic.assignment[partition.partition : partition.partition + 1]
    replicas = by_hand[0] if any(by_hand) else placement.place(topic.replication_factor)
    present = {b: view.brokers[b].storage_id for b in replicas if view.is_live(b)}
    if not present:
        return None
    leader = next(iter(present))
    return PartitionState(
        cluster_id=partition_cluster_id(topic.id, partition.partition),
        replicas=replicas,
        isr=present,
        leader=leader,
        leader_incarnation=view.brokers[leader].incarnation,
    )


def with_readiness(
    view: ClusterView, state: PartitionState, said: Mapping[int, Opened]
) -> PartitionState:
    """Rule 6: a replica is ready, or has a reason why not, as its broker said in its current term."""
    ready, errors = set(state.ready), dict(state.errors)
    for broker, opened in said.items():
        registered = view.brokers.get(broker)
        if registered is None or registered.incarnation != opened.incarnation:
            continue
        if broker not in state.replicas:
            continue
        ready.discard(broker)
        errors.pop(broker, None)
        if opened.error is None:
            ready.add(broker)
        else:
            errors[broker] = opened.error[:ERROR_CHARS_MAX]
    return replace(state, ready=frozenset(ready), errors=errors)


def wanted_replicas(state: PartitionState, topic: TopicState) -> int:
    return topic.replication_factor if state.replica_count is None else state.replica_count


def with_enough_replicas(
    state: PartitionState, topic: TopicState, placement: Placement, given_up: Container[int]
) -> PartitionState:
    """Filled up to what the topic wants, with others for brokers that are gone for good."""
    if state.is_reassigning:
        return state
    replicas = list(state.replicas)
    for at, broker in enumerate(replicas):
        # A member of the ISR may hold what nobody else has: the leader takes it out first.
        if broker in given_up and broker not in state.isr:
            spare = placement.add(replicas)
            if spare is not None:
                replicas[at] = spare
    while len(replicas) < wanted_replicas(state, topic):
        more = placement.add(replicas)
        if more is None:
            break
        replicas.append(more)
    if replicas == list(state.replicas):
        return state
    return replace(
        state,
        replicas=tuple(replicas),
        ready=state.ready & set(replicas),
        errors={broker: text for broker, text in state.errors.items() if broker in replicas},
    )
