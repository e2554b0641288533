"""A short run of the fuzzer; `python -m tests.fuzz` has no end."""

from __future__ import annotations

import itertools

import pytest

from tests.fuzz.frames import Frames
from tests.fuzz.runner import run


def test_the_same_seed_makes_the_same_frames() -> None:
    first, second, other = Frames(1), Frames(1), Frames(2)
    made = [first.next() for _ in range(200)]
    assert made == [second.next() for _ in range(200)]
    assert made != [other.next() for _ in range(200)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_broker_goes_on_as_if_nothing_was(seed: int) -> None:
    outcome = run(2_000, seed)
    assert not outcome.problems, str(outcome)
    assert outcome.frames >= 2_000
    assert outcome.answered > 200, "most of them should get somewhere"
    assert outcome.steady_requests > 10


def test_every_api_and_version_is_in_the_corpus() -> None:
    from penstock.kafka.handlers import REGISTRY
    from tests.fuzz.frames import corpus

    found = {
        (int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")) for data in corpus(())
    }
    expected = itertools.chain.from_iterable(
        ((key, version) for version in api.versions) for key, api in REGISTRY.items()
    )
    assert found == set(expected)
