"""`penstock group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.contact import REQUEST_TIMEOUT_S, Cluster
from penstock.cli.failure import CommandError, UsageError
from penstock.cli.groupstate import Group, describe_groups
from penstock.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientProperties,
    Json,
    Yes,
    examples,
    is_text,
)
from penstock.cli.values import POSITION_HELP, Position

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, describe, reset, delete consumer groups.",
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.", callback=is_text)]


@app.command("list", epilog=examples("penstock group list --json"))
def list_groups(
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """List consumer groups with their state and number of members."""
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    listing = cluster.settle(
        {"groups": admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S)}
    )["groups"]
    names = sorted(item.group_id for item in listing.valid)
    report: list[dict[str, output.Cell]] = [
        {"group": name, "state": group.state, "members": len(group.members)}
        for name, group in describe_groups(cluster, admin, names).items()
    ]
    if json:
        output.document({"groups": report})
    elif report:
        columns = ["group", "state", "members"]
        output.table(columns, ([item[name] for name in columns] for item in report))
    elif not listing.errors:
        output.note("No consumer groups.")
    if listing.errors:
        reasons = "; ".join(sorted({error.str() for error in listing.errors}))
        raise CommandError(f"The list is not complete: a broker did not answer ({reasons}).")


@app.command(epilog=examples("penstock group describe billing"))
def describe(
    group: Name,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Show the members of a group, its offsets and how far it is behind."""
    cluster = Cluster.reach(bootstrap, client)
    found = Group.load(cluster, cluster.admin(), group)
    report = found.report()
    if json:
        output.document(report)
        return
    lag = sum(item["lag"] or 0 for item in report["partitions"])
    output.line(
        f"{group}: {found.state}, {output.count(len(found.members), 'member')}, "
        f"{output.count(lag, 'record')} behind"
        + (f", assignor {found.assignor}" if found.assignor else "")
    )
    shown = ["topic", "partition", "committed", "end", "lag", "client_id", "host"]
    if report["partitions"]:
        output.table(
            [name.replace("_", " ") for name in shown],
            ([item[name] for name in shown] for item in report["partitions"]),
        )
    idle = [member for member in found.members if not member["partitions"]]
    if idle:
        output.note("Members without partitions: " + ", ".join(m["client_id"] for m in idle))


@app.command(
    epilog=examples(
        "penstock group reset billing --to earliest --dry-run : only show what would change",
        "penstock group reset billing --topic orders:0,1 --to -1h --yes",
        "penstock group reset billing --by -100 : a hundred records back in each partition",
    )
)
def reset(
    group: Name,
    to: Annotated[
        str | None, typer.Option("--to", metavar="POSITION", help=f"Where to go: {POSITION_HELP}.")
    ] = None,
    by: Annotated[
        int | None, typer.Option("--by", help="Move by this many records, back if negative.")
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P]",
            help="Only this topic, or these partitions of it; unset: all the group has offsets for. "
            "May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Move the offsets of a group that has no active members."""
    from penstock.cli.groupreset import apply, plan

    if (to is None) == (by is None):
        raise UsageError("Say where to go: either --to or --by.")
    position = Position.parse(to) if to is not None else None
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    moves = plan(cluster, admin, group, topics or [], position, by)
    if not json:
        rows = ([m.topic, m.partition, m.before, m.after] for m in moves)
        output.table(["topic", "partition", "before", "after"], rows)
    if not dry_run:
        output.confirm(
            f"Move the offsets of {group} in {output.count(len(moves), 'partition')}?", yes=yes
        )
        apply(cluster, admin, group, moves)
    if json:
        output.document(
            {"group": group, "dry_run": dry_run, "partitions": [m._asdict() for m in moves]}
        )
    else:
        output.line("Nothing was changed (--dry-run)." if dry_run else f"Reset {group}.")


@app.command(epilog=examples("penstock group delete billing --yes"))
def delete(
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP…", help="Names of groups.", callback=is_text)
    ],
    yes: Yes = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Delete groups that have no active members, with their offsets."""
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    groups = list(dict.fromkeys(groups))
    for name in groups:
        _check_idle(Group.load(cluster, admin, name))
    output.confirm(f"Delete {', '.join(groups)} with all offsets?", yes=yes)
    cluster.settle(admin.delete_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S))
    if json:
        output.document({"groups": [{"group": name, "deleted": True} for name in groups]})
    else:
        output.line(f"Deleted {', '.join(groups)}.")


def _check_idle(group: Group) -> None:
    if group.members:
        raise CommandError(
            f"The consumer group {group.name} has {output.count(len(group.members), 'active member')}.",
            "Stop its consumers first; `penstock group describe` shows them.",
        )
