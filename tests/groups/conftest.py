"""A group driven by hand, a coordinator on each store, a whole broker, and several that share groups."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import Broker
from penstock.clock import ManualClock
from penstock.errors import ErrorCode
from penstock.groups import (
    Assignor,
    GroupCoordinator,
    JoinResult,
    Leaving,
    NewOffset,
    SyncRequest,
    SyncResult,
)
from penstock.groups.group import Group
from penstock.groups.messages import (
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    JoinRequest,
    Now,
    SetTimer,
    StoreGroup,
    TimerKey,
)
from penstock.groups.timers import Deadlines
from penstock.metadata.errors import StoreUnavailable
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import CommitResult, MetadataStore, Transaction
from penstock.model import BrokerInfo, TopicPartition
from penstock.settings import BrokerConfig
from penstock.testing.etcd import EtcdCluster, etcd
from tests.groups.brokers import Brokers


def subscription(*topics: str) -> bytes:
    """What a consumer tells its group: version, topics, user data."""
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def assignors(*names: str, metadata: bytes = b"") -> tuple[Assignor, ...]:
    return tuple(Assignor(name=name, metadata=metadata) for name in names)


@dataclass(eq=False)
class Asked:
    """A request that may have to wait for its answer."""

    joined: JoinResult | None = None
    synced: SyncResult | None = None

    @property
    def waits(self) -> bool:
        return self.joined is None and self.synced is None

    @property
    def error(self) -> ErrorCode:
        answer = self.joined or self.synced
        assert answer is not None, "no answer yet"
        return answer.error_code

    @property
    def member_id(self) -> str:
        assert self.joined is not None, "no answer yet"
        return self.joined.member_id

    @property
    def generation(self) -> int:
        assert self.joined is not None, "no answer yet"
        return self.joined.generation_id


@dataclass
class Machine:
    """One group whose effects are done at once: timers on a clock moved by hand, stores that succeed.

    With `holds_stores` they wait for `finish_store`.
    """

    config: BrokerConfig = field(default_factory=BrokerConfig)
    holds_stores: bool = False

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.group = Group("g", self.config, self.now)
        self.timers: Deadlines[TimerKey] = Deadlines()
        self.stores: list[StoreGroup] = []
        self._members = 0

    @property
    def now(self) -> Now:
        return Now(self.clock.monotonic_s(), self.clock.wall_ms())

    @property
    def state(self) -> str:
        return self.group.state.value

    # -- what clients do

    def join(
        self,
        member_id: str = "",
        *,
        name: str = "m",
        instance: str | None = None,
        protocols: Iterable[Assignor] = assignors("range"),
        protocol_type: str = "consumer",
        session_s: float = 10,
        rebalance_s: float = 60,
        requires_id: bool = False,
        can_skip: bool = False,
    ) -> Asked:
        """A join. The id it gets, if it has none, is `name` and a number."""
        asked = Asked()
        self._members += 1
        request = JoinRequest(
            member_id=member_id,
            new_member_id=f"{name}-{self._members}",
            group_instance_id=instance,
            client_id="client",
            client_host="host",
            session_timeout_ms=round(session_s * 1000),
            rebalance_timeout_ms=round(rebalance_s * 1000),
            protocol_type=protocol_type,
            protocols=tuple(protocols),
            requires_member_id=requires_id,
            can_skip_assignment=can_skip,
        )
        self.group.join(request, asked, self.now)
        self.perform()
        return asked

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        generation: int | None = None,
        **more: Any,
    ) -> Asked:
        asked = Asked()
        request = SyncRequest(
            member_id=member_id,
            generation_id=self.group.generation if generation is None else generation,
            assignments=assignments or {},
            **more,
        )
        self.group.sync(request, asked, self.now)
        self.perform()
        return asked

    def heartbeat(
        self, member_id: str, *, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        error = self.group.heartbeat(member_id, instance, generation, self.now)
        self.perform()
        return error

    def leave(self, member_id: str, *, instance: str | None = None) -> ErrorCode:
        error = self.group.leave(Leaving(member_id=member_id, group_instance_id=instance), self.now)
        self.perform()
        return error

    def commit(
        self, member_id: str = "", *, generation: int = -1, instance: str | None = None
    ) -> ErrorCode:
        error = self.group.check_commit(member_id, instance, generation, self.now)
        self.perform()
        return error

    # -- what happens

    def wait(self, seconds: float) -> None:
        """Let time pass; what is due on the way happens in its order."""
        until = self.clock.monotonic_s() + seconds
        while (wake := self.timers.next_wake()) is not None and wake <= until:
            self.clock.advance(max(wake - self.clock.monotonic_s(), 0))
            for timer in self.timers.pop_due(self.clock.monotonic_s()):
                self.group.expire(timer, self.now)
                self.perform()
        self.clock.advance(until - self.clock.monotonic_s())

    def perform(self) -> None:
        for effect in self.group.take_effects():
            match effect:
                case SetTimer(key, deadline_s):
                    self.timers.set(key, deadline_s)
                case CancelTimer(key):
                    self.timers.cancel(key)
                case AnswerJoin(reply, result):
                    assert isinstance(reply, Asked)
                    assert reply.joined is None, "answered twice"
                    reply.joined = result
                case AnswerSync(reply, synced):
                    assert isinstance(reply, Asked)
                    assert reply.synced is None, "answered twice"
                    reply.synced = synced
                case StoreGroup():
                    self.stores.append(effect)
                    if not self.holds_stores:
                        self.finish_store()

    def finish_store(self, error: ErrorCode = ErrorCode.none) -> None:
        self.group.stored(self.stores[-1].purpose, error, self.now)
        self.perform()

    # -- short cuts

    def stable(self, count: int = 1, *, instances: Iterable[str] = (), **more: Any) -> list[str]:
        """A stable group of `count` dynamic members and a static one for each of `instances`."""
        wanted: list[str | None] = [None] * count + list(instances)
        ids: list[str] = []
        for instance in wanted:
            newcomer = self.join(instance=instance, **more)
            rejoined = [self.join(member_id, **self._as(member_id), **more) for member_id in ids]
            assert not any(one.waits for one in rejoined)
            ids.append(newcomer.member_id)
            assert newcomer.error is ErrorCode.none
        leader = self.group.members.leader
        assert leader is not None
        for member_id in sorted(ids, key=lambda one: one != leader):
            done = self.sync(member_id, {one: f"of {one}".encode() for one in ids})
            assert done.error is ErrorCode.none
        assert self.state == "Stable"
        return ids

    def _as(self, member_id: str) -> dict[str, Any]:
        return {"instance": self.group.members[member_id].group_instance_id}


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def machine_with() -> Callable[..., Machine]:
    """A machine with settings other than the defaults."""
    return lambda **settings: Machine(BrokerConfig(**settings))


class FaultyStore(MemoryStore):
    """A memory store that refuses, or holds back, commits while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.commits = 0

    async def commit(self, transaction: Transaction) -> CommitResult:
        self.commits += 1
        await self.gate.wait()
        await asyncio.sleep(0)  # as with a disk: the answer comes in another turn of the loop
        if self.refuses:
            raise StoreUnavailable("the disk is full")
        return await super().commit(transaction)


