"""`python -m tests.crash --rounds 500`: as many kills as you like, with their seed."""

from __future__ import annotations

import argparse
import secrets

from rich.console import Console
from rich.progress import Progress

from tests.crash.rounds import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    arguments = parser.parse_args()
    out = Console()
    out.print(f"seed {arguments.seed}")
    with Progress(console=out) as progress:
        kills = progress.add_task("kill -9", total=arguments.rounds)
        outcome = run(
            arguments.rounds, arguments.seed, lambda n: progress.update(kills, completed=n)
        )
    out.print(
        f"{outcome.rounds} kills, {outcome.records} records, {outcome.acknowledged} acknowledged, "
        f"{outcome.commits} offset commits: all there, in order, none lost, no offset reused."
    )


if __name__ == "__main__":
    main()
