"""`penstock topic`: create, list, describe, alter, move and delete topics."""

from __future__ import annotations

import fnmatch
from typing import Annotated, Any

import typer

from penstock.cli import output, topicmove
from penstock.cli.contact import REQUEST_TIMEOUT_S, Cluster
from penstock.cli.failure import UsageError
from penstock.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientProperties,
    Json,
    Yes,
    examples,
    is_text,
)
from penstock.cli.topicstate import (
    described_partition,
    existing,
    show_description,
    topic_ranges,
    topic_settings,
)
from penstock.cli.values import pairs

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Create, list, describe, alter, move, delete topics.",
)

Names = Annotated[
    list[str], typer.Argument(metavar="TOPIC…", help="Names of topics.", callback=is_text)
]


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
        typer.Option(
            "--replicas",
            "--replication-factor",
            min=1,
            help="Brokers that hold each partition. Unset: the default.",
        ),
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
    created = cluster.create_topics(admin, new, may_exist=if_not_exists) if new else set()
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
        output.line(f"{verb} {item['topic']} ({output.count(item['partitions'], 'partition')}).")


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
        spans = topic_ranges(cluster, admin, found)
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
    found = existing(cluster, admin, topics)
    spans = topic_ranges(cluster, admin, found)
    settings = topic_settings(cluster, admin, list(found))
    report = [
        {
            "topic": name,
            "partitions": [
                described_partition(topic, number, spans) for number in sorted(topic.partitions)
            ],
            "settings": [s for s in settings[name] if all_settings or s["source"] == "topic"],
        }
        for name, topic in found.items()
    ]
    if json:
        output.document({"topics": report})
        return
    for item in report:
        show_description(item)


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


app.command(
    epilog=examples(
        "penstock topic move orders --partition 0 --to 1,2,3 : these hold it, 1 leads",
        "penstock topic move orders --to 1,2 : all partitions, 1 and 2 lead in turn",
        "penstock topic move orders --cancel",
    )
)(topicmove.move)
app.command(
    epilog=examples(
        "penstock topic elect : the preferred leaders of all partitions",
        "penstock topic elect orders --partition 3 --unclean : if records are worth less than service",
    )
)(topicmove.elect)


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
    found = existing(cluster, admin, topics)
    total = sum(span.records for span in topic_ranges(cluster, admin, found).values())
    output.confirm(f"Delete {', '.join(found)} with {output.count(total, 'record')}?", yes=yes)
    cluster.settle(
        admin.delete_topics(list(found), operation_timeout=5, request_timeout=REQUEST_TIMEOUT_S)
    )
    if json:
        output.document({"topics": [{"topic": name, "deleted": True} for name in found]})
    else:
        output.line(f"Deleted {', '.join(found)}.")