@dataclass
class Coordination:
    """A coordinator on a store that outlives it."""

    store: MetadataStore
    clock: ManualClock
    config: BrokerConfig
    groups: GroupCoordinator

    async def restart(self, **settings: Any) -> None:
        await self.groups.stop()
        if settings:
            self.config = BrokerConfig(**settings)
        self.groups = GroupCoordinator(self.store, self.config, self.clock)
        await self.groups.load()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.groups.tick()

    def asks_to_join(
        self,
        group_id: str,
        member_id: str = "",
        *,
        instance: str | None = None,
        topics: Iterable[str] = ("t",),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
    ) -> asyncio.Task[JoinResult]:
        joining = self.groups.join(
            group_id,
            member_id=member_id,
            group_instance_id=instance,
            client_id="client",
            client_host="host",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=assignors("range", metadata=subscription(*topics)),
            requires_member_id=False,
            can_skip_assignment=True,
        )
        return asyncio.create_task(joining)

    async def joined(self, group_id: str = "g", member_id: str = "", **more: Any) -> JoinResult:
        return await self.asks_to_join(group_id, member_id, **more)

    def asks_to_sync(
        self, group_id: str, member: JoinResult, assignments: Mapping[str, bytes] | None = None
    ) -> asyncio.Task[SyncResult]:
        request = SyncRequest(
            member_id=member.member_id,
            generation_id=member.generation_id,
            assignments=assignments or {},
        )
        return asyncio.create_task(self.groups.sync(group_id, request))

    async def stable(self, group_id: str = "g", **more: Any) -> JoinResult:
        """A stable group of one member, with the assignment `all`."""
        member = await self.joined(group_id, **more)
        synced = await self.asks_to_sync(group_id, member, {member.member_id: b"all"})
        assert synced.error_code is ErrorCode.none
        return member

    async def commit(
        self, group_id: str = "g", *, by: JoinResult | None = None, **offsets: int
    ) -> ErrorCode:
        """Commit offsets named as `t_0=5`, by a member or by nobody; the one error of them all."""
        errors = await self.groups.commit_offsets(
            group_id,
            {at(name): NewOffset(offset=offset) for name, offset in offsets.items()},
            member_id="" if by is None else by.member_id,
            generation_id=-1 if by is None else by.generation_id,
        )
        (error,) = set(errors.values())
        return error

    def offsets(self, group_id: str = "g") -> dict[str, int]:
        table = self.groups.offsets(group_id)
        return {
            f"{topic}_{partition}": kept.offset
            for topic in sorted(table.topics())
            for partition, kept in table.of_topic(topic).items()
        }


