"""The display of the demo: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import itertools
import signal
import statistics
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

from penstock.cli import output
from penstock.demo.names import ORDERS, PER_MINUTE, REJECTED

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType
    from rich.live import Live
    from rich.table import Table

    from penstock.demo.watch import Watch

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARKS: Final = 28  # all fits 80 columns
_WIDTH_MAX: Final = 92
_LINES_AROUND: Final = 16  # of the panel, without the countries
_LINE_EVERY_S: Final = 2.0


class View(Protocol):
    def update(self, seconds: float, streamed: float | None, phase: str) -> None:
        """Show where the demo is, `seconds` after its start; `streamed` is the part done, if known."""


def view(watch: Watch, *, quiet: bool, broker: str) -> AbstractContextManager[View]:
    """The display that fits where stdout goes; `quiet` shows nothing."""
    if quiet:
        return _Quiet()
    return _Live(watch, broker) if sys.stdout.isatty() else _Lines(watch, broker)


class _Quiet:
    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, seconds: float, streamed: float | None, phase: str) -> None:
        pass


class _Lines:
    """A line at each new phase and every two seconds."""

    def __init__(self, watch: Watch, broker: str) -> None:
        self._watch = watch
        self._broker = broker
        self._phase = ""
        self._due_s = 0.0

    def __enter__(self) -> View:
        _say(f"A broker runs at {self._broker}. Orders stream in; Spark reads them.")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, seconds: float, streamed: float | None, phase: str) -> None:  # noqa: ARG002
        if phase == self._phase and seconds < self._due_s:
            return
        if phase != self._phase:
            _say(f"{seconds:4.0f} s  {phase}")
        self._phase = phase
        self._due_s = seconds + _LINE_EVERY_S
        watch = self._watch
        query = watch.job.queries[PER_MINUTE]
        _say(
            f"{seconds:4.0f} s  in {watch.incoming.now:,.0f}/s  out {watch.outgoing.now:,.0f}/s  "
            f"lag {watch.lag:,}  batch {_last_ms(query.milliseconds)}  clean {query.clean:,}  "
            f"duplicates {query.duplicates:,}  rejected {watch.records[REJECTED]:,}  "
            f"too late {query.too_late:,}"
        )


class _Live:
    """A panel that redraws itself."""

    def __init__(self, watch: Watch, broker: str) -> None:
        self._watch = watch
        self._broker = broker
        self._live: Live | None = None

    def __enter__(self) -> View:
        from rich.live import Live

        self._live = Live(console=output.console(), auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, seconds: float, streamed: float | None, phase: str) -> None:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar

        assert self._live is not None
        if not sys.stdout.isatty():  # the window was closed, and make keeps its SIGHUP for itself
            sys.exit(128 + signal.SIGHUP)
        bar = ProgressBar(
            total=1.0, completed=streamed or 0.0, pulse=streamed is None, animation_time=seconds
        )
        console = self._live.console
        panel = Panel(
            Group(
                _way(), "", self._figures(), "", self._counts(), "",
                self._countries(max(2, console.height - _LINES_AROUND)), "", bar,
            ),
            title=f"[bold]penstock demo[/]  kafka at {self._broker}",
            subtitle=f"{phase}, {seconds:.0f} s",
            width=min(_WIDTH_MAX, console.width),
        )  # fmt: skip
        self._live.update(panel, refresh=True)

    def _figures(self) -> RenderableType:
        watch = self._watch
        times = watch.job.queries[PER_MINUTE].milliseconds
        median = f"median {statistics.median(times):,.0f} ms" if times else ""
        table = _grid("left", "right", "left", "left", "left")
        rows = (
            ("in", f"{watch.incoming.now:,.0f}", "orders/s", watch.incoming.past, "green", ""),
            ("out", f"{watch.outgoing.now:,.0f}", "orders/s", watch.outgoing.past, "cyan", ""),
            ("lag", f"{watch.lag:,}", "orders", watch.lags, "yellow", f"most {watch.lag_max:,}"),
            ("batch", f"{times[-1]:,}" if times else "-", "ms", times, "magenta", median),
        )
        for name, number, unit, past, style, note in rows:
            table.add_row(
                _text(name, "dim"), _text(number, f"bold {style}"), _text(unit, "dim"),
                _text(_sparkline(past), style), _text(note, "dim"),
            )  # fmt: skip
        return table

    def _counts(self) -> RenderableType:
        watch = self._watch
        query = watch.job.queries[PER_MINUTE]
        table = _grid("right", "right", "right", "right", "right", "right", header=True)
        counts = {
            "SENT": watch.records[ORDERS],
            "READ BY SPARK": query.rows,
            "CLEAN": query.clean,
            "DUPLICATE": query.duplicates,
            "REJECTED": watch.records[REJECTED],
            "TOO LATE": query.too_late,
        }
        for column, name in zip(table.columns, counts, strict=True):
            column.header = name
        table.add_row(*(f"{count:,}" for count in counts.values()))
        return table

    def _countries(self, count_max: int) -> RenderableType:
        rows = sorted(self._watch.latest.values(), key=lambda row: -float(row["revenue"]))
        if not rows:
            return _text(
                "The first minutes are summed up when no order can be late for them.", "dim"
            )
        table = _grid("left", "left", "right", "right", "left", header=True)
        names = ("COUNTRY", "MINUTE", "ORDERS", "REVENUE", "")
        for column, name in zip(table.columns, names, strict=True):
            column.header = name
        most = float(rows[0]["revenue"]) or 1.0
        for row in rows[:count_max]:
            width = round(float(row["revenue"]) / most * 24)
            revenue = f"{float(row['revenue']):,.2f}"
            table.add_row(
                row["country"], row["minute"][11:16], f"{row['orders']:,}", revenue,
                _text("█" * width or "▏", "blue"),
            )  # fmt: skip
        return table


def _say(text: str) -> None:
    output.line(text)
    sys.stdout.flush()


def _way() -> RenderableType:
    from rich.text import Text

    return Text.assemble(
        ("shop ", "green"), "─▶ ", (f"{ORDERS} ", "bold"), "─▶ ", ("Spark ", "cyan"), "─▶ ",
        ("table", "bold"), ", ", (PER_MINUTE, "bold"), ", ", (REJECTED, "bold"),
    )  # fmt: skip


def _grid(*justify: JustifyMethod, header: bool = False) -> Table:
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=header, header_style="bold"
    )
    for side in justify:
        table.add_column(justify=side, no_wrap=True)
    return table


def _text(text: str, style: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style)


def _last_ms(times: Iterable[int]) -> str:
    last = list(times)[-1:]
    return f"{last[0]:,} ms" if last else "-"


def _sparkline(values: Iterable[float]) -> str:
    """All that happened so far, in at most so many bars."""
    everything = list(values)
    width = min(_SPARKS, len(everything))
    edges = [index * len(everything) // width for index in range(width + 1)] if width else [0]
    shown = [max(everything[start:end]) for start, end in itertools.pairwise(edges)]
    top = max(shown, default=0.0) or 1.0
    return "".join(_BARS[min(7, int(value / top * 7.99))] for value in shown)
