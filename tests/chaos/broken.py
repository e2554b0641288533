"""Brokers with one rule broken, to show that a run of chaos would notice.

    python -m tests.chaos.broken RULE serve …       # `penstock serve …`, but for the rule

The rules are those that the simulation breaks, too (`penstock.testing.simulation.broken_replicas`).
"""

from __future__ import annotations

import sys
from typing import Final

from penstock.cluster.leadership import Leadership
from penstock.cluster.replica import Replica
from penstock.testing.simulation import broken_replicas as broken

__all__ = ["RULES", "program"]

RULES: Final[dict[str, type[Leadership]]] = {
    "truncate": broken.NeverDiverges,
    "commit-when-followers-have-it": broken.ShowsAtOnce,
    "lease": broken.AppendsWithoutLease,
    "join-with-all-committed": broken.TakesInWhoeverFetches,
}


def program(rule: str) -> tuple[str, ...]:
    """What to run instead of `penstock`."""
    return (sys.executable, "-m", "tests.chaos.broken", rule)


def main() -> None:
    rule = sys.argv.pop(1)
    Replica.leadership_type = RULES[rule]
    from penstock.cli.main import main as penstock

    penstock()


if __name__ == "__main__":
    main()
