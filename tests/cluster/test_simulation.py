"""Whole clusters in virtual time: nothing is lost, and the simulation would notice if it were."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import astuple

import pytest

from penstock.testing.simulation.mutants import MUTANTS, Mutant
from penstock.testing.simulation.run import simulate

SEEDS = 40
MUTANT_SEEDS_MAX = 400  # most are caught by the first few


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_no_rule_is_ever_broken(first: int) -> None:
    outcomes = [simulate(seed) for seed in range(first, first + 10)]
    assert [(o.seed, o.violation) for o in outcomes if o.violation is not None] == []
    assert sum(outcome.acknowledged for outcome in outcomes) > 100, "nobody got anything done"
    assert sum(outcome.epochs for outcome in outcomes) > 10, "nobody was elected"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_broken_rule_is_noticed(mutant: Mutant) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        if simulate(seed, mutant.behaviour, focus=mutant.focus).violation is not None:
            return
    pytest.fail(f"{mutant.broken} Nobody noticed in {MUTANT_SEEDS_MAX} runs.")


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """The order of sets and dicts must not matter, so the hash of strings must not either."""
    script = (
        "from dataclasses import astuple\n"
        "from penstock.testing.simulation.run import simulate\n"
        "print([astuple(simulate(seed)) for seed in (1, 2, 3)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert runs == {f"{[astuple(simulate(seed)) for seed in (1, 2, 3)]}\n"}
