"""Everything at once, seeded: three members that hang and die, a network that cuts and swallows.

Three clients count by compare-and-swap, write, watch and hold leases through it all. Afterwards every
count, every event and every lease must be accounted for.

A run takes a few seconds; CHAOS_SECONDS and CHAOS_SEED make it longer and different.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from penstock.metadata.errors import LeaseLost, RevisionMismatch, StoreUnavailable
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.store import Event, Lease, Put, Transaction
from penstock.testing.etcd import EtcdCluster, survives_kill
from penstock.testing.proxy import Proxy, proxy

SECONDS = float(os.environ.get("CHAOS_SECONDS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
LEASE_S = 2


@dataclass
class Client:
    """One broker's view of the store, and what it was told."""

    number: int
    store: EtcdMetadataStore
    lines: list[Proxy]
    chances: random.Random
    counted: int = 0
    unknown: int = 0  # counts of which it was not told whether they were made
    written: dict[str, int] = field(default_factory=dict)  # revision by key, where it was told
    seen: list[Event] = field(default_factory=list)
    believed: dict[int, float] = field(default_factory=dict)  # latest expires_at by lease

    async def count(self) -> None:
        while True:
            with suppress(RevisionMismatch):
                try:
                    entry = await self.store.get("count")
                    assert entry is not None
                    value = str(int(entry.value) + 1).encode()
                except StoreUnavailable:
                    continue
                try:
                    await self.store.put("count", value, expected_revision=entry.mod_revision)
                    self.counted += 1
                except StoreUnavailable:
                    self.unknown += 1
            await asyncio.sleep(self.chances.uniform(0, 0.02))

    async def write(self) -> None:
        n = 0
        while True:
            n += 1
            keys = [f"w/{self.number}/{n}/{i}" for i in range(self.chances.choice((1, 1, 5)))]
            puts = tuple(Put(key=key, value=b"x" * self.chances.randrange(500)) for key in keys)
            with suppress(StoreUnavailable):
                result = await self.store.commit(Transaction(puts=puts))
                self.written |= dict.fromkeys(keys, result.revision)
            await asyncio.sleep(self.chances.uniform(0, 0.02))

    async def watch(self, start: int) -> None:
        async for event in self.store.watch("w/", start):
            self.seen.append(event)
            if event.key == "w/end":
                break

    async def hold(self) -> None:
        while True:
            with suppress(StoreUnavailable, LeaseLost):
                lease = await self.store.lease(LEASE_S)
                self.believe(lease)
                value = str(lease.id).encode()
                await self.store.put(f"holders/{lease.id}", value, lease=lease)
                while time.monotonic() < lease.expires_at:
                    await asyncio.sleep(self.chances.uniform(0.1, 0.7))
                    await lease.keep_alive()
                    self.believe(lease)

    def believe(self, lease: Lease) -> None:
        self.believed[lease.id] = max(lease.expires_at, self.believed.get(lease.id, 0))


async def hurt(cluster: EtcdCluster, clients: list[Client], chances: random.Random) -> None:
    """One trouble after the other, at most one member at a time."""
    troubles = ["cut", "cut", "cut", "swallow", "silence", "pause"]
    if survives_kill():  # else etcd itself would lose what the checks look for
        troubles.append("kill")
    while True:
        await asyncio.sleep(chances.uniform(0.05, 0.4))
        member = chances.choice(cluster.members)
        line = chances.choice(chances.choice(clients).lines)
        match chances.choice(troubles):
            case "cut":
                line.cut()
            case "swallow":
                line.swallow_answers = True
                await asyncio.sleep(chances.uniform(0.01, 0.1))
                line.swallow_answers = False
            case "silence":
                line.silent = True
                await asyncio.sleep(chances.uniform(0.1, 2.5))
                line.silent = False
            case "pause":
                member.pause()
                await asyncio.sleep(chances.uniform(0.1, 2.5))
                member.resume()
            case "kill":
                member.kill()
                await asyncio.sleep(chances.uniform(0, 1))
                member.start()


async def watch_holders(
    store: EtcdMetadataStore, start: int, done: asyncio.Event
) -> dict[int, float]:
    """When each lease was seen to be over, at the latest. Ends when all are, after `done`."""
    living: set[str] = set()
    ended: dict[int, float] = {}
    async for event in store.watch("holders/", start):
        if event.deleted:
            living.discard(event.key)
            ended[int(event.key.removeprefix("holders/"))] = time.monotonic()
            if done.is_set() and not living:
                break
        else:
            living.add(event.key)
    return ended


async def history(store: EtcdMetadataStore, start: int, last: str) -> list[Event]:
    events: list[Event] = []
    watch = store.watch("w/", start)
    while not events or events[-1].key != last:
        events.append(await asyncio.wait_for(anext(watch), 20))
    return events


async def test_nothing_is_lost_doubled_or_believed_too_long(trio: EtcdCluster) -> None:
    chances = random.Random(SEED)
    config = EtcdConfig(
        endpoints=trio.endpoints, key_prefix=f"{uuid.uuid4().hex}/", request_timeout_s=2
    )
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        calm = await stack.enter_async_context(EtcdMetadataStore(config))
        start = await calm.put("count", b"0") + 1
        clients = []
        for number in range(3):
            lines = [await stack.enter_async_context(proxy(e)) for e in trio.endpoints]
            addresses = tuple(line.address for line in lines)
            store = EtcdMetadataStore(
                EtcdConfig(endpoints=addresses, key_prefix=config.key_prefix, request_timeout_s=1)
            )
            await stack.enter_async_context(store)
            clients.append(Client(number, store, lines, random.Random(chances.random())))
        ending = asyncio.create_task(watch_holders(calm, start, done))
        working = []
        watching = [asyncio.create_task(client.watch(start)) for client in clients]
        for client in clients:
            working += [
                asyncio.create_task(work()) for work in (client.count, client.write, client.hold)
            ]
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                await hurt(trio, clients, chances)
        for line in (line for client in clients for line in client.lines):
            line.silent = line.swallow_answers = False
        await asyncio.to_thread(trio.heal)
        await asyncio.sleep(0.5)
        for task in working:
            task.cancel()
        results = await asyncio.gather(*working, return_exceptions=True)
        # The last lease to end, now that nobody holds any: its end is the end of `ending`.
        lease = await calm.lease(LEASE_S)
        await calm.put(f"holders/{lease.id}", b"", lease=lease)
        done.set()
        assert [r for r in results if not isinstance(r, asyncio.CancelledError)] == []

        # Every count that was told was made; no count was made twice.
        entry = await calm.get("count")
        assert entry is not None
        counted = sum(client.counted for client in clients)
        # One more of each may have been under way at the end.
        unknown = sum(client.unknown for client in clients) + len(clients)
        assert counted <= int(entry.value) <= counted + unknown

        # Every watch told the same story, which is what happened.
        await calm.put("w/end", b"")
        told = await history(calm, start, "w/end")
        async with asyncio.timeout(20):
            await asyncio.gather(*watching)
        assert all(client.seen == told for client in clients)
        revisions = {event.key: event.mod_revision for event in told}
        assert len(revisions) == len(told)
        for client in clients:
            assert client.written.items() <= revisions.items()

        # Nobody believed in a lease after others had seen it end.
        async with asyncio.timeout(20):
            ended = await ending
        for client in clients:
            for lease_id, until in client.believed.items():
                assert until <= ended.get(lease_id, until)
        assert counted > 0
        assert len(ended) > 1
