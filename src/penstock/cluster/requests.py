"""What an operator asks of the cluster, as transactions that any broker may commit.

Topics say what is wanted; the controller makes their partitions follow, and their brokers report when
each is open: `opening` tells the client that waits. A view that is behind does no harm: every change is
compared with what it was made from. `ApiError` if something can not be as it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster import reassignment
from penstock.cluster.controller import Decision
from penstock.cluster.state import (
    PARTITIONS,
    Readiness,
    TopicState,
    encode_partition,
    encode_topic,
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
    "grow_topic",
    "opening",
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
        for replicas in added:
            _check_brokers(view, replicas)
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
    """Move a partition to the brokers of `target`; None cancels the move that is under way."""
    stored = view.partitions.get(partition)
    if stored is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"no partition {partition}")
    if target is None:
        state = reassignment.cancel(stored.value)
    else:
        _check_brokers(view, target)
        state = reassignment.begin(stored.value, target)
    state = replace(state, partition_epoch=stored.value.partition_epoch + 1)
    key = partition_key(partition)
    return Decision(
        Transaction(
            compares=(Compare(key=key, mod_revision=stored.revision),),
            puts=(Put(key=key, value=encode_partition(state)),),
        ),
        (partition,),
    )


def opening(view: ClusterView, topic: str) -> Opening:
    """A topic is open when nothing is pending; a client is told the first error."""
    pending, errors = 0, {}
    for index in range(_topic(view, topic).value.partition_count):
        partition = TopicPartition(topic, index)
        stored = view.partitions.get(partition)
        if stored is None:
            pending += 1
            continue
        for broker in stored.value.replicas:
            match stored.value.readiness(broker):
                case Readiness.PENDING:
                    pending += 1
                case Readiness.ERROR:
                    errors[partition] = f"broker {broker}: {stored.value.errors[broker]}"
    return Opening(pending, errors)


def _topic(view: ClusterView, name: str) -> Stored[TopicState]:
    stored = view.topics.get(name)
    if stored is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"no topic {name!r}")
    return stored


def _check_brokers(view: ClusterView, replicas: Sequence[int]) -> None:
    missing = [broker for broker in replicas if not view.is_live(broker)]
    if missing or not replicas or len(set(replicas)) != len(replicas):
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"replicas {list(replicas)} must be different brokers that are registered",
        )


def _write(topic: TopicState, revision: int) -> Decision:
    key = topic_key(topic.name)
    return Decision(
        Transaction(
            compares=(Compare(key=key, mod_revision=revision),),
            puts=(Put(key=key, value=encode_topic(topic)),),
        )
    )
