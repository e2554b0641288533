"""The end of the demo: the table, the books, and what to try next."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.demo import pipeline_path
from penstock.demo.names import PER_MINUTE, REJECTED

if TYPE_CHECKING:
    from penstock.demo.kept import Kept
    from penstock.demo.ledger import Ledger


def read_table(path: str) -> list[dict[str, Any]]:
    """The rows of a Parquet table, the newest minute first; none if there is no table."""
    import pyarrow.dataset

    if not os.path.isdir(path):
        return []
    table = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table()
    rows: list[dict[str, Any]] = table.sort_by(
        [("minute", "descending"), ("revenue", "descending")]
    ).to_pylist()
    return rows


def show_table(rows: list[dict[str, Any]], kept: Kept) -> None:
    """The rows of the newest minute that the shop was open for to its end."""
    from rich.table import Table

    minutes = sorted({row["minute"] for row in rows}, reverse=True)
    newest = [row for row in rows if row["minute"] in minutes[1:2] or len(minutes) == 1]
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in ("MINUTE", "COUNTRY", "ORDERS", "ITEMS", "REVENUE"):
        table.add_column(name, justify="left" if name in {"MINUTE", "COUNTRY"} else "right")
    for row in newest:
        table.add_row(
            f"{row['minute']:%H:%M}", row["country"], f"{row['orders']:,}", f"{row['items']:,}",
            f"{row['revenue']:,.2f}",
        )  # fmt: skip
    out = output.console()
    out.print(f"The table that Spark wrote: {kept.table}", style="bold cyan", markup=False)
    out.print(table)
    output.line(f"… and {len(rows) - len(newest):,} rows of {len(minutes) - 1:,} other minutes")


def show_ledger(ledger: Ledger) -> None:
    """Where every record went."""
    from rich.text import Text

    lines = {
        "sent by the shop, acknowledged": ledger.sent,
        "  counted in the table": ledger.in_table,
        "  duplicates, dropped": ledger.duplicates,
        f"  no orders, in topic {REJECTED}": ledger.rejected,
        "  too late, dropped": ledger.too_late,
        "  the record that closed the stream": ledger.closing,
        "accounted for": ledger.accounted,
    }
    width = max(map(len, lines))
    out = output.console()
    out.print("\nWhere every record went", style="bold cyan")
    for name, count in lines.items():
        bold = "" if name.startswith(" ") else "bold"
        out.print(Text(f"{name:<{width}}  {count:>12,}", bold))
    if ledger.is_balanced:
        out.print("✔ nothing lost, nothing counted twice", style="bold green")
    else:
        out.print(
            f"✘ the books do not balance: the topic holds {ledger.stored:,} records, "
            f"{ledger.unacknowledged:,} were not acknowledged",
            style="bold red",
        )


def show_next_steps(kept: Kept) -> None:
    """What a person can type now."""
    python, penstock = command_of(sys.executable), _penstock()
    steps = {
        "Query the table, with Spark or anything that reads Parquet:": [
            f'spark.read.parquet("{kept.table}").orderBy("minute").show()',
            f"{python} {kept.query}",
        ],
        "The broker's data is kept, too. Start it again, and in another terminal look at the topics and "
        "at the group in which Spark showed its lag:": [
            f"{penstock} serve --data-dir {kept.broker}",
            f"{penstock} consume {PER_MINUTE} --max 5",
            f"{penstock} consume {REJECTED} --max 5 --show headers,value",
            f"{penstock} group describe {PER_MINUTE}",
        ],
        "Read the Spark job, and make it your own:": [pipeline_path()],
        "Stream for longer, or more:": [f"{penstock} demo --seconds 120 --rate 30000"],
    }
    out = output.console()
    out.print("\nWhat to try next", style="bold cyan")
    for what, commands in steps.items():
        out.print(what)
        for command in commands:
            out.print(f"  {command}", style="bold", markup=False, soft_wrap=True)


def _penstock() -> str:
    """The command as it can be typed here."""
    if shutil.which("penstock"):
        return "penstock"
    beside = os.path.join(os.path.dirname(sys.executable), "penstock")
    return (
        command_of(beside)
        if os.path.exists(beside)
        else f"{command_of(sys.executable)} -m penstock"
    )


def command_of(path: str) -> str:
    """A path as one would type it: relative to here if it is below."""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here
