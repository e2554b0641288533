"""`python -m bench.spark`: run the Spark benchmark and write its part of the results."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import BenchError, machine, processes, report
from bench.brokers import BROKERS, Broker
from bench.jars import BENCH
from bench.run import end_on_sigterm, progress_on
from bench.spark import jars
from bench.spark.cases import (
    CEILING,
    CONNECTOR,
    CONNECTOR_KAFKA,
    OURS,
    OURS_SENT,
    PARTITIONS,
    Workload,
)
from bench.spark.report import CASES, COLUMNS, SparkResults, is_measured, rows

_RUNS = BENCH / ".runs"
_WARM_UP = Workload(topic="warm-up", records=3_000_000, size=100)
_WORKLOADS = (
    Workload(topic="100B", records=20_000_000, size=100),
    Workload(topic="1KiB", records=2_000_000, size=1024),
)
_QUICK_SCALE = 20
VARIANTS = (OURS, OURS_SENT, CONNECTOR, CONNECTOR_KAFKA, CEILING)


class SparkFailedError(BenchError):
    """The Spark driver ended with an error; carries the end of its log."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run, a twentieth of the load")
    parser.add_argument("--only", action="append", metavar="CASE", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def _load(broker: Broker, load: Workload) -> None:
    """Fill a topic by librdkafka, which is quicker at it than Spark."""
    with broker.connect() as connection:
        connection.create_topic(load.topic, partitions=PARTITIONS)
    done = processes.run(
        [
            *(sys.executable, "-m", "bench.rdkafka", "produce", "--topic", load.topic),
            *("--bootstrap", f"127.0.0.1:{broker.port}", "--size", str(load.size)),
            *("--messages", str(load.records), "--partitions", str(PARTITIONS)),
        ],
        timeout_s=600,
    )
    if done.returncode:
        raise SparkFailedError(f"the topic could not be filled: {done.stderr[-2000:]}")


def _plan(arguments: argparse.Namespace, brokers: dict[str, Broker], directory: Path) -> Path:
    variants = arguments.variants or [*VARIANTS]
    of = dict.fromkeys((OURS, OURS_SENT, CONNECTOR), "penstock") | {CONNECTOR_KAFKA: "kafka"}
    conf = {
        "spark.jars": ",".join(jars.connector()),
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # As docs/SPARK.md recommends. It concerns Python workers alone, so not the connector.
        "spark.python.unix.domain.socket.enabled": "true",
        **dict(item.split("=", 1) for item in arguments.conf),
    }
    plan = {
        "conf": conf,
        "directory": str(directory),
        "bootstraps": {
            variant: f"127.0.0.1:{brokers[of[variant]].port}"
            for variant in variants
            if variant in of
        },
        "data": {
            variant: str(brokers[of[variant]].data_dir) for variant in variants if variant in of
        },
        "turns": {
            case: [variant for variant in variants if is_measured(case, variant)]
            for case in CASES
            if case in (arguments.only or [case])
        },
        "rounds": arguments.rounds,
        "warm_up": asdict(_warm_up(arguments)),
        "workloads": [asdict(load) for load in _workloads(arguments)],
    }
    path = directory / "plan.json"
    path.write_text(json.dumps(plan))
    return path


def _workloads(arguments: argparse.Namespace) -> list[Workload]:
    return [_scaled(load, arguments) for load in _WORKLOADS]


def _warm_up(arguments: argparse.Namespace) -> Workload:
    """Enough for the JVM to compile what the recorded turns will run."""
    return _scaled(_WARM_UP, arguments)


def _scaled(load: Workload, arguments: argparse.Namespace) -> Workload:
    scale = _QUICK_SCALE if arguments.quick else 1
    return Workload(topic=load.topic, records=load.records // scale, size=load.size)


def _drive(plan: Path, console: Console) -> dict[str, dict[str, list[float]]]:
    """Run the driver; its figures as they come."""
    wanted = json.loads(plan.read_text())
    turns = sum(map(len, wanted["turns"].values()))
    total = turns * len(wanted["workloads"]) * wanted["rounds"]
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    log = plan.with_name("driver.log")
    with progress_on(console) as progress, log.open("w") as out:
        task = progress.add_task("warming up", total=total)
        command = processes.guarded([sys.executable, "-m", "bench.spark.driver", str(plan)])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True) as driver:
            assert driver.stdout is not None
            for line in driver.stdout:
                figure = json.loads(line)
                samples[figure["key"]][figure["variant"]].append(figure["rate"])
                progress.update(task, advance=1, description=figure["key"])
                shown = f"{figure['key']}, {figure['variant']}: {figure['rate']:,.0f} rows/s"
                progress.console.print(shown)
    if driver.returncode:
        raise SparkFailedError(log.read_text()[-3000:])
    return {key: dict(values) for key, values in samples.items()}


def _run(arguments: argparse.Namespace, console: Console) -> SparkResults:
    began = time.monotonic()
    _RUNS.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="spark-", dir=_RUNS))
    brokers: dict[str, Broker] = {}
    try:
        for name in ("penstock", "kafka"):
            if name == "kafka" and CONNECTOR_KAFKA not in (arguments.variants or [CONNECTOR_KAFKA]):
                continue
            brokers[name] = BROKERS[name](directory / name)
            brokers[name].start()
            brokers[name].wait_ready()
            for load in (_warm_up(arguments), *_workloads(arguments)):
                console.print(f"{load.records:,} records of {load.size} B to {name}")
                _load(brokers[name], load)
        processes.settle()
        samples = _drive(_plan(arguments, brokers, directory), console)
        facts = machine.describe_machine(directory)
    finally:
        for broker in brokers.values():
            broker.remove()
        shutil.rmtree(directory, ignore_errors=True)
    facts |= machine.describe_versions() | {"PySpark and its connector": jars.spark_version()}
    facts |= {
        "records": ", ".join(f"{one.records:,} of {one.size} B" for one in _workloads(arguments)),
        "before every turn": "dirty pages are written out; what is going to be read is brought into the page "
        "cache; what is going to be written has its memory touched, as for the brokers",
    }
    return SparkResults(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=arguments.rounds,
        minutes=(time.monotonic() - began) / 60,
        facts=facts,
        samples=samples,
    )


def main() -> None:
    arguments = _arguments()
    console = Console()
    end_on_sigterm()
    try:
        results = _run(arguments, console)
    except BenchError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    is_full = not (arguments.quick or arguments.only or arguments.variants or arguments.conf)
    page = report.write_spark(results, BENCH if is_full else _RUNS / "last")
    table = Table(*COLUMNS)
    for row in rows(results):
        table.add_row(*row)
    console.print(table)
    console.print(f"written to {page}")


if __name__ == "__main__":
    main()
