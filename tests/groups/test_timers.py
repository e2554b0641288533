"""Deadlines: due in order, cheap to push back, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.timers import Deadlines


def test_the_due_are_returned_once_and_in_order() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, time in {"c": 3.0, "a": 1.0, "b": 2.0, "d": 4.0}.items():
        deadlines.set(key, time)
    assert list(deadlines.pop_due(3.0)) == ["a", "b", "c"]
    assert list(deadlines.pop_due(3.0)) == []
    assert list(deadlines.pop_due(9.0)) == ["d"]
    assert deadlines.next_wake() is None


def test_a_deadline_can_move_both_ways_and_be_cancelled() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("later", 1.0)
    deadlines.set("later", 5.0)
    deadlines.set("sooner", 5.0)
    deadlines.set("sooner", 1.0)
    deadlines.set("never", 1.0)
    deadlines.cancel("never")
    assert list(deadlines.pop_due(1.0)) == ["sooner"]
    assert list(deadlines.pop_due(4.9)) == []
    assert list(deadlines.pop_due(5.0)) == ["later"]


def test_nobody_is_woken_for_what_was_cancelled_twice() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.cancel("a")
    assert list(deadlines.pop_due(1.0)) == []
    assert deadlines.next_wake() is None


def test_what_the_first_of_the_due_moves_or_cancels_is_not_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key in ("first", "moved", "cancelled", "last"):
        deadlines.set(key, 1.0 + len(key) / 10)
    popped = []
    for key in deadlines.pop_due(3.0):
        popped.append(key)
        deadlines.set("moved", 9.0)
        deadlines.cancel("cancelled")
    assert popped == ["last", "first"]
    assert list(deadlines.pop_due(9.0)) == ["moved"]


def test_one_that_is_due_again_at_once_has_to_wait_for_the_next_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("again", 1.0)
    for key in deadlines.pop_due(2.0):
        deadlines.set(key, 1.0)
    assert list(deadlines.pop_due(2.0)) == ["again"]


def test_a_heartbeat_does_not_touch_the_heap() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for member in range(10_000):
        deadlines.set(member, 10.0)
    before = list(deadlines._heap)
    for member in range(10_000):
        deadlines.set(member, 13.0)
    assert deadlines._heap == before
    assert list(deadlines.pop_due(10.0)) == []
    assert len(list(deadlines.pop_due(13.0))) == 10_000


def test_what_is_cancelled_does_not_pile_up() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key in range(10_000):
        deadlines.set(key, 1000.0 - key)
        deadlines.cancel(key)
    assert len(deadlines._heap) < 200


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "cancel", "pop"]), st.integers(0, 5), st.integers(0, 20)),
        max_size=80,
    )
)
def test_it_behaves_as_a_plain_dict_of_deadlines(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    for action, key, time in steps:
        match action:
            case "set":
                deadlines.set(key, time)
                model[key] = time
            case "cancel":
                deadlines.cancel(key)
                model.pop(key, None)
            case "pop":
                due = {k for k, deadline in model.items() if deadline <= time}
                popped = list(deadlines.pop_due(time))
                assert len(popped) == len(set(popped))
                assert set(popped) == due
                assert [model[k] for k in popped] == sorted(model[k] for k in popped)
                for k in popped:
                    del model[k]
        assert len(deadlines) == len(model)
        if model:
            wake = deadlines.next_wake()
            assert wake is not None
            assert wake <= min(model.values()), "never late"
