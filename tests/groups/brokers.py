"""The group coordinators of several brokers in one process, and links to the store that fail on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import ApiError, ErrorCode
from penstock.groups import (
    Assignor,
    GroupCoordinator,
    JoinResult,
    NewOffset,
    SpreadCoordinator,
    SyncRequest,
)
from penstock.groups.records import TOPICS
from penstock.groups.slots import COORDINATORS, SLOTS, owner_of, slot_of
from penstock.metadata.base import BaseStore
from penstock.metadata.errors import LeaseLost, StoreUnavailable
from penstock.metadata.store import (
    CommitResult,
    Entry,
    Event,
    Lease,
    MetadataStore,
    Snapshot,
    Transaction,
    Watch,
)
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0)


class Link(BaseStore):
    """A broker's way to the store, with the faults of a network and of a process that is paused."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__()
        self._store = store
        self.hears = open_gate()  # else events of watches are held back
        self.reads = open_gate()  # else reads of many keys wait
        self.topics_found = open_gate()  # else what a read of all topics has found is held back
        self.has_found_topics = False
        self.sends = open_gate()  # else writes of groups and offsets wait before they are sent
        self.loses_answers = False  # commits are applied, yet nobody knows
        self.delays = False  # commits are given up, and applied by `arrive`
        self.delayed: list[Transaction] = []
        self.prefixes_read: list[str] = []
        self.commits = 0

    async def get(self, key: str) -> Entry | None:
        return await self._store.get(key)

    async def get_prefix(self, prefix: str) -> Snapshot:
        self.prefixes_read.append(prefix)
        await self.reads.wait()
        found = await self._store.get_prefix(prefix)
        if prefix == TOPICS:
            self.has_found_topics = True
            await self.topics_found.wait()
        return found

    async def commit(self, transaction: Transaction) -> CommitResult:
        self.commits += 1
        if any(not put.key.startswith(COORDINATORS) for put in transaction.puts):
            await self.sends.wait()
        if self.delays:
            self.delayed.append(transaction)
            raise StoreUnavailable("no answer yet")
        result = await self._store.commit(transaction)
        if self.loses_answers:
            raise StoreUnavailable("the answer is lost")
        return result

    async def arrive(self) -> list[CommitResult]:
        """What was given up reaches the store after all."""
        self.delays = False
        results = []
        for transaction in self.delayed:
            with contextlib.suppress(LeaseLost):
                results.append(await self._store.commit(transaction))
        self.delayed = []
        return results

    def watch(self, prefix: str, from_revision: int) -> Watch:
        return LinkedWatch(self._store.watch(prefix, from_revision), self.hears)

    async def lease(self, ttl_s: int) -> Lease:
        return await self._store.lease(ttl_s)

    async def _close(self) -> None:
        pass


class LinkedWatch:
    def __init__(self, watch: Watch, hears: asyncio.Event) -> None:
        self._watch = watch
        self._hears = hears

    def __aiter__(self) -> LinkedWatch:
        return self

    async def __anext__(self) -> Event:
        event = await anext(self._watch)
        await self._hears.wait()
        return event

    async def aclose(self) -> None:
        await self._watch.aclose()


def open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


class Node:
    """One broker's coordinators, with the part of its membership that they need."""

    def __init__(self, broker_id: int, store: MetadataStore) -> None:
        self.id = broker_id
        self.link = Link(store)
        self.is_sure = False  # whether the lease is held for certain
        self.groups = SpreadCoordinator(
            self.link, CONFIG, SystemClock(), broker_id, holds_lease=lambda: self.is_sure
        )
        self.lease: Lease | None = None
        self._incarnations = 0

    async def register(self) -> None:
        self._incarnations += 1
        self.lease = await self.link.lease(60)
        self.is_sure = True
        self.groups.registered(self.lease, f"{self.id}-{id(self)}-{self._incarnations}")

    def lose_lease(self) -> None:
        self.is_sure = False
        self.groups.unregistered()

    def pause(self) -> None:
        """As if the process stood still: it hears nothing, and does not know about its lease."""
        self.link.hears.clear()

    async def end_lease(self) -> None:
        """The lease runs out. Nobody but the store says so."""
        assert self.lease is not None
        await self.lease.revoke()

    @property
    def slots(self) -> set[int]:
        """The slots that it coordinates."""
        return {slot for slot in range(SLOTS) if self.serves(name_in(slot))}

    def serves(self, group_id: str) -> bool:
        try:
            return self.groups.of(group_id).is_loaded
        except ApiError:
            return False


