"""`python -m tests.chaos --seconds 300`: faults at random for as long as you like, with their seed."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys

from tests.chaos.broken import RULES, program
from tests.chaos.checker import around
from tests.chaos.run import run

_SHOWN_MAX = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument(
        "--break",
        dest="rule",
        choices=sorted(RULES),
        help="run brokers with this rule broken, to see whether it is noticed",
    )
    arguments = parser.parse_args()
    logging.disable()  # clients tell of every broker that does not answer
    _say(f"seed {arguments.seed}")
    brokers = () if arguments.rule is None else program(arguments.rule)
    outcome = run(arguments.seed, arguments.seconds, _say, program=brokers)
    _say(outcome.summary())
    if outcome.is_sound:
        _say(
            "every acknowledged record is there once and in order, and nothing that was read is gone"
        )
        return 0
    if outcome.stuck:
        _say(f"STUCK: {outcome.stuck}")
    for violation in outcome.violations[:_SHOWN_MAX]:
        _say(f"VIOLATION: {around(outcome.history, violation)}")
    _say(
        f"{len(outcome.violations)} violation(s); seed {outcome.seed}; data and logs: {outcome.kept}"
    )
    return 1


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
