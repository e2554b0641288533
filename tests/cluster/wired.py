"""Brokers that replicate over real sockets and real logs; only the metadata store is a dict.

Each has its front door, its replicas and its peers, on the test's event loop. What the store would hold
is written by the test with `write`, and everybody hears of it at once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.broker.replicated import ReplicatedPartition
from penstock.clock import SystemClock
from penstock.cluster.controller import BrokerReport
from penstock.cluster.fetching import Fetchers
from penstock.cluster.local import BrokerTerm
from penstock.cluster.messages import ProposeIsr, ReplicaFetch, ReplicaFetched
from penstock.cluster.peers import Peers
from penstock.cluster.replica import Replica
from penstock.cluster.replicas import Hosted, Replicas
from penstock.cluster.state import (
    BrokerRegistration,
    PartitionState,
    TopicState,
    broker_key,
    encode_broker,
    encode_partition,
    encode_topic,
    partition_cluster_id,
    partition_key,
    topic_key,
)
from penstock.cluster.view import BrokerChanged, ClusterView, PartitionChanged, TopicChanged
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import RawApi
from penstock.kafka.fetch_codec import FetchRequest, decode_request
from penstock.kafka.handlers import REGISTRY, fetch
from penstock.kafka.server import KafkaServer
from penstock.log import LogStore, PartitionLog
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig
from tests.kafka.batches import make_batch

TIMEOUT_S = 10.0
TOPIC = "t"


async def until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """For what happens on the event loop and tells nobody."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"timed out: {what}"
        await asyncio.sleep(0.001)


