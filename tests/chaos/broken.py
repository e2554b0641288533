"""Brokers with one rule broken, to show that a run of chaos would notice.

    python -m tests.chaos.broken RULE serve …       # `penstock serve …`, but for the rule

Most of the rules are among those that the simulation breaks (`penstock.testing.simulation`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from penstock.cluster.leadership import Leadership
from penstock.cluster.replica import Replica
from penstock.log import PartitionLog
from penstock.testing.simulation import broken_replicas as broken

__all__ = ["RULES", "program"]


def _lead_by(leadership: type[Leadership]) -> Callable[[], None]:
    def break_it() -> None:
        Replica.leadership_type = leadership

    return break_it


def _read_to_the_end() -> None:
    """Show consumers what is not committed."""
    read = PartitionLog.read

    def read_all(log: PartitionLog, offset: int, bytes_max: int, **_: Any) -> Any:
        return read(log, offset, bytes_max, uncommitted=True)

    PartitionLog.read = read_all  # type: ignore[method-assign,assignment]


RULES: Final[dict[str, Callable[[], None]]] = {
    "commit-when-followers-have-it": _lead_by(broken.ShowsAtOnce),
    "read-what-is-committed": _read_to_the_end,
    # A follower that may keep what differs refuses what comes next, so that is noticed by its absence.
    "truncate": _lead_by(broken.NeverDiverges),
    "join-with-all-that-is-committed": _lead_by(broken.TakesInWhoeverFetches),
}


def program(rule: str) -> tuple[str, ...]:
    """What to run instead of `penstock`."""
    return (sys.executable, "-m", "tests.chaos.broken", rule)


def main() -> None:
    RULES[sys.argv.pop(1)]()
    from penstock.cli.main import main as penstock

    penstock()


if __name__ == "__main__":
    main()