class Brokers:
    """Brokers on one store. What the cluster's node does for the coordinators is done here by hand."""

    def __init__(self, connect: Callable[[], Awaitable[MetadataStore]]) -> None:
        self._connect = connect
        self.nodes: dict[int, Node] = {}
        self._started: list[Node] = []
        self.store: MetadataStore

    async def open(self) -> None:
        self.store = await self._connect()

    async def close(self) -> None:
        for node in self._started:
            link = node.link
            for gate in (link.hears, link.reads, link.topics_found, link.sends):
                gate.set()
            await node.groups.stop()
        await self.store.close()

    async def prepare(self, broker_id: int) -> Node:
        """A broker that watches, and is not registered."""
        node = Node(broker_id, self.store)
        self._started.append(node)
        await node.groups.start()
        return node

    async def start(self, *ids: int) -> None:
        """Start brokers, and wait until every slot is where it belongs."""
        for broker_id in ids:
            node = await self.prepare(broker_id)
            await node.register()
            self.nodes[broker_id] = node
        self.tell()
        await self.settled()

    def tell(self) -> None:
        """Everybody hears who is there. (Those who are gone hear nothing.)"""
        for node in self.nodes.values():
            node.groups.brokers_changed(tuple(self.nodes))

    def gone(self, broker_id: int) -> Node:
        """The others see that the broker's registration is gone."""
        node = self.nodes.pop(broker_id)
        self.tell()
        return node

    async def settled(self) -> None:
        """Every slot is coordinated by the broker that it belongs to, and all know it."""
        for slot in range(SLOTS):
            name, owner = name_in(slot), owner_of(slot, self.nodes)
            assert owner is not None
            await until(lambda name=name, owner=owner: self.nodes[owner].serves(name))  # type: ignore[misc]
            for node in self.nodes.values():
                await until(
                    lambda node=node, name=name, owner=owner: (  # type: ignore[misc]
                        node.groups.coordinator_of(name) == owner
                    )
                )

    # -- what clients do, who look for the coordinator first

    def coordinator(self, group_id: str = "g") -> Node:
        owner = owner_of(slot_of(group_id), self.nodes)
        assert owner is not None
        return self.nodes[owner]

    def groups(self, group_id: str = "g") -> GroupCoordinator:
        return self.coordinator(group_id).groups.of(group_id)

    async def stable(self, group_id: str = "g") -> JoinResult:
        """A stable group of one member, with the assignment `all`."""
        member = await join(self.groups(group_id), group_id)
        synced = await sync(self.groups(group_id), group_id, member, {member.member_id: b"all"})
        assert synced == b"all"
        return member

    async def commit(
        self, offset: int, group_id: str = "g", topic: str = "t", by: JoinResult | None = None
    ) -> ErrorCode:
        return await commit(self.groups(group_id), offset, group_id, topic, by)

    def offset(self, group_id: str = "g", topic: str = "t") -> int | None:
        kept = self.groups(group_id).offsets(group_id).get(topic, 0)
        return None if kept is None else kept.offset

    async def commit_somehow(self, offset: int, group_id: str = "g") -> None:
        """As a client does: until it is acknowledged, wherever the coordinator may be."""
        while True:
            for node in list(self.nodes.values()):
                try:
                    error = await commit(node.groups.of(group_id), offset, group_id)
                except ApiError as failure:
                    error = failure.code
                if error is ErrorCode.none:
                    return
                assert error in RETRIABLE, error
            await asyncio.sleep(0.001)


RETRIABLE = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
}


async def join(groups: GroupCoordinator, group_id: str, member_id: str = "") -> JoinResult:
    return await groups.join(
        group_id,
        member_id=member_id,
        group_instance_id=None,
        client_id="client",
        client_host="host",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[Assignor(name="range", metadata=b"")],
        requires_member_id=False,
        can_skip_assignment=True,
    )


async def sync(
    groups: GroupCoordinator,
    group_id: str,
    member: JoinResult,
    assignments: Mapping[str, bytes] | None = None,
) -> bytes:
    request = SyncRequest(
        member_id=member.member_id,
        generation_id=member.generation_id,
        assignments=assignments or {},
    )
    result = await groups.sync(group_id, request)
    if result.error_code is not ErrorCode.none:
        raise ApiError(result.error_code)
    return result.assignment


async def commit(
    groups: GroupCoordinator,
    offset: int,
    group_id: str = "g",
    topic: str = "t",
    by: JoinResult | None = None,
) -> ErrorCode:
    errors = await groups.commit_offsets(
        group_id,
        {TopicPartition(topic, 0): NewOffset(offset=offset)},
        member_id="" if by is None else by.member_id,
        generation_id=-1 if by is None else by.generation_id,
    )
    (error,) = errors.values()
    return error


def error_of(call: Callable[[], Any]) -> ErrorCode:
    try:
        call()
    except ApiError as error:
        return error.code
    return ErrorCode.none


def name_in(slot: int) -> str:
    """The name of a group in the slot."""
    return _NAMES[slot]


def _names() -> dict[int, str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(slot_of(f"probe-{number}"), f"probe-{number}")
        number += 1
    return found


_NAMES = _names()


async def until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.002)
