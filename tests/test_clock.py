"""The machine's clocks, as the broker reads them."""

from __future__ import annotations

import time

import pytest

from penstock.clock import SystemClock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux only")
def test_time_passes_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a leader that wakes up would believe in a lease that has ended in its sleep."""
    clocks = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_BOOTTIME: 3700.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert SystemClock().monotonic_s() == 3700.0
