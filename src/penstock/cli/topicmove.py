"""`penstock topic move` and `penstock topic elect`: which brokers hold and lead partitions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.contact import Cluster
from penstock.cli.failure import CommandError, UsageError
from penstock.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, Yes
from penstock.cli.topicstate import existing
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.moves import Mover

_POLL_S: Final = 0.2
_SIZES_EVERY: Final = 5  # looks at whether it is done, for one at how far it is

Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this one. May be repeated. Unset: all."),
]


def move(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    partitions: Partitions = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ID,ID,…",
            help="Brokers to hold it, the one to lead first; with several partitions, they take turns.",
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Go back to where it was before the move under way.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all is where it should be.")
    ] = True,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions to other brokers, or change how many hold them.

    The records are copied while clients read and write. Interrupting the command does not stop the move;
    --cancel does.
    """
    from penstock.cli.moves import Mover, rotated

    if cancel == (to is not None):
        raise UsageError("It is not said where to move.", "Pass --to ID,ID,… or --cancel.")
    brokers = _brokers(to) if to is not None else ()
    cluster = Cluster.reach(bootstrap)
    places = _places(cluster, [topic], partitions)
    with Mover.reach(bootstrap) as mover:
        if cancel and not partitions:
            places = list(mover.under_way(places))
            if not places:
                raise CommandError(f"No partition of {topic} is being moved.")
        targets: dict[TopicPartition, tuple[int, ...] | None] = {
            where: None if cancel else rotated(brokers, number if len(places) > 1 else 0)
            for number, where in enumerate(places)
        }
        mover.begin(targets)
        if wait:
            _wait(mover, places, f"penstock topic move {topic} --cancel")
    _report_moves(targets, wait=wait, json=json)


def elect(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC…]", help="Names. None: all topics.")
    ] = None,
    partitions: Partitions = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Let anybody lead where nobody in sync is left. Records may be lost.",
        ),
    ] = False,
    yes: Yes = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Let the preferred replicas lead again: the first of each partition's replicas.

    The cluster does this by itself every five minutes.
    """
    from confluent_kafka import TopicPartition as Place

    from penstock.cli.adminapi import ElectionType

    if partitions and len(topics or ()) != 1:
        raise UsageError("Partitions of which topic?", "Name one topic with --partition.")
    cluster = Cluster.reach(bootstrap, client)
    admin = cluster.admin()
    wanted = None
    if topics:
        wanted = [Place(*where) for where in _places(cluster, topics, partitions)]
    if unclean:
        subject = ", ".join(topics) if topics else "any topic"
        output.confirm(
            f"Let replicas lead {subject} that lack records, where no other is left? "
            "What they lack is lost.",
            yes=yes,
        )
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    # confluent-kafka 2.16 can not take its options here: socket.timeout.ms bounds it, too.
    future = admin.elect_leaders(kind, wanted)
    outcome = cluster.settle({"the election": future})["the election"]
    report: list[dict[str, Any]] = [
        {
            "topic": place.topic,
            "partition": place.partition,
            "outcome": "elected" if error is None else error.name().lower(),
            "reason": None if error is None else error.str(),
        }
        for place, error in sorted(outcome.items())
    ]
    failed = [row for row in report if row["outcome"] not in {"elected", "election_not_needed"}]
    if json:
        output.document({"partitions": report})
    else:
        counts = Counter(row["outcome"] for row in report)
        output.line(f"Elected {output.count(counts['elected'], 'leader')}.")
    if failed:
        first = failed[0]
        raise CommandError(
            f"{output.count(len(failed), 'partition')} could not be helped; "
            f"{first['topic']}-{first['partition']}: {first['reason']}",
            "`penstock cluster status` shows who is in sync; --unclean takes others, at a loss."
            if not unclean
            else "`penstock cluster status` shows which brokers are there.",
        )


def _brokers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) != len(parts):
        raise UsageError(
            f"{text!r} is no list of different brokers.", "Write their ids: --to 1,2,3."
        )
    return tuple(map(int, parts))


def _places(
    cluster: Cluster, topics: list[str], partitions: Sequence[int] | None
) -> list[TopicPartition]:
    found = existing(cluster, cluster.admin(), list(dict.fromkeys(topics)))
    places = []
    for name, topic in found.items():
        for number in dict.fromkeys(partitions or sorted(topic.partitions)):
            if number not in topic.partitions:
                raise CommandError(
                    f"{name} has no partition {number}.",
                    f"`penstock topic describe {name}` shows those it has.",
                )
            places.append(TopicPartition(name, number))
    return places


def _wait(mover: Mover, places: Sequence[TopicPartition], cancelling: str) -> None:
    """Until none of them is being moved, with a bar of the bytes copied."""
    moves = mover.under_way(places)
    if not moves:
        return
    total = mover.copied(moves).total_bytes
    try:
        with output.Progress("Copying", total=total or None, unit_bytes=True) as progress:
            looks = 0
            while left := mover.under_way(places):
                if looks % _SIZES_EVERY == 0:
                    copied = mover.copied(left)
                    progress.update(max(0, total - copied.total_bytes) + copied.done_bytes)
                looks += 1
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        output.note(f"The move goes on; `{cancelling}` cancels it.")
        raise


def _report_moves(
    targets: Mapping[TopicPartition, tuple[int, ...] | None], *, wait: bool, json: bool
) -> None:
    if json:
        rows = [
            {
                "topic": where.topic,
                "partition": where.partition,
                "replicas": None if target is None else list(target),
                "done": wait,
            }
            for where, target in targets.items()
        ]
        output.document({"partitions": rows})
        return
    for where, target in targets.items():
        if target is None:
            output.line(f"{'Back' if wait else 'Going back'}: {where}.")
        else:
            verb = "Moved" if wait else "Moving"
            output.line(f"{verb} {where} to {', '.join(map(str, target))}.")
