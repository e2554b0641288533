"""News of the cluster reach everybody, whoever stumbles over them, and no outcome is waited for in vain."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.cluster.messages import ProposeIsr
from penstock.cluster.node import ClusterNode
from penstock.cluster.proposals import Proposals
from penstock.cluster.replica import Replica
from penstock.cluster.state import (
    TOPICS,
    TopicState,
    decode_partition,
    encode_topic,
    partition_key,
    topic_key,
)
from penstock.cluster.view import Change, ClusterView, TopicChanged
from penstock.log import LogStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import CommitResult, Snapshot, Transaction
from penstock.metadata.watching import Apply, PrefixWatcher
from penstock.model import BrokerInfo, TopicPartition
from penstock.settings import BrokerConfig, TopicConfig
from tests.cluster.wired import TOPIC, Stage, until

TOPIC_STATE = TopicState(name="t", id=uuid.uuid4(), partition_count=1)


class Observer:
    def __init__(self, *, stumbles: bool) -> None:
        self.stumbles = stumbles
        self.heard: list[Change] = []

    def changed(self, change: Change) -> None:
        self.heard.append(change)
        if self.stumbles:
            raise RuntimeError("a bug")


class Stumbling(MemoryStore):
    """Fails as no store should, as often as it is told to."""

    failures = 0

    async def get_prefix(self, prefix: str) -> Snapshot:
        self._stumble()
        return await super().get_prefix(prefix)

    async def commit(self, transaction: Transaction) -> CommitResult:
        self._stumble()
        return await super().commit(transaction)

    def _stumble(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a bug")


@pytest.fixture
async def store() -> AsyncIterator[Stumbling]:
    async with Stumbling(history_events_max=1) as store:
        yield store


async def test_one_who_stumbles_over_news_keeps_nobody_from_hearing_them(
    store: Stumbling, tmp_path: Path
) -> None:
    config = BrokerConfig(data_dir=str(tmp_path))
    logs = LogStore(config)
    node = ClusterNode(
        config=config,
        info=BrokerInfo(id=1, host="h", port=1),
        store=store,
        logs=logs,
        clock=SystemClock(),
        topic_config=lambda _: TopicConfig(),
    )
    first, second = Observer(stumbles=True), Observer(stumbles=False)
    node.observers += [first.changed, second.changed]
    node.apply(topic_key("t"), encode_topic(TOPIC_STATE), 1)
    assert first.heard == second.heard == [TopicChanged("t")]
    await logs.close()


async def test_a_watch_goes_on_behind_a_reading_that_stumbled(store: Stumbling) -> None:
    view = ClusterView()
    watcher = PrefixWatcher(store, TOPICS, lambda *news: void(view.apply(*news)), view.keys)
    await watcher.start()
    for number in range(3):  # more than the store keeps, before the watch has begun
        topic = replace(TOPIC_STATE, name=f"t{number}")
        await store.put(topic_key(topic.name), encode_topic(topic))
    store.failures = 1
    await until(lambda: len(view.topics) == 3, "all are known")
    await watcher.stop()


async def test_a_leader_proposes_again_behind_a_commit_that_stumbled(
    store: Stumbling, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    leader = await stage.add(1)
    await stage.create(leader)
    unknown: list[ProposeIsr] = []

    class Proposer(Replica):
        def proposal_unknown(self, proposal: ProposeIsr) -> None:
            unknown.append(proposal)

    proposals, tasks = proposals_to(store, lambda *_: None)
    stored = leader.view.partitions[TopicPartition(TOPIC, 0)]
    proposal = ProposeIsr(state=stored.value, revision=stored.revision)
    store.failures = 1
    proposals.add(Proposer(leader.hosted().replica.local), proposal)
    await until(lambda: unknown == [proposal], "it is told")
    await asyncio.gather(*tasks)
    await stage.stop()


async def test_of_two_proposals_for_a_partition_in_one_turn_the_later_is_written(
    store: Stumbling, tmp_path: Path
) -> None:
    """The partition was seen at a higher revision in between."""
    stage = Stage(tmp_path)
    leader = await stage.add(1)
    await stage.create(leader)
    replica = leader.hosted().replica
    state = leader.view.partitions[TopicPartition(TOPIC, 0)].value
    key = partition_key(TopicPartition(TOPIC, 0))
    first = await store.put(key, b"older")
    second = await store.put(key, b"newer")
    applied: list[str] = []
    proposals, tasks = proposals_to(store, lambda key, *_: applied.append(key))
    proposals.add(replica, ProposeIsr(state=state, revision=first))
    later = replace(state, partition_epoch=state.partition_epoch + 1)
    proposals.add(replica, ProposeIsr(state=later, revision=second))
    await until(lambda: applied == [key], "it is written")
    entry = await store.get(key)
    assert entry is not None
    assert decode_partition(entry) == later
    await asyncio.gather(*tasks)
    await stage.stop()


def proposals_to(store: Stumbling, apply: Apply) -> tuple[Proposals, list[asyncio.Task[None]]]:
    """With the tasks that they begin."""
    tasks: list[asyncio.Task[None]] = []
    run = asyncio.get_running_loop().create_task
    return Proposals(store, apply, lambda work: tasks.append(run(work))), tasks


def void(_: object) -> None:
    """For those who must return nothing."""
