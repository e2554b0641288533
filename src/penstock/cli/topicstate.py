"""What the cluster knows of topics: partitions, offsets, settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli import offsets, output
from penstock.cli.contact import REQUEST_TIMEOUT_S, Cluster, unknown_topic
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.adminapi import AdminClient, PartitionMetadata, TopicMetadata
    from penstock.cli.offsets import Range


def show_description(item: dict[str, Any]) -> None:
    """Print a described topic for people."""
    rows = item["partitions"]
    total = sum(row["records"] or 0 for row in rows)
    title = (
        f"{item['topic']}: {output.count(len(rows), 'partition')}, {output.count(total, 'record')}"
    )
    cells = (
        [", ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row.values()]
        for row in rows
    )
    output.table(list(rows[0]), cells, title=title, colours=map(_colour, rows))
    leaderless = sum(row["leader"] is None for row in rows)
    behind = sum(len(row["isr"]) < len(row["replicas"]) for row in rows)
    if leaderless or behind:
        output.note(
            f"Of {output.count(len(rows), 'partition')}, {leaderless} without a leader, "
            f"{behind} with replicas that are not in sync."
        )
    if item["settings"]:
        output.table(
            ["setting", "value", "source"],
            ([s["name"], s["value"], s["source"]] for s in item["settings"]),
        )


def _colour(row: dict[str, Any]) -> str:
    if row["leader"] is None:
        return "red"
    return "yellow" if len(row["isr"]) < len(row["replicas"]) else ""


def is_led(partition: PartitionMetadata) -> bool:
    """One whose leader is gone may still name it, with an error."""
    return partition.leader >= 0 and partition.error is None


def described_partition(
    topic: TopicMetadata, number: int, spans: dict[TopicPartition, Range]
) -> dict[str, Any]:
    """One partition as `describe --json` prints it. Nobody can tell the offsets of one without a leader."""
    partition = topic.partitions[number]
    span = spans.get(TopicPartition(str(topic.topic), number))
    return {
        "partition": number,
        "leader": partition.leader if is_led(partition) else None,
        "replicas": list(partition.replicas),
        "isr": list(partition.isrs),
        "start": None if span is None else span.start,
        "end": None if span is None else span.end,
        "records": None if span is None else span.records,
    }


def existing(cluster: Cluster, admin: AdminClient, names: list[str]) -> dict[str, TopicMetadata]:
    """The named topics; `CommandError` if one is not there."""
    there = cluster.topics(admin)
    for name in names:
        if name not in there:
            raise unknown_topic(name)
    return {name: there[name] for name in names}


def topic_ranges(
    cluster: Cluster, admin: AdminClient, topics: dict[str, TopicMetadata]
) -> dict[TopicPartition, Range]:
    """The offsets that every partition of these topics holds, but for those without a leader."""
    return offsets.ranges(
        cluster,
        admin,
        [
            TopicPartition(name, number)
            for name, topic in topics.items()
            for number, partition in topic.partitions.items()
            if is_led(partition)
        ],
    )


def topic_settings(
    cluster: Cluster, admin: AdminClient, names: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Every setting of each topic, with where its value comes from: topic, broker or default."""
    from penstock.cli.adminapi import ConfigResource, ConfigSource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    words = {
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
        ConfigSource.DEFAULT_CONFIG.value: "default",
    }
    return {
        resource.name: [
            {"name": name, "value": entry.value, "source": words.get(entry.source, "broker")}
            for name, entry in sorted(entries.items())
        ]
        for resource, entries in cluster.settle(futures, ", ".join(names)).items()
    }
