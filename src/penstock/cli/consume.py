"""`penstock consume`: print the records of a topic."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from penstock.cli.failure import UsageError
from penstock.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientProperties,
    Json,
    examples,
    is_text,
)
from penstock.cli.values import POSITION_HELP, Position

EPILOG: Final = examples(
    "penstock consume orders --follow : everything, then what arrives",
    "penstock consume orders --from -10m --show offset,key,value",
    "penstock consume orders --from -5 --partition 0 : the last five of partition 0",
    "penstock consume orders --group billing --max 100 --json : the group's next hundred",
)


class Shown(enum.StrEnum):
    """The parts of a record that can be printed."""

    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    KEY = "key"
    VALUE = "value"
    HEADERS = "headers"


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "-o",
            metavar="POSITION",
            help=f"Where to start: {POSITION_HELP}. Unset: the beginning, or where the group is.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Read as a member of this group and commit what was printed.",
            callback=is_text,
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this one. May be repeated."),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-F", help="Wait for new records instead of stopping at the end."),
    ] = False,
    show: Annotated[
        str,
        typer.Option("--show", "-s", help=f"What to print: any of {', '.join(Shown)}."),
    ] = "value",
    separator: Annotated[
        str,
        typer.Option(
            "--separator", help="Text between the parts; unset: a tab.", show_default=False
        ),
    ] = "\t",
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Print the records of a topic up to its end, or for as long as it runs (--follow)."""
    from penstock.cli.contact import Cluster
    from penstock.cli.reading import Reader
    from penstock.cli.writing import RecordWriter

    if group is not None and partitions:
        raise UsageError(
            "--partition and --group exclude each other.",
            "A group shares the partitions out among its members by itself.",
        )
    position = Position.parse(start) if start is not None else None
    writer = RecordWriter(shown=_fields(show), separator=separator, json=json)
    reader = Reader(
        Cluster.reach(bootstrap, client),
        topic,
        group=group,
        partitions=partitions or [],
        position=position,
        follow=follow,
    )
    try:
        with reader:
            for batch in reader.batches(max_records):
                writer.write(batch)
    except KeyboardInterrupt:
        if not follow:  # which has no other end
            raise


def _fields(text: str) -> list[Shown]:
    try:
        return [Shown(word.strip()) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--show {text!r} is not a list of record parts.",
            f"Choose from {', '.join(Shown)}, separated by commas.",
        ) from None
