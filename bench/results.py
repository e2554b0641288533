"""What a run measured, against the bars: raw values, rows, and the tables that show them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.figures import Samples, bullets, median, number
from bench.metrics import PENSTOCK, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One run, as kept in a file of raw results."""

    date: str
    rounds: int
    minutes: float
    options: dict[str, str]
    machine: dict[str, str]
    versions: dict[str, str]
    # metric key -> broker or variant -> one value for each round
    samples: Samples
    # measurement -> when, and with which Penstock, it was run again since
    repeated: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Results":
        return cls(**json.loads(path.read_text()))

    @property
    def measurements(self) -> list[str]:
        return self.options["measurements"].split(", ")

    def with_repeated(self, later: "Results") -> "Results":
        """The same with the values of a later run in the place of those that it has, too."""
        when = f"{later.date}, {later.rounds} rounds, Penstock {later.versions['Penstock']}"
        return replace(
            self,
            samples={**self.samples, **later.samples},
            repeated={**self.repeated, **dict.fromkeys(later.measurements, when)},
        )

    def median(self, key: str, broker: str) -> float | None:
        return median(self.samples, key, broker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A metric with its medians; None where a broker did not take part."""

    metric: Metric
    penstock: float | None
    baseline: float | None

    @property
    def ratio(self) -> float | None:
        return self.penstock / self.baseline if self.penstock and self.baseline else None

    @property
    def met(self) -> bool | None:
        if self.penstock is None:
            return None
        return self.metric.met(self.penstock, self.baseline)


def rows_of(results: Results, metrics: Sequence[Metric]) -> list[Row]:
    """The metrics that were measured."""
    return [
        Row(
            metric=metric,
            penstock=results.median(metric.key, PENSTOCK),
            baseline=results.median(metric.key, metric.baseline),
        )
        for metric in metrics
        if metric.key in results.samples
    ]


def print_summary(console: Console, rows: list[Row]) -> None:
    """The same table on the terminal."""
    table = Table("measure", "unit", "Penstock", "Kafka", "ratio", "bar", "met")
    for row in rows:
        table.add_row(*_cells(row), style="red" if row.met is False else None)
    console.print(table)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.metric.title,
        row.metric.unit,
        number(row.penstock),
        number(row.baseline),
        f"{row.ratio:.2f}×" if row.ratio is not None else "–",
        row.metric.bar,
        {True: "yes", False: "no", None: ""}[row.met],
    )


def repeated_text(results: Results) -> str:
    """Which measurements are not those of the run named above."""
    if not results.repeated:
        return ""
    return "Measured again since, on the same machine, and in the table below:\n\n" + bullets(
        results.repeated
    )


def verdict(rows: list[Row]) -> str:
    """How many bars are met; nothing where there is none."""
    judged = [row for row in rows if row.met is not None]
    met = sum(row.met is True for row in judged)
    return f"**{met} of {len(judged)} bars are met.**" if judged else ""


def bar_table(rows: list[Row]) -> str:
    lines = ["| measure | unit | Penstock | Kafka | ratio | bar | met |"]
    lines.append("|---|---|--:|--:|--:|--:|---|")
    for row in rows:
        *cells, met = _cells(row)
        lines.append(f"| {' | '.join(cells)} | {'**no**' if met == 'no' else met} |")
    return "\n".join(lines)
