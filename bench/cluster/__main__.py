"""`python -m bench.cluster`: measure two clusters of three brokers and write their part of the results."""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from bench import BenchError, jars, report
from bench.cluster.clusters import CLUSTERS
from bench.cluster.measures import KILLS, MEASUREMENTS
from bench.cluster.report import LEASE_TTL_S, METRICS
from bench.cluster.session import ClusterSession
from bench.results import Results, print_summary, rows_of
from bench.run import Options, carry_out, end_on_sigterm, progress_on
from penstock.processes.etcd import etcd_version

_RUNS = jars.BENCH / ".runs"
_FULL_ROUNDS, _QUICK_ROUNDS, _QUICK_SCALE = 5, 1, 10


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run, a tenth of the load")
    parser.add_argument("--only", action="append", metavar="NAME", choices=list(MEASUREMENTS))
    parser.add_argument("--list", action="store_true", help="name the measurements and stop")
    parser.add_argument("--brokers", nargs="+", choices=list(CLUSTERS), default=list(CLUSTERS))
    parser.add_argument("--rounds", type=int, help=f"of the throughput, default {_FULL_ROUNDS}")
    parser.add_argument("--catch-up-gib", type=float, help="what is caught up with, default 5")
    parser.add_argument("--out", type=Path, help="where the results go; see bench/README.md")
    parser.add_argument("--work-dir", type=Path, default=_RUNS, help="where the brokers write")
    parser.add_argument("--repeat", type=Path, metavar="JSON", help="see bench/README.md")
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> Options:
    scale = _QUICK_SCALE if arguments.quick else 1
    arguments.work_dir.mkdir(parents=True, exist_ok=True)
    return Options(
        brokers=tuple(arguments.brokers),
        rounds=arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _FULL_ROUNDS),
        scale=scale,
        log_bytes=int((arguments.catch_up_gib or 5 / scale) * 2**30),
        work_dir=Path(tempfile.mkdtemp(prefix="cluster-", dir=arguments.work_dir)),
    )


def _run(arguments: argparse.Namespace, console: Console) -> Results:
    names = [name for name in MEASUREMENTS if name in (arguments.only or [name])]
    options = _options(arguments)
    with progress_on(console) as progress:
        run = ClusterSession(options=options, progress=progress)
        facts = {
            "kills of a leader": str(run.amount(KILLS)),
            "caught up with": f"{options.log_bytes / 2**30:g} GiB",
            "etcd": ".".join(map(str, etcd_version())),
            "lease of a broker": f"{LEASE_TTL_S} s",
        }
        return carry_out(run, {name: MEASUREMENTS[name] for name in names}, facts)


def main() -> None:
    arguments = _arguments()
    console = Console()
    if arguments.list:
        console.print("\n".join(MEASUREMENTS))
        return
    if arguments.repeat:
        committed = Results.load(jars.BENCH / report.RAW_CLUSTER)
        later = Results.load(arguments.repeat)
        console.print(report.write_cluster(committed.with_repeated(later), jars.BENCH))
        return
    end_on_sigterm()
    try:
        if "kafka" in arguments.brokers:
            console.print(f"Apache Kafka {jars.kafka_version()}: jars by Maven, once")
            jars.classpath()
        results = _run(arguments, console)
    except BenchError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    is_full = not (arguments.quick or arguments.only) and set(arguments.brokers) == set(CLUSTERS)
    out = arguments.out or (jars.BENCH if is_full else _RUNS / "last")
    page = report.write_cluster(results, out)
    print_summary(console, rows_of(results, METRICS))
    console.print(f"written to {page}")


if __name__ == "__main__":
    main()
