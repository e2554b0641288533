"""What commands print: tables and colours for people, JSON for scripts.

Results go to stdout; questions, notes and progress to stderr, so that a pipe carries results alone.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.failure import CommandError

if TYPE_CHECKING:
    from rich import progress
    from rich.console import Console

_UNLIMITED_WIDTH: Final = 10_000  # a pipe has no width: cells are never cut or wrapped there

Cell = str | int | float | None


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr; colours only on a terminal (and `NO_COLOR` is honoured)."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr, highlight=False, width=None if stream.isatty() else _UNLIMITED_WIDTH
    )


def document(value: Any) -> None:
    """Print one JSON document: indented on a terminal, one line in a pipe."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def line(text: str) -> None:
    """Print one line of result."""
    print(text)


def note(text: str) -> None:
    """Tell the person something that is not part of the result."""
    console(stderr=True).print(text, style="dim", markup=False)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str = "",
    colours: Iterable[str] = (),
) -> None:
    """Print rows under column names. Columns of numbers are aligned right, None shows as `-`.

    `colours` are those of the rows, "" for one that has none.
    """
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        cells = [row[index] for row in body if row[index] is not None]
        numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        view.add_column(name.upper(), justify="right" if numeric else "left", no_wrap=numeric)
    every = itertools.chain(colours, itertools.repeat(""))
    for row, colour in zip(body, every, strict=False):
        view.add_row(*(Text(shown(cell), style=colour) for cell in row))
    out = console()
    if title:
        out.print(title, style="bold cyan", markup=False)
    out.print(view)


def shown(cell: Cell) -> str:
    """A cell as a person reads it: None as `-`, numbers plain, so that an offset can be copied."""
    if cell is None:
        return "-"
    if isinstance(cell, int):
        return str(cell)
    return f"{cell:.1f}" if isinstance(cell, float) else cell


def size(count: float) -> str:
    """Bytes with a unit: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if the person says so. Without a terminal to ask on, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            f"{question} Nobody can be asked: stdin is not a terminal.",
            "Pass --yes to go ahead without the question.",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError("Not confirmed; nothing was changed.")


class Progress:
    """A progress display on stderr, in a `with` block; call `update` with the amount done so far.

    Silent when stderr is no terminal, and for work that is done within half a second. `total` None:
    only the amount and the time are shown.
    """

    def __init__(self, description: str, total: float | None, *, unit_bytes: bool = False) -> None:
        self._description = description
        self._total = total
        self._unit_bytes = unit_bytes
        self._show_at_s = time.monotonic() + 0.5 if sys.stderr.isatty() else float("inf")
        self._display: progress.Progress | None = None
        self._task: progress.TaskID | None = None

    def __enter__(self) -> Progress:
        return self

    def update(self, done: float) -> None:
        if self._display is None and time.monotonic() >= self._show_at_s:
            self._start()
        if self._display is not None and self._task is not None:
            self._display.update(self._task, completed=done)

    def _start(self) -> None:
        from rich import progress

        amounts: list[progress.ProgressColumn] = (
            [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
            if self._unit_bytes
            else [progress.TextColumn("{task.completed:,.0f}")]
        )
        bars = [progress.BarColumn(), progress.TimeRemainingColumn()] if self._total else []
        self._display = progress.Progress(
            progress.TextColumn("{task.description}"),
            *bars,
            *amounts,
            progress.TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
            refresh_per_second=5,
        )
        self._task = self._display.add_task(self._description, total=self._total)
        self._display.start()

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()
