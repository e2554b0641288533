"""The Spark part of the page `RESULTS.md`, and its raw results `spark.json`."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.figures import Samples, bullets, how, median, number, spread_table
from bench.spark.cases import CEILING, CONNECTOR, CONNECTOR_KAFKA, OURS, OURS_SENT, Runner

_READS = (CONNECTOR, CONNECTOR_KAFKA)
# case: (title, bar, what it is against: the faster of these)
CASES = {
    "scan": ("batch scan, all columns counted", 3.0, _READS),
    "parquet": ("topic to Parquet", 1.6, _READS),
    "stream": ("streaming, sustained", 2.0, _READS),
    "sink": ("sink", 1.5, (CONNECTOR,)),
}
CEILING_CASES = ("scan", "parquet")
COLUMNS = (
    "rows/s",
    "Penstock's source",
    "records sent",
    "connector, from Penstock",
    "connector, from Kafka",
    "ratio",
    "bar",
    "met",
)
_READ_CASES = ("scan", "parquet", "stream")
SIZES = {"100B": "100 B", "1KiB": "1 KiB"}

_INTRODUCTION = """\
Written by `make bench-spark` on {date} ({minutes:.0f} minutes, {rounds} rounds, medians): our data
source against Spark's own connector `spark-sql-kafka-0-10`, which reads from Penstock and from
Apache Kafka. One session, `local[2]`, on the machine that also runs the broker; every way takes its
turn in every round, after one unrecorded turn over a topic of 3 M records. Topics have 4 partitions. The
session has `spark.python.unix.domain.socket.enabled=true`, as docs/SPARK.md recommends; the connector has
no Python workers and is not concerned. Our source reads records from the broker's files, as it does
wherever the broker is on the same machine; beside it stands what it comes to if they are sent
(`readFiles=false`), as from every other broker.
The bar of a read is on the ratio to the faster of the connector's two rates; that of the sink, on the ratio
to the connector that writes to the same broker: Penstock syncs to disk before it acknowledges, Kafka does
not unless it is told to."""

_CEILING = """\
What bounds a source in Python: one that has neither broker nor network, and only sends the same Arrow
batch to Spark again and again, in the same rounds. Beside it, the rate that the bar asks for. What is
well above the ceiling cannot be reached by any source that Spark runs in Python.

| rows/s | ceiling | Penstock's source | of the ceiling | the bar |
|---|--:|--:|--:|--:|
{lines}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkResults:
    """One run, as kept in `spark.json`."""

    date: str
    rounds: int
    minutes: float
    facts: dict[str, str]
    # case and size -> variant -> rows per second, one value for each round
    samples: Samples

    def median(self, key: str, variant: str) -> float | None:
        return median(self.samples, key, variant)

    def fastest(self, key: str, variants: Iterable[str]) -> float | None:
        rates = [rate for variant in variants if (rate := self.median(key, variant))]
        return max(rates, default=None)


def is_measured(case: str, variant: str) -> bool:
    """Whether a case can be done in that way, and is told."""
    if variant == CEILING:
        return case in CEILING_CASES
    return variant != OURS_SENT or case in _READ_CASES


def section(results: SparkResults) -> str:
    """The part of the page, from its heading on."""
    return "\n\n".join(
        [
            "# Spark over Penstock and over Kafka",
            _INTRODUCTION.format(date=results.date, minutes=results.minutes, rounds=results.rounds),
            bullets(results.facts),
            _table(results),
            _ceilings(results),
            how({case: getattr(Runner, case) for case in CASES}),
            spread_table(results.samples, "source"),
        ]
    )


def rows(results: SparkResults) -> list[tuple[str, ...]]:
    """One row for each case and size, with these `COLUMNS`."""
    found = []
    for case, (title, bar, against) in CASES.items():
        for size, words in SIZES.items():
            key = f"{case}_{size}"
            rates = [results.median(key, variant) for variant in (OURS, OURS_SENT, *_READS)]
            ours = rates[0]
            theirs = results.fastest(key, against)
            ratio = ours / theirs if ours and theirs else None
            met = "" if ratio is None else "yes" if ratio >= bar else "**no**"
            shown = f"{ratio:.2f}×" if ratio else "–"
            if any(rates):
                found.append((f"{title}, {words}", *map(number, rates), shown, f"≥ {bar:g}×", met))
    return found


def _table(results: SparkResults) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|--:|--:|--:|--:|--:|--:|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(results)]
    return "\n".join(lines)


def _ceilings(results: SparkResults) -> str:
    lines = []
    for case in CEILING_CASES:
        title, bar, against = CASES[case]
        for size, words in SIZES.items():
            key = f"{case}_{size}"
            ours, ceiling = results.median(key, OURS), results.median(key, CEILING)
            theirs = results.fastest(key, against)
            if ours and ceiling and theirs:
                cells = (number(ceiling), number(ours), f"{ours / ceiling:.0%}")
                lines.append(f"| {title}, {words} | {' | '.join(cells)} | {number(bar * theirs)} |")
    return _CEILING.format(lines="\n".join(lines))
