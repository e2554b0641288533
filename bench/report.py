"""The results as a page: `RESULTS.md` beside `results.json` and the plot."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import plot
from bench.cluster.report import section as cluster_section
from bench.figures import bullets, how, number, spread_table
from bench.measures import MEASUREMENTS
from bench.metrics import KAFKA, LIMIT, METRICS, PENSTOCK
from bench.results import Results, Row, bar_table, repeated_text, rows_of, verdict
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

RAW, RAW_CLUSTER, RAW_SPARK = "results.json", "cluster.json", "spark.json"


def write(results: Results, directory: Path) -> Path:
    """Write the raw results, the plot and the page; the path of the page."""
    return _write(asdict(results), directory, RAW)


def write_cluster(results: Results, directory: Path) -> Path:
    """Write the raw results of the part about three brokers and the page; the path of the page."""
    return _write(asdict(results), directory, RAW_CLUSTER)


def write_spark(results: SparkResults, directory: Path) -> Path:
    """Write the raw results of Spark's part and the page; the path of the page."""
    return _write(asdict(results), directory, RAW_SPARK)


def _write(raw: dict[str, Any], directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(json.dumps(raw, indent=1) + "\n")
    return _write_page(directory)


def _write_page(directory: Path) -> Path:
    """The page of all raw results that are there."""
    parts = []
    if (raw := directory / RAW).exists():
        results = Results.load(raw)
        rows = rows_of(results, METRICS)
        drawn = plot.draw(rows, directory / "results.svg")
        parts.append(_page(results, rows, with_plot=drawn))
    if (raw := directory / RAW_CLUSTER).exists():
        parts.append(cluster_section(Results.load(raw)) + "\n")
    if (raw := directory / RAW_SPARK).exists():
        parts.append(spark_section(SparkResults(**json.loads(raw.read_text()))) + "\n")
    page = directory / "RESULTS.md"
    page.write_text("\n".join(parts))
    return page


def _page(results: Results, rows: list[Row], *, with_plot: bool) -> str:
    parts = [
        "# Penstock and Apache Kafka under the same load",
        _INTRODUCTION.format(results=results),
        verdict(rows),
        bullets(results.machine | results.versions | results.options),
        repeated_text(results),
        "![each measure against Kafka, with its bar](results.svg)" if with_plot else "",
        "## The bars",
        bar_table(rows),
        _NOTES,
        _limit_text(results),
        "## How each figure was obtained",
        _RULES,
        how({name: MEASUREMENTS[name] for name in results.measurements}),
        "## Every value",
        spread_table(results.samples, "broker"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
