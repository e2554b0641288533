"""What the cluster knows of a consumer group: members, offsets, lag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cli import offsets
from penstock.cli.contact import REQUEST_TIMEOUT_S
from penstock.cli.failure import CommandError
from penstock.cli.topicstate import is_led
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.adminapi import AdminClient, ConsumerGroupDescription
    from penstock.cli.contact import Cluster
    from penstock.cli.offsets import Range


@dataclass
class Group:
    """A group, its members as the reports show them, and its place in each partition."""

    name: str
    state: str
    assignor: str = ""
    members: list[dict[str, Any]] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    known: dict[TopicPartition, Range] = field(default_factory=dict)  # partitions that are led

    @classmethod
    def load(cls, cluster: Cluster, admin: AdminClient, name: str) -> Group:
        """The group with its offsets and lag, or a `CommandError` when there is none."""
        group = describe_groups(cluster, admin, [name]).get(name)
        committed = committed_offsets(cluster, admin, name)
        if group is None or (group.state == "dead" and not committed):
            raise CommandError(
                f"There is no consumer group {name!r}.",
                "`penstock group list` shows those there are.",
            )
        group.committed = committed
        there = cluster.topics(admin)
        group.known = offsets.ranges(
            cluster,
            admin,
            [
                where
                for where in sorted(committed.keys() | group.owners().keys())
                if where.topic in there
                and (partition := there[where.topic].partitions.get(where.partition)) is not None
                and is_led(partition)
            ],
        )
        return group

    def owners(self) -> dict[TopicPartition, dict[str, Any]]:
        """The member that each assigned partition belongs to."""
        return {
            TopicPartition(item["topic"], item["partition"]): member
            for member in self.members
            for item in member["partitions"]
        }

    def report(self) -> dict[str, Any]:
        """The group as `--json` prints it."""
        owners = self.owners()
        return {
            "group": self.name,
            "state": self.state,
            "assignor": self.assignor or None,
            "members": self.members,
            "partitions": [
                self._place(where, owners.get(where))
                for where in sorted(self.committed.keys() | owners.keys())
            ],
        }

    def _place(self, where: TopicPartition, owner: dict[str, Any] | None) -> dict[str, Any]:
        committed = self.committed.get(where)
        span = self.known.get(where)
        return {
            "topic": where.topic,
            "partition": where.partition,
            "committed": committed,
            "end": span.end if span else None,
            "lag": max(0, span.end - committed) if span and committed is not None else None,
            "member_id": owner["member_id"] if owner else None,
            "client_id": owner["client_id"] if owner else None,
            "host": owner["host"] if owner else None,
        }


def describe_groups(cluster: Cluster, admin: AdminClient, names: list[str]) -> dict[str, Group]:
    """Groups by name, without their offsets; those that are not there are left out."""
    from confluent_kafka import KafkaError, KafkaException

    if not names:
        return {}
    futures = admin.describe_consumer_groups(names, request_timeout=REQUEST_TIMEOUT_S)
    groups = {}
    for name, future in futures.items():
        try:
            groups[name] = _group(future.result(timeout=REQUEST_TIMEOUT_S + 2))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise cluster.explain(error.args[0], name) from error
        except TimeoutError:
            raise cluster.silent() from None
    return groups


def _group(description: ConsumerGroupDescription) -> Group:
    return Group(
        name=description.group_id,
        state=description.state.name.lower(),
        assignor=description.partition_assignor or "",
        members=[
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [
                    {"topic": place.topic, "partition": place.partition}
                    for place in (member.assignment.topic_partitions if member.assignment else [])
                ],
            }
            for member in description.members
        ],
    )


def committed_offsets(cluster: Cluster, admin: AdminClient, name: str) -> dict[TopicPartition, int]:
    """The offsets that the group committed; empty when it committed none or is not there."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

    futures = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(name)], request_timeout=REQUEST_TIMEOUT_S
    )
    try:
        places = futures[name].result(timeout=REQUEST_TIMEOUT_S + 2).topic_partitions
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise cluster.explain(error.args[0], name) from error
    except TimeoutError:
        raise cluster.silent() from None
    return {
        TopicPartition(place.topic, place.partition): place.offset
        for place in places
        if place.offset >= 0
    }
