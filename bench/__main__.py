"""`python -m bench`: run the measurements and write the results."""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench import BenchError, jars, report
from bench.brokers import BROKERS
from bench.measures import MEASUREMENTS
from bench.metrics import METRICS
from bench.results import Results, print_summary, rows_of
from bench.run import Options, carry_out, end_on_sigterm, progress_on
from bench.session import Session

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
            log_bytes=int(gib * 2**30),
            work_dir=Path(tempfile.mkdtemp(prefix="run-", dir=arguments.work_dir)),
        ),
    )


def _run(plan: Plan, console: Console) -> Results:
    with progress_on(console) as progress:
        return carry_out(
            Session(options=plan.options, progress=progress),
            {name: MEASUREMENTS[name] for name in plan.measurements},
            {"log for the recovery": f"{plan.options.log_bytes / 2**30:g} GiB"},
        )


def main() -> None:
    arguments = _parser().parse_args()
    console = Console()
    if arguments.list:
        console.print("\n".join(MEASUREMENTS))
        return
    if arguments.render:
        results = Results.load(arguments.render)
        console.print(report.write(results, arguments.out or arguments.render.parent))
        return
    if arguments.repeat:
        committed = Results.load(jars.BENCH / report.RAW)
        later = Results.load(arguments.repeat)
        console.print(report.write(committed.with_repeated(later), jars.BENCH))
        return
    end_on_sigterm()
    try:
        if "kafka" in arguments.brokers:
            console.print(f"Apache Kafka {jars.kafka_version()}: jars by Maven, once")
            jars.classpath()
        plan = _plan(arguments)
        results = _run(plan, console)
    except BenchError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    page = report.write(results, plan.out)
    print_summary(console, rows_of(results, METRICS))
    console.print(f"written to {page}")


if __name__ == "__main__":
    main()
