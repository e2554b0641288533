"""What an operator asks of the cluster, as transactions that any broker may commit.

Topics say what is wanted; the controller makes their partitions follow, and their brokers report when
each is open: `opening` tells the client that waits. A view that is behind does no harm: every change is
compared with what it was made from. `ApiError` if something can not be as it is asked for.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster import elections, reassignment
from penstock.cluster.batching import KeyChange, batched
from penstock.cluster.controller import Decision
from penstock.cluster.state import (
    PARTITIONS,
    PartitionState,
    Readiness,
    TopicState,
    encode_partition,
    encode_topic,
    partition_cluster_id,
    partition_key,
    topic_key,
)
from penstock.cluster.view import ClusterView, Stored
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.store import Compare, Delete, Put, Transaction
from penstock.model import TopicPartition

__all__ = [
    "Opening",
    "create_topic",
    "delete_topic",
    "elect",
    "grow_topic",
    "move",
    "opening",
    "opening_of",
    "reassign",
    "replace_topic",
]


class Opening(NamedTuple):
    """How far a new topic is: replicas that have not said, and the reasons of those that failed."""

    pending: int
    errors: dict[TopicPartition, str]


def create_topic(view: ClusterView, topic: TopicState) -> Decision:
    if topic.name in view.topics:
        raise ApiError(ErrorCode.topic_already_exists, f"topic {topic.name!r} exists")
    here = sum(not broker.is_leaving for broker in view.brokers.values())
    for replicas in topic.assignment:
        _check_brokers(view, replicas)
        _check_count(replicas, topic.replication_factor)
    if not 1 <= topic.replication_factor <= here:
        raise ApiError(
            ErrorCode.invalid_replication_factor,
            f"{topic.replication_factor} replicas on {here} brokers",
        )
    return _write(topic, revision=0)


def grow_topic(
    view: ClusterView,
    name: str,
    partition_count: int,
    added: Sequence[tuple[int, ...]] | None = None,
) -> Decision:
    """More partitions; `added` are the replicas of the new ones, if they are placed by hand."""
    stored = _topic(view, name)
    topic = stored.value
    if partition_count <= topic.partition_count:
        raise ApiError(
            ErrorCode.invalid_partitions,
            f"topic {name!r} has {topic.partition_count} partitions already",
        )
    assignment = topic.assignment
    if added is not None:
        if len(added) != partition_count - topic.partition_count:
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                f"{partition_count - topic.partition_count} partition(s) are added,"
                f" but {len(added)} assignment(s) given",
            )
        for replicas in added:
            _check_brokers(view, replicas)
            _check_count(replicas, topic.replication_factor)
        placed = topic.partition_count - len(assignment)
        assignment = (*assignment, *((),) * placed, *added)
    grown = replace(topic, partition_count=partition_count, assignment=assignment)
    return replace_topic(stored, grown)


def replace_topic(stored: Stored[TopicState], topic: TopicState) -> Decision:
    """The topic as `topic` says, if it still is as it was stored."""
    return _write(topic, stored.revision)


def delete_topic(view: ClusterView, name: str) -> Decision:
    """The topic and its partitions go at once; brokers drop the logs when they see it.

    One that is away then finds at its return that the store does not know what its disk holds.
    """
    key = topic_key(name)
    return Decision(
        Transaction(
            compares=(Compare(key=key, mod_revision=_topic(view, name).revision),),
            deletes=(Delete(key=key), Delete(key=f"{PARTITIONS}{name}/", prefix=True)),
        )
    )


def reassign(
    view: ClusterView, partition: TopicPartition, target: Sequence[int] | None
) -> Decision:
    """`move` as a transaction of its own."""
    change = move(view, partition, target)
    return Decision(next(batched(() if change is None else (change,)), Transaction()), (partition,))


def move(
    view: ClusterView,
    partition: TopicPartition,
    target: Sequence[int] | None,
    *,
    may_change_count: bool = True,
) -> KeyChange | None:
    """Move a partition to the brokers of `target`, or cancel the move under way; None: it is there.

    A broker that holds a replica may stay one while it is away; the move waits for it.
    """
    stored = _partition(view, partition)
    state = stored.value
    before = reassignment.replicas_before(state)
    count = len(state.target)  # also of a move that is under way: it has set what is wanted
    if target is None:
        moved = reassignment.cancel(state)
    else:
        _check_brokers(view, target, held=before)
        if not may_change_count and len(target) != count:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"{partition} has {count} replica(s), not {len(target)}",
            )
        moved = reassignment.begin(state, target)
    if len(moved.target) != count:
        wanted = _topic(view, partition.topic).value.replication_factor
        count = len(moved.target)
        moved = replace(moved, replica_count=None if count == wanted else count)
    return None if moved == state else _change(partition, stored, moved)


def elect(view: ClusterView, partition: TopicPartition, *, unclean: bool = False) -> KeyChange:
    """Let the preferred replica lead; or, `unclean`, let anybody if nobody in sync can.

    Which one that is, is left to the controller: brokers tell it how long their logs are.
    """
    stored = _partition(view, partition)
    state = stored.value
    if unclean:
        if elections.is_led(view, state):
            raise ApiError(
                ErrorCode.election_not_needed, f"broker {state.leader} leads {partition}"
            )
        if elections.elect(view, partition, state, unclean=True).leader is None:
            raise ApiError(
                ErrorCode.eligible_leaders_not_available, f"no replica of {partition} is there"
            )
        return _change(partition, stored, replace(state, is_unclean_wanted=True))
    preferred = state.target[0]
    if state.leader == preferred and elections.is_led(view, state):
        raise ApiError(ErrorCode.election_not_needed, f"broker {preferred} leads {partition}")
    elected = elections.elect_preferred(view, state)
    if elected.leader != preferred or elected is state:
        raise ApiError(
            ErrorCode.preferred_leader_not_available, f"broker {preferred} can not lead {partition}"
        )
    return _change(partition, stored, elected)


def opening(view: ClusterView, topic: str) -> Opening:
    """A topic is open when nothing is pending; a client is told the first error."""
    pending, errors = 0, {}
    for index in range(_topic(view, topic).value.partition_count):
        partition = TopicPartition(topic, index)
        more, error = opening_of(view, partition)
        pending += more
        if error is not None:
            errors[partition] = error
    return Opening(pending, errors)


def opening_of(view: ClusterView, partition: TopicPartition) -> tuple[int, str | None]:
    """How many of its replicas have not said, and why one of them could not be opened."""
    stored, topic = view.partitions.get(partition), view.topics.get(partition.topic)
    if stored is None or topic is None:
        return 1, None
    if stored.value.cluster_id != partition_cluster_id(topic.value.id, partition.partition):
        return 1, None  # of a topic that had the name before
    pending, error = 0, None
    for broker in stored.value.replicas:
        match stored.value.readiness(broker):
            case Readiness.PENDING:
                pending += 1
            case Readiness.ERROR:
                error = f"broker {broker}: {stored.value.errors[broker]}"
    return pending, error


def _topic(view: ClusterView, name: str) -> Stored[TopicState]:
    stored = view.topics.get(name)
    if stored is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"no topic {name!r}")
    return stored


def _partition(view: ClusterView, partition: TopicPartition) -> Stored[PartitionState]:
    stored = view.partitions.get(partition)
    if stored is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"no partition {partition}")
    return stored


def _change(
    partition: TopicPartition, stored: Stored[PartitionState], state: PartitionState
) -> KeyChange:
    state = replace(state, partition_epoch=stored.value.partition_epoch + 1)
    return KeyChange(
        key=partition_key(partition), value=encode_partition(state), revision=stored.revision
    )


def _check_brokers(
    view: ClusterView, replicas: Sequence[int], held: Container[int] = frozenset()
) -> None:
    missing = [broker for broker in replicas if broker not in held and not view.is_live(broker)]
    if missing or not replicas or len(set(replicas)) != len(replicas):
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"replicas {list(replicas)} must be different brokers that are registered",
        )


def _check_count(replicas: Sequence[int], replication_factor: int) -> None:
    if len(replicas) != replication_factor:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"replicas {list(replicas)} are {len(replicas)}, other partitions have"
            f" {replication_factor}",
        )


def _write(topic: TopicState, revision: int) -> Decision:
    key = topic_key(topic.name)
    return Decision(
        Transaction(
            compares=(Compare(key=key, mod_revision=revision),),
            puts=(Put(key=key, value=encode_topic(topic)),),
        )
    )