def at(name: str) -> TopicPartition:
    """`t_0` is partition 0 of topic t."""
    topic, _, partition = name.rpartition("_")
    return TopicPartition(topic, int(partition))


async def coordination(store: MetadataStore, config: BrokerConfig | None = None) -> Coordination:
    config = config or BrokerConfig()
    clock = ManualClock()
    groups = GroupCoordinator(store, config, clock)
    await groups.load()
    return Coordination(store, clock, config, groups)


@pytest.fixture(params=["memory", "sqlite"])
async def any_coordination(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Coordination]:
    store: MetadataStore
    store = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "db")
    running = await coordination(store)
    yield running
    await running.groups.stop()
    await store.close()


@pytest.fixture
def faulty_store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
async def faulty(faulty_store: FaultyStore) -> AsyncIterator[Coordination]:
    """A coordinator on `faulty_store`."""
    running = await coordination(faulty_store)
    yield running
    faulty_store.gate.set()
    await running.groups.stop()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A whole broker, without its front door, with the topics `t` (2 partitions) and `u`."""
    config = BrokerConfig(data_dir=str(tmp_path / "data"))
    info = BrokerInfo(id=7, host="broker.example", port=19092)
    broker = await Broker.start(config, info, ManualClock())
    await broker.topics.create("t", 2)
    await broker.topics.create("u", 1)
    yield broker
    await broker.stop()


@pytest.fixture(scope="session")
def one_etcd() -> Iterator[EtcdCluster]:
    with etcd() as cluster:
        yield cluster


@pytest.fixture(params=["memory", "etcd"])
async def brokers(request: pytest.FixtureRequest) -> AsyncIterator[Brokers]:
    """Brokers on an empty store. None is started."""

    async def connect() -> MetadataStore:
        if request.param == "memory":
            return MemoryStore()
        cluster: EtcdCluster = request.getfixturevalue("one_etcd")
        prefix = f"{uuid.uuid4().hex}/"
        return await EtcdMetadataStore.open(
            EtcdConfig(endpoints=cluster.endpoints, key_prefix=prefix)
        )

    running = Brokers(connect)
    await running.open()
    await running.store.put("topics/t", b"")
    await running.store.put("topics/u", b"")
    yield running
    await running.close()
