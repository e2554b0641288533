"""A cluster keeps its promises while brokers are killed, paused and cut off; if not, we would notice."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.chaos.broken import program
from tests.chaos.checker import Kind, around
from tests.chaos.faults import Fault, Planned, Round, plan
from tests.chaos.history import Committed
from tests.chaos.run import run

SECONDS = 20.0
_TRIES = 3


@pytest.fixture(autouse=True)
def quiet_clients() -> Iterator[None]:
    """They tell of every broker that does not answer."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_a_cluster_under_random_faults_loses_repeats_and_reorders_nothing_promised() -> None:
    seed = secrets.randbelow(2**32)
    lines = [f"seed {seed}"]
    outcome = run(seed, SECONDS, lines.append)
    lines += [around(outcome.history, violation) for violation in outcome.violations[:3]]
    assert outcome.is_sound, "\n".join([*lines, outcome.stuck])
    history = outcome.history
    assert len(history.sent) > 1_000, "nobody wrote anything"
    assert all(len(seen) > 1_000 for seen in history.seen.values()), "nobody read anything"
    assert any(isinstance(e, Committed) for member in history.group.values() for e in member)
    assert all(len(replicas) == 3 for replicas in history.disks.values())


def test_a_plan_is_the_same_for_the_same_seed_and_takes_one_broker_away_at_a_time() -> None:
    def rounds(seed: int) -> list[Round]:
        return list(islice(plan(seed, brokers=3, partitions=6, lease_s=2), 300))

    assert rounds(1) == rounds(1)
    assert rounds(1) != rounds(2)
    seen = set()
    for faults in (round_.faults for round_ in rounds(3)):
        seen |= {planned.fault for planned in faults}
        away = [p for p in faults if p.fault in (Fault.KILL, Fault.RESTART)]
        assert len(away) <= 1
        assert all(p.for_s > 2 for p in faults if p.fault is Fault.PAUSE), "not past the lease"
        assert all(p.for_s < 2 for p in faults if p.fault is Fault.HICCUP)
    assert seen == set(Fault), "some never happen"


@pytest.mark.parametrize(
    ("rule", "noticed"),
    [
        ("commit-when-followers-have-it", {Kind.LOST, Kind.VANISHED, Kind.CHANGED}),
        ("read-what-is-committed", {Kind.VANISHED, Kind.CHANGED}),
    ],
)
def test_a_broken_rule_is_noticed(rule: str, noticed: set[Kind]) -> None:
    """A leader that is cut off from the others, and not from its clients, is enough for these.

    Not always. Why is not known for sure; most likely what it took without the others is sent again to the
    next leader, and nobody can tell if it comes to the same offsets there. So it happens to each leader, and
    again if need be.
    """
    rounds = [
        Round((Planned(fault=Fault.ISOLATE, at_s=0, for_s=3, leader_of=partition),))
        for partition in range(3)
    ]
    lines: list[str] = []
    for _ in range(_TRIES):
        outcome = run(1, 0, lines.append, program=program(rule), rounds=rounds)
        if outcome.kept:
            shutil.rmtree(outcome.kept)
        found = {violation.kind for violation in outcome.violations}
        if found & noticed:
            return
        lines += [outcome.stuck, *map(str, outcome.violations[:5])]
    pytest.fail("\n".join(lines))
