"""Who takes the controller's part, when, and what it makes of reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.cluster.controller import BrokerReport, ControllerSettings
from penstock.cluster.controlling import ControllerSeat
from penstock.cluster.local import BrokerTerm
from penstock.cluster.state import (
    CONTROLLER,
    BrokerRegistration,
    ControllerClaim,
    broker_key,
    encode_broker,
    encode_controller,
)
from penstock.cluster.view import ClusterView, ControllerChanged
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import CommitResult, Delete, Put, Rejected, Transaction
from penstock.model import TopicPartition
from tests.cluster.wired import until

ORDERS = TopicPartition("orders", 0)


class Overtaken(MemoryStore):
    """Another broker holds the part, and gives it up while its answer to us is on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.on_refusal: list[Any] = []

    async def commit(self, transaction: Transaction) -> CommitResult:
        result = await super().commit(transaction)
        if isinstance(result, Rejected) and self.on_refusal:
            await self.on_refusal.pop()()
        return result


class Seat:
    """A seat with a view that hears of what the test lets it hear."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.view = ClusterView()
        self.term = BrokerTerm(id=1, storage_id="disk")
        self.term.begin("1001", asyncio.get_running_loop().time(), 1e6)
        self.tasks: list[asyncio.Task[None]] = []
        self.seat = ControllerSeat(
            store, self.view, self.term, SystemClock(), self.apply, self.spawn, ControllerSettings()
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        change = self.view.apply(key, value, revision)
        if isinstance(change, ControllerChanged):
            self.seat.claim_changed()

    async def register(self) -> None:
        self.seat.registered(await self.store.lease(60))

    async def until_controller(self) -> None:
        await until(lambda: self.seat.controller is not None, "it is the controller")

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def store() -> AsyncIterator[Overtaken]:
    async with Overtaken() as store:
        yield store


@pytest.fixture
async def seat(store: Overtaken) -> AsyncIterator[Seat]:
    seat = Seat(store)
    yield seat
    await seat.stop()


async def test_nobody_claims_the_part_before_knowing_what_there_is(seat: Seat) -> None:
    await seat.register()
    await asyncio.sleep(0.1)  # a claim would have been made within half of that
    assert await seat.store.get(CONTROLLER) is None
    seat.seat.start()
    await seat.until_controller()


async def test_the_part_is_claimed_though_who_was_faster_was_seen_to_go_before_it_was_seen_to_win(
    seat: Seat, store: Overtaken
) -> None:
    other = ControllerClaim(broker=2, incarnation="2002")
    put = Put(key=CONTROLLER, value=encode_controller(other))
    claimed = await store.commit(Transaction(puts=(put,)))

    async def goes() -> None:
        gone = await store.commit(Transaction(deletes=(Delete(key=CONTROLLER),)))
        seat.apply(put.key, put.value, claimed.revision)
        seat.apply(CONTROLLER, None, gone.revision)

    store.on_refusal.append(goes)
    await seat.register()
    seat.seat.start()
    await seat.until_controller()
    assert not store.on_refusal


async def test_a_report_of_a_registration_that_is_not_known_yet_is_to_be_repeated(
    seat: Seat,
) -> None:
    await seat.register()
    seat.seat.start()
    await seat.until_controller()
    report = BrokerReport(broker=2, incarnation="2002", log_ends={ORDERS: 17})
    with pytest.raises(ApiError) as refused:
        seat.seat.report(report)
    assert refused.value.code is ErrorCode.stale_broker_epoch
    broker = BrokerRegistration(id=2, host="h", port=1, incarnation="2002", storage_id="d")
    seat.apply(broker_key(2), encode_broker(broker), 1_000)
    seat.seat.report(report)
    assert seat.view.log_end(2, ORDERS) == 17
