"""`python -m bench`: run the measurements and write the results."""

import argparse
import signal
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import BenchError, jars, machine, report
from bench.brokers import BROKERS
from bench.measures import MEASUREMENTS
from bench.session import Options, Session

_RUNS = jars.BENCH / ".runs"
_FULL_ROUNDS, _QUICK_ROUNDS, _QUICK_SCALE = 5, 1, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the command line asks for, with every default filled in."""

    measurements: tuple[str, ...]
    options: Options
    out: Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of two to three minutes")
    parser.add_argument("--only", action="append", metavar="NAME", choices=list(MEASUREMENTS))
    parser.add_argument("--list", action="store_true", help="name the measurements and stop")
    parser.add_argument("--brokers", nargs="+", choices=list(BROKERS), default=list(BROKERS))
    parser.add_argument("--rounds", type=int, help=f"default {_FULL_ROUNDS}")
    parser.add_argument("--recovery-gib", type=float, help="log size for recovery, default 10")
    parser.add_argument("--out", type=Path, help="where the results go; see bench/README.md")
    parser.add_argument("--work-dir", type=Path, default=_RUNS, help="where the brokers write")
    parser.add_argument("--render", type=Path, metavar="JSON", help="write a page from old results")
    parser.add_argument(
        "--repeat",
        type=Path,
        metavar="JSON",
        help="take the measurements of a later run, with --only, into the committed results",
    )
    return parser


def _plan(arguments: argparse.Namespace) -> Plan:
    """Only a full run of everything may replace the committed results."""
    full = not arguments.quick and not arguments.only and set(arguments.brokers) == set(BROKERS)
    scale = _QUICK_SCALE if arguments.quick else 1
    gib = arguments.recovery_gib or 10 / scale
    arguments.work_dir.mkdir(parents=True, exist_ok=True)
    return Plan(
        measurements=tuple(name for name in MEASUREMENTS if name in (arguments.only or [name])),
        out=arguments.out or (jars.BENCH if full else _RUNS / "last"),
        options=Options(
            brokers=tuple(arguments.brokers),
            rounds=arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _FULL_ROUNDS),
            scale=scale,
            recovery_bytes=int(gib * 2**30),
            work_dir=Path(tempfile.mkdtemp(prefix="run-", dir=arguments.work_dir)),
        ),
    )


def _run(plan: Plan, console: Console) -> report.Results:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    start = time.monotonic()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        session = Session(options=plan.options, progress=progress)
        try:
            for name in plan.measurements:
                MEASUREMENTS[name](session)
            facts = machine.describe_machine(plan.options.work_dir)
        finally:
            session.close()
    return report.Results(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=plan.options.rounds,
        minutes=(time.monotonic() - start) / 60,
        options={
            "measurements": ", ".join(plan.measurements),
            "share of a full run's messages": f"1/{plan.options.scale}",
            "log for the recovery": f"{plan.options.recovery_bytes / 2**30:g} GiB",
        },
        machine=facts,
        versions=machine.describe_versions(),
        samples={key: dict(values) for key, values in session.samples.items()},
    )


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit("terminated")


def main() -> None:
    arguments = _parser().parse_args()
    console = Console()
    if arguments.list:
        console.print("\n".join(MEASUREMENTS))
        return
    if arguments.render:
        results = report.Results.load(arguments.render)
        console.print(report.write(results, arguments.out or arguments.render.parent))
        return
    if arguments.repeat:
        committed = report.Results.load(jars.BENCH / report.RAW)
        later = report.Results.load(arguments.repeat)
        console.print(report.write(committed.with_repeated(later), jars.BENCH))
        return
    # So that a terminated run stops and removes its brokers like a finished one.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if "kafka" in arguments.brokers:
            console.print(f"Apache Kafka {jars.kafka_version()}: jars by Maven, once")
            jars.classpath()
        plan = _plan(arguments)
        results = _run(plan, console)
    except BenchError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    page = report.write(results, plan.out)
    report.print_summary(console, report.rows_of(results))
    console.print(f"written to {page}")


if __name__ == "__main__":
    main()
