"""Timers of less than a millisecond."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time

import pytest

from penstock.kafka.short_timer import ShortTimer


@pytest.fixture
async def timer() -> ShortTimer:
    return ShortTimer()


async def test_it_rings_after_its_time_and_not_before(timer: ShortTimer) -> None:
    rang = asyncio.Event()
    began_s = time.monotonic()
    assert timer.call_later(0.0003, rang.set)
    await rang.wait()
    assert time.monotonic() - began_s >= 0.0003
    timer.close()


async def test_many_ring_in_the_order_of_their_times(timer: ShortTimer) -> None:
    rang: list[int] = []
    done = asyncio.Event()
    for order in (3, 1, 4, 0, 2):
        timer.call_later(0.002 + order * 0.002, functools.partial(rang.append, order))
    timer.call_later(0.02, done.set)
    await done.wait()
    assert rang == [0, 1, 2, 3, 4]
    timer.close()


async def test_a_late_one_does_not_hold_up_an_early_one(timer: ShortTimer) -> None:
    rang = asyncio.Event()
    timer.call_later(0.0005, rang.set)
    timer.call_later(3600.0, rang.clear)
    async with asyncio.timeout(30):
        await rang.wait()
    timer.close()


async def test_who_is_called_back_may_ask_again(timer: ShortTimer) -> None:
    done = asyncio.Event()

    def again() -> None:
        timer.call_later(0.0001, done.set)

    timer.call_later(0.0001, again)
    await done.wait()
    timer.close()


async def test_a_timer_without_time_rings_nevertheless(timer: ShortTimer) -> None:
    done = asyncio.Event()
    timer.call_later(0.0, done.set)
    await done.wait()
    timer.close()


async def test_a_closed_one_rings_no_more_and_leaves_nothing_open(timer: ShortTimer) -> None:
    rang: list[int] = []
    timer.call_later(0.0005, lambda: rang.append(1))
    opened = timer._fd
    assert "timerfd" in os.readlink(f"/proc/self/fd/{opened}")
    timer.close()
    await asyncio.sleep(0.005)
    assert not rang
    with contextlib.suppress(FileNotFoundError):  # or it is somebody else's by now
        assert "timerfd" not in os.readlink(f"/proc/self/fd/{opened}")
