"""Moving the offsets of a consumer group: first a plan, then the change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.cli import offsets, output
from penstock.cli.contact import REQUEST_TIMEOUT_S, unknown_topic
from penstock.cli.failure import CommandError, UsageError
from penstock.cli.groupstate import committed_offsets, describe_groups
from penstock.cli.values import topic_partitions
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.adminapi import AdminClient
    from penstock.cli.contact import Cluster
    from penstock.cli.offsets import Range
    from penstock.cli.values import Position


class Move(NamedTuple):
    """One partition's offset before and after; `before` is None where the group has none."""

    topic: str
    partition: int
    before: int | None
    after: int


def plan(
    cluster: Cluster,
    admin: AdminClient,
    group: str,
    topics: list[str],
    position: Position | None,
    by: int | None,
) -> list[Move]:
    """Where each offset would go: to `position`, or `by` records from where it is.

    A shift stops at the ends of the log; an explicit offset outside of it is an error.
    """
    members = describe_groups(cluster, admin, [group]).get(group)
    if members is not None and members.members:
        raise CommandError(
            f"The consumer group {group} has {output.count(len(members.members), 'active member')}.",
            "Stop its consumers first; `penstock group describe` shows them.",
        )
    committed = committed_offsets(cluster, admin, group)
    chosen = _chosen(cluster, admin, group, topics, committed)
    known = offsets.ranges(cluster, admin, chosen)
    if position is not None:
        targets = offsets.resolve(cluster, admin, position, known)
    else:
        targets = _shifted(group, committed, known, by or 0)
    problem = offsets.out_of_range(targets, known)
    if problem is not None:
        raise problem
    return [
        Move(where.topic, where.partition, committed.get(where), offset)
        for where, offset in sorted(targets.items())
    ]


def apply(cluster: Cluster, admin: AdminClient, group: str, moves: list[Move]) -> None:
    """Commit the planned offsets."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka import TopicPartition as Place

    places = [Place(move.topic, move.partition, move.after) for move in moves]
    result = cluster.settle(
        admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=REQUEST_TIMEOUT_S
        )
    )[group]
    for place in result.topic_partitions:
        if place.error is not None:
            raise cluster.explain(place.error, f"{place.topic} partition {place.partition}")


def _chosen(
    cluster: Cluster,
    admin: AdminClient,
    group: str,
    topics: list[str],
    committed: dict[TopicPartition, int],
) -> list[TopicPartition]:
    there = cluster.topics(admin)
    if not topics:
        chosen = [
            where
            for where in committed
            if where.topic in there and where.partition in there[where.topic].partitions
        ]
        if not chosen:
            raise CommandError(
                f"The consumer group {group!r} has no offsets to move.",
                "Name a topic with --topic to give it some.",
            )
        return chosen
    chosen = []
    for topic, numbers in topic_partitions(topics).items():
        if topic not in there:
            raise unknown_topic(topic)
        for number in sorted(numbers if numbers is not None else there[topic].partitions):
            if number not in there[topic].partitions:
                raise UsageError(f"{topic} has no partition {number}.")
            chosen.append(TopicPartition(topic, number))
    return chosen


def _shifted(
    group: str,
    committed: dict[TopicPartition, int],
    known: dict[TopicPartition, Range],
    by: int,
) -> dict[TopicPartition, int]:
    targets = {}
    for where, span in known.items():
        if where not in committed:
            raise CommandError(
                f"{group} has no offset in {where.topic} partition {where.partition} to move from.",
                "Use --to to give it one.",
            )
        targets[where] = min(max(committed[where] + by, span.start), span.end)
    return targets
