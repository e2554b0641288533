"""The results as a page: `RESULTS.md` beside `results.json` and the plot."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import plot
from bench.figures import Samples, bullets, how, median, number, spread_table
from bench.measures import MEASUREMENTS
from bench.metrics import KAFKA, LIMIT, METRICS, PENSTOCK, Metric
from bench.spark.report import SparkResults
from bench.spark.report import section as spark_section

_INTRODUCTION = """\
Written by `make bench` on {results.date} ({results.minutes:.0f} minutes, {results.rounds} rounds,
medians). Both brokers ran on this machine in the same run, in alternating order, on loopback,
with the same clients and the same client settings."""
_NOTES = """\
The ratio is Penstock ÷ Kafka. A row without a bar is for information. VmRSS counts the mapped
pages of files too, for both brokers; RssAnon does not. librdkafka puts no bound on the requests in
flight, so a broker that cannot answer one-message requests at the given rate builds up a queue,
and the queue is its latency; the Java client waits at five requests and sends larger batches
instead, and its rows (whole milliseconds, the client's own included) show the smaller
difference that is left then."""
_RULES = """\
Before every load the dirty pages of the earlier ones are written out, and the memory that it is
going to fill is touched once: on a virtual machine, memory that the host has to supply first
costs more than the broker. Every load has a fresh topic, which is deleted after it. After every
load the number of records that the broker holds, and the number that a consumer got, are compared
with what was sent; a difference stops the run."""

RAW, RAW_SPARK = "results.json", "spark.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One run, as kept in `results.json`."""

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


def rows_of(results: Results) -> list[Row]:
    return [
        Row(
            metric=metric,
            penstock=results.median(metric.key, PENSTOCK),
            baseline=results.median(metric.key, metric.baseline),
        )
        for metric in METRICS
        if metric.key in results.samples
    ]


def write(results: Results, directory: Path) -> Path:
    """Write the raw results, the plot and the page; the path of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RAW).write_text(json.dumps(asdict(results), indent=1) + "\n")
    return _write_page(directory)


def write_spark(results: SparkResults, directory: Path) -> Path:
    """Write the raw results of Spark's part and the page; the path of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RAW_SPARK).write_text(json.dumps(asdict(results), indent=1) + "\n")
    return _write_page(directory)


def _write_page(directory: Path) -> Path:
    """The page of all raw results that are there."""
    parts = []
    if (raw := directory / RAW).exists():
        results = Results.load(raw)
        rows = rows_of(results)
        drawn = plot.draw(rows, directory / "results.svg")
        parts.append(_page(results, rows, with_plot=drawn))
    if (raw := directory / RAW_SPARK).exists():
        parts.append(spark_section(SparkResults(**json.loads(raw.read_text()))) + "\n")
    page = directory / "RESULTS.md"
    page.write_text("\n".join(parts))
    return page


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


def _page(results: Results, rows: list[Row], *, with_plot: bool) -> str:
    judged = [row for row in rows if row.met is not None]
    met = sum(row.met is True for row in judged)
    parts = [
        "# Penstock and Apache Kafka under the same load",
        _INTRODUCTION.format(results=results),
        f"**{met} of {len(judged)} bars are met.**" if judged else "",
        bullets(results.machine | results.versions | results.options),
        _repeated(results),
        "![each measure against Kafka, with its bar](results.svg)" if with_plot else "",
        "## The bars",
        _bar_table(rows),
        _NOTES,
        _limit_text(results),
        "## How each figure was obtained",
        _RULES,
        how({name: MEASUREMENTS[name] for name in results.measurements}),
        "## Every value",
        spread_table(results.samples, "broker"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _repeated(results: Results) -> str:
    """Which measurements are not those of the run named above."""
    if not results.repeated:
        return ""
    return "Measured again since, on the same machine, and in the table below:\n\n" + bullets(
        results.repeated
    )


def _bar_table(rows: list[Row]) -> str:
    lines = ["| measure | unit | Penstock | Kafka | ratio | bar | met |"]
    lines.append("|---|---|--:|--:|--:|--:|---|")
    for row in rows:
        *cells, met = _cells(row)
        lines.append(f"| {' | '.join(cells)} | {'**no**' if met == 'no' else met} |")
    return "\n".join(lines)


def _limit_text(results: Results) -> str:
    """Produce and consume of 1 KiB messages as shares of what the machine can move at all."""
    lines = []
    for title, key, rate_key in (
        ("from a socket to a file", "in_mb_per_s", "produce_1KiB"),
        ("from a file to a socket", "out_mb_per_s", "consume_1KiB"),
    ):
        limit = results.median(key, LIMIT)
        if limit is None:
            continue
        shares = [
            f"{name} {rate * 1024 / 1e6 / limit:.0%}"
            for name in (PENSTOCK, KAFKA)
            if (rate := results.median(rate_key, name)) is not None
        ]
        cpu = results.median(key.replace("mb_per_s", "cpu_s_per_gb"), LIMIT)
        lines.append(
            f"- {title}: {number(limit)} MB/s with {number(cpu)} CPU-s/GB; of this, with 1 KiB "
            f"messages, {', '.join(shares) or 'nothing measured'}"
        )
    if not lines:
        return ""
    return "## The ratio to the physical limit\n\n" + "\n".join(lines)
