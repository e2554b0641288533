"""`SortedKeys` is a sorted set."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.sorted_keys import SortedKeys

KEYS = st.text(alphabet="ab/é\U0010ffff", max_size=2)


# So small that a handful of keys splits and empties chunks.
CHUNK_KEYS = 4


@given(
    initial=st.lists(KEYS), steps=st.lists(st.tuples(st.booleans(), KEYS), max_size=80), prefix=KEYS
)
def test_it_holds_what_a_set_holds_in_order(
    initial: list[str], steps: list[tuple[bool, str]], prefix: str
) -> None:
    keys, model = SortedKeys(initial, CHUNK_KEYS), set(initial)
    for adding, key in steps:
        if adding:
            keys.add(key)
            model.add(key)
        else:
            keys.discard(key)
            model.discard(key)
        assert list(keys.prefix("")) == sorted(model)
    assert list(keys.prefix(prefix)) == sorted(k for k in model if k.startswith(prefix))


@pytest.mark.parametrize("likely_to_add", [0.3, 0.5, 0.7])
def test_it_survives_thousands_of_changes(likely_to_add: float) -> None:
    rng = random.Random(3)
    keys, model = SortedKeys((), CHUNK_KEYS), set[str]()
    for _ in range(5000):
        key = str(rng.randrange(40))
        if rng.random() < likely_to_add:
            keys.add(key)
            model.add(key)
        else:
            keys.discard(key)
            model.discard(key)
        assert list(keys.prefix("")) == sorted(model)
        assert list(keys.prefix("3")) == sorted(key for key in model if key.startswith("3"))
