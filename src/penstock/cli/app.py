"""All commands, put together. `penstock.cli.main` runs them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from penstock import __version__
from penstock.cli import cluster, consume, demo, group, log, produce, serve, topic
from penstock.cli.longhelp import LongHelpCommand
from penstock.cli.options import examples

_EPILOG: Final = examples(
    "penstock serve : a broker, here, with its data in ./data",
    "penstock topic create orders",
    "echo hello | penstock produce orders",
    "penstock consume orders --follow",
    "penstock demo : all of it at once, in about a minute",
    note="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.",
)

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A durable streaming log that speaks the Kafka wire protocol."""


app.command("serve", epilog=serve.EPILOG, cls=LongHelpCommand)(serve.command())
app.command("demo", epilog=demo.EPILOG)(demo.demo)
app.command("produce", epilog=produce.EPILOG)(produce.produce)
app.command("consume", epilog=consume.EPILOG)(consume.consume)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(log.app, name="log")
app.add_typer(cluster.app, name="cluster")
