"""When the broker stays awake for the next request, and when it sleeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.kafka.idle_polling import IdlePolling
from penstock.testing import ProcessBroker, broker_process
from tests.kafka.wire import Wire, request

LIMIT_US = 100
LIMIT_S = LIMIT_US / 1e6


class Loop:
    """What an event loop is to `IdlePolling`: a clock, and callbacks for the next turn."""

    def __init__(self, limit_us: int = LIMIT_US) -> None:
        self.now_s = 1000.0
        self.others_take_s = 0.0  # for how long others have the core when they are given way
        self.callbacks: list[Callable[[], None]] = []
        self.polling = IdlePolling(
            limit_us, self.callbacks.append, clock=lambda: self.now_s, give_way=self._give_way
        )

    def _give_way(self) -> None:
        self.now_s += self.others_take_s

    @property
    def is_awake(self) -> bool:
        """A loop with a callback to run does not sleep."""
        return bool(self.callbacks)

    def turn(self) -> None:
        due, self.callbacks[:] = list(self.callbacks), []
        for callback in due:
            callback()

    def request(self, after_s: float) -> None:
        """One comes so long behind the last."""
        self.wait(after_s)
        self.polling.on_answered()

    def wait(self, seconds: float) -> None:
        """While the loop is awake it turns, as often as it may."""
        until_s = self.now_s + seconds
        while self.is_awake and self.now_s < until_s:
            self.now_s = min(self.now_s + LIMIT_S / 20, until_s)
            self.turn()
        self.now_s = until_s


def close_requests(loop: Loop, count: int = 20, after_s: float = LIMIT_S / 2) -> None:
    for _ in range(count):
        loop.request(after_s)


def test_requests_that_follow_each_other_closely_keep_it_awake() -> None:
    loop = Loop()
    close_requests(loop)
    assert loop.is_awake
    loop.wait(LIMIT_S * 0.9)
    assert loop.is_awake


def test_it_sleeps_when_none_has_come_for_as_long_as_the_limit() -> None:
    loop = Loop()
    close_requests(loop)
    loop.wait(LIMIT_S * 1.1)
    assert not loop.is_awake


def test_a_few_close_requests_are_no_reason_to_stay_awake() -> None:
    loop = Loop()
    close_requests(loop, 3)
    assert not loop.is_awake


def test_requests_that_come_seldom_never_keep_it_awake() -> None:
    loop = Loop()
    for _ in range(100):
        loop.request(LIMIT_S * 3)
        assert not loop.is_awake


def test_being_woken_may_take_as_long_again() -> None:
    """Or one that sleeps would never find out that it need not have."""
    loop = Loop()
    close_requests(loop, 8, LIMIT_S * 1.5)
    assert loop.is_awake


def test_looking_in_vain_is_tried_again_only_after_a_new_run() -> None:
    """Requests a little too far apart cost one look in many, not one each."""
    loop = Loop()
    looked = 0
    for _ in range(90):
        loop.request(LIMIT_S * 1.5)
        looked += loop.is_awake
    assert 0 < looked <= 90 // 8


def test_one_look_is_under_way_at_most() -> None:
    loop = Loop()
    close_requests(loop, 50, after_s=0.0)
    assert len(loop.callbacks) == 1


def test_a_core_that_others_want_is_left_to_them() -> None:
    loop = Loop()
    close_requests(loop)
    loop.others_take_s = LIMIT_S * 0.6
    loop.turn()
    assert not loop.is_awake


def test_a_limit_of_0_turns_it_off() -> None:
    loop = Loop(limit_us=0)
    close_requests(loop, 50, after_s=0.0)
    assert not loop.is_awake


def sleeps(running: ProcessBroker, requests: int) -> int:
    """How often the broker's main thread went to sleep while a client sent requests one by one."""
    status = Path(f"/proc/{running.pid}/status")

    def counted() -> int:
        found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    with Wire(running.bootstrap) as wire:
        before = counted()
        for _ in range(requests):
            wire.ask(request("api_versions", 0))
        return counted() - before


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nobody counts sleeps here")
def test_a_broker_whose_client_waits_for_each_answer_sleeps_only_if_it_is_told_to() -> None:
    """Where others want the cores, one sleeps less, for the next request is there already, and the other
    more, for it gives way. So they are asked in turns, until they differ for sure."""
    sleepily, wakefully = 0, 0
    with broker_process(idle_poll_us=0) as sleepy, broker_process(idle_poll_us=1_000) as wakeful:
        for turn in range(200):
            sleepily += sleeps(sleepy, 100)
            wakefully += sleeps(wakeful, 100)
            if turn > 20 and sleepily > 2 * wakefully:
                return
    pytest.fail(f"one slept {sleepily} times, the other {wakefully} times")