class Host:
    """Replicas, with a note of what the fetcher told them."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.answers: list[tuple[TopicPartition, ReplicaFetch, ReplicaFetched]] = []
        self.lost: list[TopicPartition] = []

    def fetched(self, replica: Replica, fetch: ReplicaFetch, answer: ReplicaFetched) -> None:
        size = None if answer.records is None else len(answer.records)
        self.answers.append((replica.local.partition, fetch, replace(answer, records=size)))
        self._replicas.fetched(replica, fetch, answer)

    def fetch_lost(self, replica: Replica, fetch: ReplicaFetch) -> None:
        self.lost.append(replica.local.partition)
        self._replicas.fetch_lost(replica, fetch)

    def errors(self) -> list[ErrorCode]:
        return [answer.error for _, _, answer in self.answers if answer.error is not None]

    def bytes_of(self, partition: TopicPartition) -> int:
        return sum(answer.records or 0 for name, _, answer in self.answers if name == partition)


class Member:
    """One broker."""

    def __init__(
        self, stage: Stage, number: int, directory: Path, server: KafkaServer, config: BrokerConfig
    ) -> None:
        self.stage = stage
        self.id = number
        self.server = server
        self.requests: list[FetchRequest] = []  # of its followers
        self.reports: list[BrokerReport] = []
        logs_config = replace(config, data_dir=str(directory / "replicas"))
        self.logs = LogStore(logs_config)
        self.view = ClusterView()
        self.term = BrokerTerm(id=number, storage_id=f"{number}.1")
        self.term.begin(str(1000 + number), asyncio.get_running_loop().time(), 1e6)
        self.replicas = Replicas(
            term=self.term,
            view=self.view,
            logs=self.logs,
            config=config,
            clock=SystemClock(),
            topic_config=lambda _: TopicConfig(),
            propose=self._propose,
            refresh=lambda _: None,
        )
        self.host = Host(self.replicas)
        self.peers = Peers(config)
        self.fetchers = Fetchers(self.peers, self.term, self.host, config)
        self.replicas.fetchers = self.fetchers
        self.replicas.start()
        self._serve()

    def _serve(self) -> None:
        door: Any = self.server._door
        door.resolve = self._resolve
        recording = RawApi("fetch", self._record, fetch.answer)
        door._registry = {**{key: REGISTRY[key] for key in (1, 12_001)}, 1: recording}
        node: Any = SimpleNamespace(on_report=self.reports.append)
        self.server.broker.node = node

    def _record(self, version: int, data: memoryview, position: int) -> FetchRequest:
        request = decode_request(version, data, position)
        self.requests.append(request)
        return request

    def _resolve(self, key: tuple[Any, int]) -> Any:
        topic, index = key
        if topic != self.stage.topic_id:
            return ApiError(ErrorCode.unknown_topic_id)
        return self.partition(index)

    def partition(self, index: int = 0) -> ReplicatedPartition:
        """As a front door sees it, and for the first time."""
        node: Any = SimpleNamespace(view=self.view, replicas=self.replicas, term=self.term)
        return ReplicatedPartition(
            TopicPartition(TOPIC, index), self.stage.topic_id, node, self.logs
        )

    def _propose(self, _: Replica, proposal: ProposeIsr) -> None:
        partition = next(
            name for name, stored in self.view.partitions.items()
            if stored.value.cluster_id == proposal.state.cluster_id
        )  # fmt: skip

        def write() -> None:
            if self.view.partitions[partition].revision == proposal.revision:
                self.stage.write_partition(partition, proposal.state)

        asyncio.get_running_loop().call_soon(write)

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        match self.view.apply(key, value, revision):
            case PartitionChanged(partition=partition):
                self.replicas.changed(partition, revision)
            case TopicChanged(topic=topic):
                self.replicas.topic_changed(topic)
            case BrokerChanged(broker=broker) if broker != self.id:
                registered = self.view.brokers.get(broker)
                address = None if registered is None else (registered.host, registered.port)
                self.peers.update(broker, address)
                self.replicas.brokers_changed()

    def hosted(self, index: int = 0) -> Hosted:
        found = self.replicas.get(TopicPartition(TOPIC, index))
        assert found is not None
        return found

    def log(self, index: int = 0) -> PartitionLog:
        return self.hosted(index).log

    def append(self, *values: bytes, index: int = 0) -> None:
        batch = memoryview(bytearray(make_batch(*values)))
        self.replicas.append(self.hosted(index), batch, 1)

    def contents(self, index: int = 0) -> bytes:
        """The bytes of all its segments."""
        log = self.log(index)
        files = sorted(Path(log.directory).glob("*.log"))
        return b"".join(path.read_bytes() for path in files)

    async def stop(self) -> None:
        await self.fetchers.close()
        await self.peers.close()
        await self.replicas.stop()
        self.server.broker.node = None  # which was there for reports only
        await self.server.stop()
        await self.logs.close()


def led_by(leader: Member, topic_id: uuid.UUID) -> PartitionState:
    return PartitionState(
        cluster_id=partition_cluster_id(topic_id, 0),
        replicas=(leader.id,),
        leader=leader.id,
        leader_incarnation=leader.term.incarnation,
        isr={leader.id: leader.term.storage_id},
    )


class Stage:
    """A few members and one topic."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self._directory = directory
        self._settings = settings
        self.members: dict[int, Member] = {}
        self.topic_id = uuid.uuid4()
        self.revision = 0
        self._store: dict[str, tuple[bytes | None, int]] = {}

    async def add(self, number: int, **settings: Any) -> Member:
        directory = self._directory / str(number)
        config = BrokerConfig(
            broker_id=number,
            addr=f"127.0.0.{number}:0",
            data_dir=str(directory / "data"),
            **{**self._settings, **settings},
        )
        server = await KafkaServer.start(config)
        member = self.members[number] = Member(self, number, directory, server, config)
        for key, (value, revision) in self._store.items():
            member.apply(key, value, revision)
        self.register(member)
        return member

    def register(self, member: Member, address: tuple[str, int] | None = None) -> None:
        host, port = address or member.server.address
        registration = BrokerRegistration(
            id=member.id,
            host=host,
            port=port,
            incarnation=member.term.incarnation,
            storage_id=member.term.storage_id,
        )
        self.write(broker_key(member.id), encode_broker(registration))

    def write(self, key: str, value: bytes | None) -> None:
        self.revision += 1
        self._store[key] = value, self.revision
        for member in tuple(self.members.values()):
            member.apply(key, value, self.revision)

    def write_partition(self, partition: TopicPartition, state: PartitionState) -> None:
        self.write(partition_key(partition), encode_partition(state))

    async def create(self, leader: Member, *followers: Member, partitions: int = 1) -> None:
        """The topic, led by one, in whose ISR it is alone. All logs are open on return."""
        topic = TopicState(name=TOPIC, id=self.topic_id, partition_count=partitions)
        self.write(topic_key(TOPIC), encode_topic(topic))
        members = (leader, *followers)
        for index in range(partitions):
            state = PartitionState(
                cluster_id=partition_cluster_id(self.topic_id, index),
                replicas=tuple(member.id for member in members),
                leader=leader.id,
                leader_incarnation=leader.term.incarnation,
                leader_epoch=1,
                isr={leader.id: leader.term.storage_id},
            )
            self.write_partition(TopicPartition(TOPIC, index), state)
        names = [TopicPartition(TOPIC, index) for index in range(partitions)]
        await until(
            lambda: all(member.replicas.get(name) for member in members for name in names),
            "logs are open",
        )
        ready = frozenset(member.id for member in members)
        for name in names:
            state = replace(self.state(name.partition), ready=ready)
            self.write_partition(name, state)

    def state(self, index: int = 0) -> PartitionState:
        partition = TopicPartition(TOPIC, index)
        return next(iter(self.members.values())).view.partitions[partition].value

    def elect(self, leader: Member, index: int = 0) -> None:
        state = self.state(index)
        elected = replace(
            state,
            leader=leader.id,
            leader_incarnation=leader.term.incarnation,
            leader_epoch=state.leader_epoch + 1,
            isr={**state.isr, leader.id: leader.term.storage_id},
        )
        self.write_partition(TopicPartition(TOPIC, index), elected)

    async def until_in_sync(self, *members: Member, partitions: int = 1) -> None:
        wanted = {member.id for member in members}
        await until(
            lambda: all(self.state(index).isr.keys() >= wanted for index in range(partitions)),
            f"{wanted} in sync",
        )

    async def until_followed(self, leader: Member, follower: Member, index: int = 0) -> None:
        await until(
            lambda: follower.log(index).log_end_offset == leader.log(index).log_end_offset,
            f"{follower.id} has all that {leader.id} has",
        )

    async def stop(self) -> None:
        for member in self.members.values():
            await member.stop()
