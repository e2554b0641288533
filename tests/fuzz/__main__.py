"""`python -m tests.fuzz --frames 1000000`: many frames, one broker, and what became of it."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.fuzz.runner import run


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many to send")
    parser.add_argument("--seed", type=int, default=None, help="what they follow from")
    parser.add_argument("--connections", type=int, default=16, help="how many to send them over")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    say(f"seed {seed}")
    last = time.monotonic()

    def report(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 10:
            last = time.monotonic()
            say(line)

    outcome = run(
        given.frames, seed, connections=given.connections, log_level="error", report=report
    )
    say(str(outcome))
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
