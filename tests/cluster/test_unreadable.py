"""What the store says and this broker does not understand, or did not hear of, costs nobody their data."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.cluster.local import BrokerTerm
from penstock.cluster.replicas import Replicas
from penstock.cluster.state import (
    TOPICS,
    PartitionState,
    TopicState,
    encode_partition,
    encode_topic,
    partition_cluster_id,
    partition_key,
    topic_key,
)
from penstock.cluster.view import ClusterView
from penstock.log import LogStore
from penstock.metadata.errors import StoreCorrupt
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import Delete, Transaction
from penstock.metadata.watching import PrefixWatcher
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig
from tests.cluster.desk import Desk

ORDERS = TopicPartition("t", 0)
KEY = partition_key(ORDERS)
RIDDLE = b'{"written": "by a broker of the next century"}'


def puzzle(desk: Desk, key: str) -> None:
    desk.write(key, RIDDLE)
    with pytest.raises(StoreCorrupt):
        desk.watch(key)


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.create()
    made.open_all()
    return made


def test_a_controller_leaves_alone_a_partition_that_it_does_not_understand(desk: Desk) -> None:
    puzzle(desk, KEY)
    before = list(desk.committed)
    desk.settle(desk.controller.prefer([ORDERS]))
    assert desk.committed == before


def test_a_controller_deletes_no_partition_of_a_topic_that_it_does_not_understand() -> None:
    desk = Desk()
    desk.write(topic_key("t"), RIDDLE)
    desk.write(KEY, encode_partition(PartitionState(cluster_id="c", replicas=(1, 2, 3))))
    with pytest.raises(StoreCorrupt):
        desk.watch(topic_key("t"))
    desk.watch(KEY)
    assert desk.space.get(KEY) is not None


def test_what_was_known_of_a_partition_stays_until_it_can_be_read_again(desk: Desk) -> None:
    known = desk[0]
    puzzle(desk, KEY)
    assert desk[0] == known
    assert desk.view.unreadable == {KEY}
    desk.as_leader(0, isr=desk.isr(1, 2))
    assert not desk.view.unreadable
    assert desk[0].isr == desk.isr(1, 2)


@pytest.mark.parametrize(("is_readable", "stays"), [(True, False), (False, True)])
async def test_a_log_is_kept_at_the_start_if_what_the_store_knows_of_it_can_not_be_read(
    tmp_path: Path, is_readable: bool, stays: bool
) -> None:
    topic = TopicState(name="t", id=uuid.uuid4(), partition_count=1)
    view = ClusterView()
    view.apply(topic_key("t"), encode_topic(topic), 1)
    if not is_readable:
        with pytest.raises(StoreCorrupt):
            view.apply(KEY, RIDDLE, 2)
    config = BrokerConfig(data_dir=str(tmp_path))
    logs = LogStore(config)
    logs.open(ORDERS, TopicConfig(), cluster_id=partition_cluster_id(topic.id, 0))
    replicas = Replicas(
        term=BrokerTerm(id=1, storage_id="disk"),
        view=view,
        logs=logs,
        config=config,
        clock=SystemClock(),
        topic_config=lambda _: TopicConfig(),
        propose=lambda _, __: None,
        refresh=lambda _: None,
    )
    replicas.start()
    assert (tmp_path / "t" / "0").exists() is stays
    await replicas.stop()
    await logs.close()


async def test_a_key_that_only_our_own_commit_told_of_goes_when_a_new_reading_lacks_it() -> None:
    view = ClusterView()
    topic = TopicState(name="t", id=uuid.uuid4(), partition_count=1)
    async with MemoryStore() as store:
        revision = await store.put(topic_key("t"), encode_topic(topic))
        view.apply(topic_key("t"), encode_topic(topic), revision)
        await store.commit(Transaction(deletes=(Delete(key=topic_key("t")),)))

        def apply(key: str, value: bytes | None, revision: int) -> None:
            view.apply(key, value, revision)

        watcher = PrefixWatcher(store, TOPICS, apply, view.keys)
        await watcher.start()
        assert not view.topics
        await watcher.stop()
