"""The plot: how far Penstock is ahead of Kafka in each measure, and where its bar stands."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.metrics import Better

if TYPE_CHECKING:
    from bench.results import Row

_MET, _MISSED = "#2a7f62", "#c0492f"


def draw(rows: list["Row"], path: Path) -> bool:
    """Draw every row that has a bar; whether there was one."""
    relative = [row for row in rows if row.metric.ratio is not None and row.met is not None]
    absolute = [row for row in rows if row.metric.limit is not None and row.met is not None]
    panels = [panel for panel in (relative, absolute) if panel]
    if not panels:
        return False
    # The same figures make the same file.
    with (
        mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench"}),
        mpl.rc_context({"font.size": 10, "font.family": "sans-serif"}),
    ):
        height = 0.34 * sum(map(len, panels)) + 1.8 * len(panels)
        figure = Figure(figsize=(11, height), layout="constrained")
        axes = figure.subplots(
            len(panels), height_ratios=[len(panel) + 1 for panel in panels], squeeze=False
        )
        for panel, axis in zip(panels, axes[:, 0], strict=True):
            if panel is relative:
                _draw_relative(axis, panel)
            else:
                _draw_absolute(axis, panel)
        figure.savefig(path, metadata={"Date": None})
    return True


def _advantage(figure: float, better: Better) -> float:
    """Above 1 is better, whichever way the measure goes."""
    return figure if better is Better.HIGHER else 1 / figure


def _draw_relative(axis: Any, rows: list["Row"]) -> None:
    values, bars, labels = [], [], []
    for row in rows:
        assert row.ratio is not None
        assert row.metric.ratio is not None
        values.append(_advantage(row.ratio, row.metric.better))
        bars.append(_advantage(row.metric.ratio, row.metric.better))
        labels.append(f"{row.ratio:.2f}×  (bar {row.metric.bar})")
    _draw(axis, rows, values, bars, labels)
    axis.set_title("times better than Apache Kafka  (black mark: the bar)", loc="left")


def _draw_absolute(axis: Any, rows: list["Row"]) -> None:
    values, labels = [], []
    for row in rows:
        assert row.penstock is not None
        assert row.metric.limit is not None
        values.append(_advantage(max(row.penstock, 1e-3) / row.metric.limit, row.metric.better))
        labels.append(f"{row.penstock:.3g} {row.metric.unit}  (bar {row.metric.bar})")
    _draw(axis, rows, values, [1.0] * len(rows), labels)
    axis.set_title("times better than a fixed bar", loc="left")


def _draw(
    axis: Any, rows: list["Row"], values: list[float], bars: list[float], labels: list[str]
) -> None:
    places = range(len(rows))
    colours = [_MET if row.met else _MISSED for row in rows]
    # Bars start at 1, where both brokers are equal, and grow to the side that is ahead.
    axis.barh(places, [value - 1 for value in values], left=1, color=colours, height=0.6)
    for place, value, bar, label, colour in zip(places, values, bars, labels, colours, strict=True):
        axis.plot([bar, bar], [place - 0.42, place + 0.42], color="black", linewidth=2.5)
        axis.annotate(
            label,
            (max(value, bar, 1), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color="black" if colour == _MET else _MISSED,
        )
    axis.axvline(1, color="grey", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(min(0.5, *values) / 1.2, max(2, *values, *bars) * 6)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axis.set_yticks(places, [row.metric.title for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.spines[["top", "right"]].set_visible(False)
