"""The display of `penstock demo`: live on a terminal, a line a second elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.cli import output
from penstock.cli.demoload import LATE_GROUP, TOPICS, percentiles

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from penstock.cli.demoload import Load

_BARS: Final = "▁▂▃▄▅▆▇█"
_LAG_WIDTH: Final = 28


class View(Protocol):
    def update(self, seconds: float) -> None:
        """Show where the load is, `seconds` after its start."""


def view(load: Load, *, quiet: bool, broker: str) -> AbstractContextManager[View]:
    """The display that fits where stdout goes; `quiet` shows nothing."""
    if quiet:
        return _Quiet()
    if sys.stdout.isatty():
        return _Live(load, broker)
    return _Lines(load, broker)


class _Quiet:
    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, seconds: float) -> None:
        pass


class _Lines:
    """One line a second."""

    def __init__(self, load: Load, broker: str) -> None:
        self._load = load
        self._broker = broker
        self._shown_s = -1

    def __enter__(self) -> View:
        print(f"A broker runs at {self._broker}; orders stream in for {self._load.seconds:.0f} s.")
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def update(self, seconds: float) -> None:
        load = self._load
        rate_in = load.produced.rate()
        rate_out = sum(group.flow.rate() for group in load.groups.values())
        if int(seconds) == self._shown_s:
            return
        self._shown_s = int(seconds)
        lags = ", ".join(
            f"{name} {group.lag:,}" for name, group in load.groups.items() if group.members
        )
        ack = percentiles(load.ack_ms)
        print(
            f"{self._shown_s:3d} s  in {rate_in:8,.0f}/s  out {rate_out:8,.0f}/s  "
            f"acknowledged in {_ms(ack['p50'])} (p99 {_ms(ack['p99'])})  records behind: {lags}",
            flush=True,
        )


class _Live:
    """Tables that redraw themselves."""

    def __init__(self, load: Load, broker: str) -> None:
        self._load = load
        self._broker = broker
        self._history: deque[float] = deque(maxlen=40)
        self._live: Live | None = None

    def __enter__(self) -> View:
        from rich.live import Live

        self._live = Live(console=output.console(), auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, seconds: float) -> None:
        assert self._live is not None
        self._live.update(self._render(seconds), refresh=True)

    def _render(self, seconds: float) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        load = self._load
        rate = load.produced.rate()
        self._history.append(rate)
        ack, end_to_end = percentiles(load.ack_ms), percentiles(load.end_to_end_ms)
        lines = Text.assemble(
            ("in  ", "dim"), (f"{rate:>9,.0f} records/s  ", "bold green"),
            (_sparkline(self._history), "green"), "\n",
            ("acknowledged in ", "dim"), (_ms(ack["p50"]), "bold"), f" (p99 {_ms(ack['p99'])})   ",
            ("read after ", "dim"), (_ms(end_to_end["p50"]), "bold"),
            f" (p99 {_ms(end_to_end['p99'])})",
        )  # fmt: skip
        phase = "streaming" if seconds < load.seconds else "waiting for the groups to catch up"
        return Panel(
            Group(
                lines,
                "",
                self._topics(),
                "",
                self._groups(),
                "",
                ProgressBar(total=load.seconds, completed=min(seconds, load.seconds)),
            ),
            title=f"[bold]penstock demo[/]  kafka at {self._broker}",
            subtitle=f"{phase}, {seconds:.0f} s",
            width=min(100, output.console().width),
        )

    def _topics(self) -> RenderableType:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for name in ("TOPIC", "PARTITIONS", "RECORDS"):
            table.add_column(name, justify="left" if name == "TOPIC" else "right")
        for topic, partitions in TOPICS.items():
            table.add_row(topic, str(partitions), f"{self._load.topics[topic]:,}")
        return table

    def _groups(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for name in ("GROUP", "MEMBERS", "READS/S", "BEHIND", ""):
            table.add_column(name, justify="left" if name in {"GROUP", ""} else "right")
        widest = max(group.lag_max for group in self._load.groups.values()) or 1
        for name, group in self._load.groups.items():
            if group.members == 0:
                table.add_row(name, "-", "-", "-", Text("joins later", "dim"))
                continue
            width = round(group.lag / widest * _LAG_WIDTH)
            style = "yellow" if width > 2 else "green"
            table.add_row(
                name,
                str(group.members),
                f"{group.flow.rate():,.0f}",
                f"{group.lag:,}",
                Text("█" * width or "▏", style),
            )
        return table


def show_summary(summary: dict[str, Any]) -> None:
    """The end of the demo: what happened, and what to try next."""
    seconds, produced = summary["seconds"], summary["produced"]
    rows: list[list[output.Cell]] = [
        ["broker ready after", f"{summary['start_seconds']:.2f} s"],
        ["records written", f"{produced:,} ({output.size(summary['produced_bytes'])})"],
        ["throughput in", f"{produced / seconds:,.0f} records/s"],
        ["not acknowledged", f"{summary['failed']:,}"],
        ["acknowledged in", _pair(summary["ack_ms"])],
        ["read after", _pair(summary["end_to_end_ms"])],
    ]
    for name, group in summary["groups"].items():
        what = "everything, joined late" if name == LATE_GROUP else "orders only"
        behind = f"at most {group['lag_max']:,} behind, {group['lag']:,} at the end"
        rows.append([f"group {name} ({what})", f"read {group['read']:,}; {behind}"])
    output.table(["what", "how much"], rows, title="The demo in numbers")
    output.line(
        "\nThe broker is gone, and its data with it. Try next:\n"
        "  penstock serve                                      a broker that stays, on 127.0.0.1:9092\n"
        "  penstock topic create orders --partitions 6\n"
        "  echo '{\"order\": 1}' | penstock produce orders\n"
        "  penstock consume orders --follow\n"
        "  penstock --help                                     everything else"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _pair(values: dict[str, float | None]) -> str:
    return f"{_ms(values['p50'])} (p99 {_ms(values['p99'])})"


def _sparkline(values: deque[float]) -> str:
    top = max(values, default=0.0) or 1.0
    return "".join(_BARS[min(7, int(value / top * 7.99))] for value in values)
