"""`python -m penstock.testing.simulation --seeds 2000`: many runs, or one again, or the mutants."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.testing.simulation.mutants import MUTANTS, Mutant
from penstock.testing.simulation.run import Outcome, simulate

console = Console()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.simulation", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many runs (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument(
        "--mutants", action="store_true", help="run each broken rule until it is caught"
    )
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS], help="one of them")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    if options.mutants or options.mutant:
        wanted = [m for m in MUTANTS if options.mutant in (None, m.name)]
        return _hunt(wanted, seeds)
    return _run(seeds)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _run(seeds: range) -> int:
    began = time.perf_counter()
    outcomes = []
    with _progress() as progress:
        for seed in progress.track(seeds, description="simulating"):
            outcome = simulate(seed)
            outcomes.append(outcome)
            if outcome.violation is not None:
                progress.console.print(f"[red]seed {seed}[/]: {outcome.violation}", highlight=False)
    _summarise(outcomes, time.perf_counter() - began)
    return 1 if any(outcome.violation for outcome in outcomes) else 0


def _summarise(outcomes: list[Outcome], seconds: float) -> None:
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    table = Table(show_header=False)
    table.add_row("runs", f"{len(outcomes):,} in {seconds:.1f} s")
    table.add_row("steps", f"{sum(o.steps for o in outcomes):,}")
    table.add_row("records committed", f"{sum(o.committed for o in outcomes):,}")
    table.add_row("acknowledged with acks=all", f"{sum(o.acknowledged for o in outcomes):,}")
    table.add_row("leader epochs", f"{sum(o.epochs for o in outcomes):,}")
    table.add_row("faults", ", ".join(f"{name} {count:,}" for name, count in faults.most_common()))
    bad = [outcome.seed for outcome in outcomes if outcome.violation is not None]
    verdict = f"[red]seeds {', '.join(map(str, bad))}[/]" if bad else "[green]none[/]"
    table.add_row("violations", verdict)
    console.print(table)


def _hunt(mutants: Iterable[Mutant], seeds: range) -> int:
    """Each mutant against the seeds, until one of them shows what is broken."""
    missed = 0
    table = Table("mutant", "what is broken", "seed", "seen as")
    with _progress() as progress:
        for mutant in mutants:
            for seed in progress.track(seeds, description=mutant.name):
                outcome = simulate(seed, mutant.behaviour, focus=mutant.focus)
                if outcome.violation is not None:
                    table.add_row(mutant.name, mutant.broken, str(seed), outcome.violation)
                    break
            else:
                missed += 1
                table.add_row(mutant.name, mutant.broken, "[red]missed[/]", "")
    console.print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
