"""`penstock topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.cluster import REQUEST_TIMEOUT_S, Cluster, unknown_topic
from penstock.cli.failure import UsageError
from penstock.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, Yes, examples
from penstock.cli.values import pairs
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.adminapi import AdminClient, TopicMetadata
    from penstock.cli.offsets import Range

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Create, list, describe, alter, delete topics.",
)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Names of topics.")]


@app.command(
    epilog=examples("penstock topic create orders --partitions 6 --set retention.ms=3600000")
)
def create(
    topics: Names,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Unset: the broker's default.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, help="Copies of each partition. Unset: the default."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A topic setting. May be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave a topic that is there as it is.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Create topics."""
    from penstock.cli.adminapi import NewTopic

    wanted = pairs(settings, "topic setting")
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    there = set(cluster.topics(admin)) if if_not_exists else set()
    new = [
        NewTopic(
            name, num_partitions=partitions or -1, replication_factor=replicas or -1, config=wanted
        )
        for name in dict.fromkeys(topics)
        if name not in there
    ]
    if new:
        cluster.settle(
            admin.create_topics(new, operation_timeout=5, request_timeout=REQUEST_TIMEOUT_S)
        )
    created = {item.topic for item in new}
    found = cluster.topics(admin)
    report: list[dict[str, Any]] = [
        {"topic": name, "partitions": len(found[name].partitions), "created": name in created}
        for name in dict.fromkeys(topics)
        if name in found
    ]
    if json:
        output.document({"topics": report})
        return
    for item in report:
        verb = "Created" if item["created"] else "Already there:"
        output.line(f"{verb} {item['topic']} ({_count(item['partitions'], 'partition')}).")


@app.command("list", epilog=examples("penstock topic list 'orders-*' --records"))
def list_topics(
    pattern: Annotated[str, typer.Argument(help="Only names that match, as in a shell.")] = "*",
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Also count the records of each topic.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """List topics."""
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    found = {
        name: topic
        for name, topic in sorted(cluster.topics(admin).items())
        if fnmatch.fnmatchcase(name, pattern)
    }
    report: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": min((len(p.replicas) for p in topic.partitions.values()), default=0),
        }
        for name, topic in found.items()
    ]
    if records:
        spans = _ranges(cluster, admin, found)
        for item in report:
            item["records"] = sum(
                s.records for where, s in spans.items() if where.topic == item["topic"]
            )
    if json:
        output.document({"topics": report})
    elif report:
        output.table(list(report[0]), (list(item.values()) for item in report))
    else:
        output.note("No topics." if pattern == "*" else f"No topic matches {pattern!r}.")


@app.command(epilog=examples("penstock topic describe orders --all"))
def describe(
    topics: Names,
    all_settings: Annotated[
        bool, typer.Option("--all", "-a", help="Show every setting, not only those that were set.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Show the partitions, offsets and settings of topics."""
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    found = _existing(cluster, admin, topics)
    spans = _ranges(cluster, admin, found)
    settings = _settings(cluster, admin, list(found))
    report = [
        {
            "topic": name,
            "partitions": [_partition(topic, number, spans) for number in sorted(topic.partitions)],
            "settings": [s for s in settings[name] if all_settings or s["source"] == "topic"],
        }
        for name, topic in found.items()
    ]
    if json:
        output.document({"topics": report})
        return
    for item in report:
        _show_description(item)


def _show_description(item: dict[str, Any]) -> None:
    rows = item["partitions"]
    total = sum(row["records"] for row in rows)
    title = f"{item['topic']}: {_count(len(rows), 'partition')}, {_count(total, 'record')}"
    cells = (
        [", ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row.values()]
        for row in rows
    )
    output.table(list(rows[0]), cells, title=title)
    if item["settings"]:
        output.table(
            ["setting", "value", "source"],
            ([s["name"], s["value"], s["source"]] for s in item["settings"]),
        )


def _partition(
    topic: TopicMetadata, number: int, spans: dict[TopicPartition, Range]
) -> dict[str, Any]:
    partition = topic.partitions[number]
    span = spans[TopicPartition(str(topic.topic), number)]
    return {
        "partition": number,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isrs),
        "start": span.start,
        "end": span.end,
        "records": span.records,
    }


@app.command(
    epilog=examples(
        "penstock topic alter orders --set retention.ms=86400000",
        "penstock topic alter orders --unset retention.ms --partitions 12",
    )
)
def alter(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="New count; it can only grow.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A topic setting. May be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Back to the default. May be repeated."),
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Change the settings of a topic, or give it more partitions."""
    from penstock.cli.adminapi import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        ResourceType,
    )

    changes = pairs(settings, "topic setting")
    if not (changes or unset or partitions):
        raise UsageError("Nothing to change.", "Pass --set, --unset or --partitions.")
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    cluster.topic(topic, admin)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in changes.items()
    ] + [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        for name in unset or ()
    ]
    if entries:
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        futures = admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        cluster.settle(futures, topic)
    if partitions:
        cluster.settle(
            admin.create_partitions(
                [NewPartitions(topic, partitions)], request_timeout=REQUEST_TIMEOUT_S
            )
        )
    if json:
        output.document(
            {"topic": topic, "set": changes, "unset": unset or [], "partitions": partitions}
        )
    else:
        output.line(f"Altered {topic}.")


@app.command(epilog=examples("penstock topic delete orders --yes"))
def delete(
    topics: Names,
    yes: Yes = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Delete topics with all their records."""
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    found = _existing(cluster, admin, topics)
    total = sum(span.records for span in _ranges(cluster, admin, found).values())
    output.confirm(f"Delete {', '.join(found)} with {_count(total, 'record')}?", yes=yes)
    cluster.settle(
        admin.delete_topics(list(found), operation_timeout=5, request_timeout=REQUEST_TIMEOUT_S)
    )
    if json:
        output.document({"topics": [{"topic": name, "deleted": True} for name in found]})
    else:
        output.line(f"Deleted {', '.join(found)}.")


def _existing(cluster: Cluster, admin: AdminClient, names: list[str]) -> dict[str, TopicMetadata]:
    there = cluster.topics(admin)
    for name in names:
        if name not in there:
            raise unknown_topic(name)
    return {name: there[name] for name in names}


def _ranges(
    cluster: Cluster, admin: AdminClient, topics: dict[str, TopicMetadata]
) -> dict[TopicPartition, Range]:
    from penstock.cli.offsets import ranges

    return ranges(
        cluster,
        admin,
        [
            TopicPartition(name, number)
            for name, topic in topics.items()
            for number in topic.partitions
        ],
    )


def _settings(
    cluster: Cluster, admin: AdminClient, names: list[str]
) -> dict[str, list[dict[str, Any]]]:
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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
