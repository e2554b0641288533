"""Everything at once: brokers die, lapse, leave and come back, the store loses answers and delays writes.

Consumers commit, one offset after the other, wherever a coordinator answers. What was acknowledged is
never lost, and nobody who fetches offsets is shown an older one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.slots import SLOTS
from tests.groups.brokers import RETRIABLE, Brokers, Link, Node, commit, name_in

IDS = (1, 2, 3)
GROUPS = [name_in(slot) for slot in range(0, SLOTS, 5)]


class Chaos:
    """Faults by a seed, on brokers that are there or not, and consumers that check what they see."""

    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers = brokers
        self.random = random.Random(seed)
        self.acknowledged = dict.fromkeys(GROUPS, 0)
        self.dead: deque[Node] = deque(maxlen=len(IDS))  # some do not know
        self.delayed: list[Link] = []
        self.over = False

    async def run(self, turns: int) -> None:
        await self.brokers.start(*IDS)
        consumers = [asyncio.create_task(self.consume(name)) for name in GROUPS]
        faults = [self.die, self.lapse, self.leave, self.lose_answers, self.delay]
        for _ in range(turns):
            await self.random.choice(faults)()
            if self.random.random() < 0.1:
                await self.arrive()
            await asyncio.sleep(self.random.choice((0, 0.001, 0.005, 0.02)))
            if self.random.random() < 0.4:
                await self.heal()
        await self.heal()
        await self.brokers.settled()
        reached = dict(self.acknowledged)
        async with asyncio.timeout(20):
            while any(self.acknowledged[name] < reached[name] + 3 for name in GROUPS):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        self.over = True
        await asyncio.gather(*consumers)
        await self.arrive()
        for node in self.brokers.nodes.values():  # what counts is what the next one finds
            node.lose_lease()
            await node.register()
        await self.brokers.settled()

    @property
    def everyone(self) -> list[Node]:
        return [*self.brokers.nodes.values(), *self.dead]

    # -- consumers

    async def consume(self, name: str) -> None:
        while not self.over:
            await self.commit(name, self.acknowledged[name] + 1)
            self.acknowledged[name] += 1
            self.check(name)

    async def commit(self, name: str, offset: int) -> None:
        while True:
            everyone = self.everyone
            for node in self.random.sample(everyone, len(everyone)):
                try:
                    error = await commit(node.groups.of(name), offset, name)
                except ApiError as failure:
                    error = failure.code
                if error is ErrorCode.none:
                    return
                assert error in RETRIABLE, error
            await asyncio.sleep(0.001)

    def check(self, name: str) -> None:
        """Whoever answers a fetch of offsets knows of all that was acknowledged."""
        for node in self.everyone:
            try:
                kept = node.groups.of(name).offsets(name).get("t", 0)
            except ApiError:
                continue
            seen = 0 if kept is None else kept.offset
            assert seen >= self.acknowledged[name], f"broker {node.id} answers with an old offset"

    # -- faults

    def one(self) -> Node:
        return self.random.choice(list(self.brokers.nodes.values()))

    async def die(self) -> None:
        """The process stands still, or is cut off, and its lease ends."""
        if len(self.brokers.nodes) > 1:
            node = self.one()
            node.pause()
            node.is_sure = False
            await node.end_lease()
            self.dead.append(self.brokers.gone(node.id))

    async def lapse(self) -> None:
        """It loses its lease, in the store or only in its own reckoning, and takes a new one."""
        node = self.one()
        node.lose_lease()
        if self.random.random() < 0.5:
            await node.end_lease()
        await node.register()

    async def leave(self) -> None:
        if len(self.brokers.nodes) > 1:
            node = self.brokers.gone(self.one().id)
            self.dead.append(node)
            await node.groups.leave()
            node.lose_lease()
            await node.end_lease()

    async def lose_answers(self) -> None:
        self.one().link.loses_answers = True

    async def delay(self) -> None:
        link = self.one().link
        link.delays = True
        self.delayed.append(link)

    async def arrive(self) -> None:
        """Writes that were given up long ago are applied now, if they still may."""
        for link in self.delayed:
            await link.arrive()
        self.delayed.clear()

    async def heal(self) -> None:
        for node in self.everyone:
            node.link.loses_answers = node.link.delays = False
            if node.id in self.brokers.nodes:
                node.link.hears.set()
        for broker_id in IDS:
            if broker_id not in self.brokers.nodes:
                node = await self.brokers.prepare(broker_id)
                await node.register()
                self.brokers.nodes[broker_id] = node
        self.brokers.tell()


@pytest.mark.parametrize(
    ("brokers", "seed", "turns"),
    [*[("memory", seed, 60) for seed in range(5)], ("etcd", 0, 8)],
    indirect=["brokers"],
)
async def test_no_acknowledged_offset_is_lost_whatever_happens(
    brokers: Brokers, seed: int, turns: int
) -> None:
    chaos = Chaos(brokers, seed)
    await chaos.run(turns)
    for name, offset in chaos.acknowledged.items():
        assert brokers.offset(name) == offset
