"""What is acknowledged survives `kill -9`, whenever it comes."""

from __future__ import annotations

import secrets

from tests.crash.rounds import run


def test_twenty_kills_under_load_lose_repeat_and_reorder_nothing_promised() -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown if it fails
    outcome = run(20, seed)
    assert outcome.acknowledged > 1_000
    assert outcome.commits > 20
