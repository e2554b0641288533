"""`penstock demo`: a broker, a shop's orders streaming through it, and two consumer groups."""

from __future__ import annotations

import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli import output
from penstock.cli.options import Json, examples

if TYPE_CHECKING:
    from penstock.cli.demoload import Load
    from penstock.cli.demoview import View

EPILOG: Final = examples(
    "penstock demo",
    "penstock demo --seconds 60 --rate 50000 : a minute of more",
    note="The broker is a temporary one on a free port; nothing of it is left afterwards.",
)
CATCH_UP_S_MAX: Final = 15.0
REFRESH_S: Final = 0.25


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="How long orders stream in.")
    ] = 20.0,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Orders per second.")] = 20_000,
    json: Json = False,
) -> None:
    """Watch a broker at work: orders stream in, two consumer groups follow, one joins late."""
    from penstock.cli.cluster import Cluster
    from penstock.cli.demoload import Load
    from penstock.cli.demoview import show_summary, view
    from penstock.cli.process import BrokerProcess

    scratch = tempfile.mkdtemp(prefix="penstock-demo-")
    broker = BrokerProcess(f"{scratch}/data", f"{scratch}/broker.log", {"log_level": "warning"})
    try:
        began_s = time.monotonic()
        broker.start()
        started_in_s = time.monotonic() - began_s
        load = Load(Cluster(broker.bootstrap), rate=rate, seconds=seconds)
        with load, view(load, quiet=json, broker=broker.bootstrap) as shown:
            _run(load, shown, seconds)
        summary = {"start_seconds": round(started_in_s, 3), **load.summary()}
    finally:
        broker.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    if json:
        output.document(summary)
    else:
        show_summary(summary)


def _run(load: Load, shown: View, seconds: float) -> None:
    """Stream for `seconds`, then wait until the groups have read everything."""
    began_s = time.monotonic()
    late_at_s = began_s + seconds / 3
    ends_at_s = began_s + seconds
    load.start()
    while True:
        tick_s = time.monotonic()
        if tick_s >= late_at_s:
            load.start_late_group()
        if tick_s >= ends_at_s:
            load.stop_producing()
        load.sample()
        shown.update(tick_s - began_s)
        if tick_s >= ends_at_s and (load.caught_up() or tick_s > ends_at_s + CATCH_UP_S_MAX):
            return
        time.sleep(max(0.0, tick_s + REFRESH_S - time.monotonic()))
