"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.values import text

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="PENSTOCK_BOOTSTRAP",
        help="Brokers to ask first, as host:port[,host:port…].",
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

ClientProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--client",
        "-X",
        metavar="KEY=VALUE",
        help="Any librdkafka client property, for example security.protocol=SSL. May be repeated.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def is_text(names: str | list[str] | None) -> str | list[str] | None:
    """The callback of options and arguments that are names."""
    for name in [names] if isinstance(names, str) else names or ():
        text(name)
    return names


def examples(*lines: str, note: str = "") -> str:
    """The end of a command's help: what to type, one example a line, each with what it does.

    `"penstock topic list : every topic"` shows the command in bold and the rest beside it.
    """
    shown = []
    for line in lines:
        command, _, what = line.partition(" : ")
        shown.append(f"  [bold cyan]{command}[/]" + (f"  [dim]{what}[/]" if what else ""))
    return "\n".join(["[bold]Examples[/]", *shown, *(["", note] if note else [])])
