"""A broker is registered under a lease, for certain or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.clock import ManualClock
from penstock.cluster.local import BrokerTerm
from penstock.cluster.membership import Membership
from penstock.cluster.state import BrokerRegistration, broker_key, decode_broker, encode_broker
from penstock.errors import ConfigError
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import Lease

TTL_S = 3
PATIENCE_S = 5.0  # for what is awaited, on the real clock


class Broker:
    """One life of a broker: what it was told is kept in `told`."""

    def __init__(
        self, store: MemoryStore, clock: ManualClock, storage_id: str, port: int = 9092
    ) -> None:
        self.clock = clock
        self.term = BrokerTerm(id=1, storage_id=storage_id)
        self.told: list[str] = []
        self.changed = asyncio.Event()
        registration = BrokerRegistration(
            id=1, host="here", port=port, incarnation="", storage_id=storage_id
        )
        self.membership = Membership(store, registration, self.term, TTL_S, clock, self)

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self.changed.set()

    def registered(self, lease: Lease, *, is_first: bool) -> None:
        self._tell("registered" if is_first else "registered anew")

    def lease_renewed(self) -> None:
        self._tell("renewed")

    def unregistered(self) -> None:
        self._tell("unregistered")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def holds_lease(self) -> bool:
        return self.term.holds_lease(self.clock.monotonic_s())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    async with MemoryStore(now=clock.monotonic_s) as store:
        yield store


async def registration(store: MemoryStore) -> BrokerRegistration | None:
    entry = await store.get(broker_key(1))
    return None if entry is None else decode_broker(entry)


async def test_a_broker_that_joined_is_registered_and_holds_its_lease(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    found = await registration(store)
    assert found is not None
    assert found.incarnation == broker.term.incarnation
    assert broker.told[0] == "registered"
    assert broker.holds_lease
    await broker.membership.leave()


async def test_the_lease_is_believed_in_for_less_than_the_store_grants(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    clock.advance(TTL_S * 0.96)
    assert not broker.holds_lease
    assert await registration(store) is not None
    await broker.membership.leave()


async def test_a_second_broker_with_the_same_id_is_refused_and_told_by_whom(
    store: MemoryStore, clock: ManualClock
) -> None:
    first = Broker(store, clock, "disk 1", port=9092)
    await first.membership.join()
    second = Broker(store, clock, "disk 2", port=9093)
    joining = asyncio.create_task(second.membership.join())
    for _ in range(4):  # the first keeps its lease alive all the while
        await first.until(lambda: "renewed" in first.told)
        first.told.clear()
        clock.advance(TTL_S / 2)
    with pytest.raises(ConfigError, match=r"broker id 1 is taken by a broker at here:9092"):
        await joining
    found = await registration(store)
    assert found is not None
    assert found.incarnation == first.term.incarnation
    await first.membership.leave()


async def test_a_broker_with_another_disk_waits_until_the_earlier_lease_has_ended(
    store: MemoryStore, clock: ManualClock
) -> None:
    await store.lease(TTL_S)
    earlier = BrokerRegistration(id=1, host="there", port=1, incarnation="9", storage_id="old disk")
    lease = await store.lease(TTL_S)
    await store.put(broker_key(1), encode_broker(earlier), lease=lease)
    broker = Broker(store, clock, "new disk")
    joining = asyncio.create_task(broker.membership.join())
    await asyncio.sleep(0)
    assert not joining.done()
    clock.advance(TTL_S)
    await asyncio.wait_for(joining, PATIENCE_S)
    found = await registration(store)
    assert found is not None
    assert found.storage_id == "new disk"
    await broker.membership.leave()


async def test_the_key_of_an_earlier_life_of_ours_is_taken_over_at_once(
    store: MemoryStore, clock: ManualClock
) -> None:
    """We hold the lock on the data directory that it names, so that life is over."""
    earlier = BrokerRegistration(id=1, host="here", port=1, incarnation="9", storage_id="disk")
    lease = await store.lease(TTL_S)
    await store.put(broker_key(1), encode_broker(earlier), lease=lease)
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    found = await registration(store)
    assert found is not None
    assert found.incarnation == broker.term.incarnation != "9"
    clock.advance(TTL_S / 2)
    await broker.until(lambda: "renewed" in broker.told)
    clock.advance(TTL_S * 0.6)  # the earlier lease ends; the key is not its any more
    assert await registration(store) is not None
    await broker.membership.leave()


async def test_a_broker_whose_lease_has_ended_registers_anew_as_another_incarnation(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    before = broker.term.incarnation
    clock.advance(TTL_S * 2)
    await broker.until(lambda: "registered anew" in broker.told)
    assert broker.told.index("unregistered") < broker.told.index("registered anew")
    assert broker.term.incarnation != before
    assert broker.holds_lease
    await broker.membership.leave()


async def test_a_broker_that_leaves_ends_its_term_before_its_lease(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    lease = broker.membership.lease
    assert lease is not None
    held_at_revoke: list[bool] = []
    revoke = lease.revoke

    async def revoked() -> None:
        held_at_revoke.append(broker.holds_lease)
        await revoke()

    lease.revoke = revoked  # type: ignore[method-assign]
    await broker.membership.leave()
    assert held_at_revoke == [False]
    assert await registration(store) is None


async def test_leaving_is_announced_under_the_same_registration(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    await broker.membership.announce_leaving()
    found = await registration(store)
    assert found is not None
    assert found.is_leaving
    assert found.incarnation == broker.term.incarnation
    await broker.membership.leave()


async def test_a_broker_whose_key_another_has_written_is_not_registered_any_more(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    other = BrokerRegistration(id=1, host="copy", port=2, incarnation="7", storage_id="disk")
    revision = await store.put(broker_key(1), encode_broker(other))
    broker.membership.seen(other, revision)
    assert not broker.holds_lease
    assert broker.told[-1] == "unregistered"
    await broker.membership.leave()


async def test_an_older_sight_of_the_own_key_changes_nothing(
    store: MemoryStore, clock: ManualClock
) -> None:
    broker = Broker(store, clock, "disk")
    await broker.membership.join()
    broker.membership.seen(None, 0)
    assert broker.holds_lease
    await broker.membership.leave()
