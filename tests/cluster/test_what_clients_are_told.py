"""Clients are told of brokers and leaders in a way that they can hold on to."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.broker.replicated import ReplicatedPartition
from penstock.cluster.state import (
    BrokerRegistration,
    PartitionState,
    broker_key,
    encode_broker,
    encode_partition,
    partition_cluster_id,
    partition_key,
)
from penstock.cluster.view import ClusterView
from penstock.errors import ErrorCode
from penstock.kafka.handlers.metadata import describe_partition
from penstock.kafka.server import KafkaServer
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.store import Delete, Transaction
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig
from penstock.testing.etcd import etcd

ORDERS = TopicPartition("orders", 0)
OTHER = BrokerRegistration(id=7, host="there", port=9092, incarnation="1", storage_id="disk 7")


def test_a_leader_that_is_gone_is_named_as_long_as_its_epoch_lasts() -> None:
    """Two leaders in one epoch, and "none" is one, leave some clients with neither."""
    view = ClusterView()
    node: Any = SimpleNamespace(view=view)
    topic_id = uuid.uuid4()
    partition = ReplicatedPartition(ORDERS, topic_id, node, logs=None)  # type: ignore[arg-type]
    state = PartitionState(
        cluster_id=partition_cluster_id(topic_id, 0),
        replicas=(7, 8),
        leader=7,
        leader_incarnation="1",
        leader_epoch=3,
        isr={7: "disk 7"},
    )
    view.apply(partition_key(ORDERS), encode_partition(state), 1)
    view.apply(broker_key(7), encode_broker(OTHER), 2)
    here = describe_partition(partition)
    assert (here.leader_id, here.leader_epoch, here.error_code) == (7, 3, ErrorCode.none)
    view.apply(broker_key(7), None, 3)
    gone = describe_partition(partition)
    assert (gone.leader_id, gone.leader_epoch) == (7, 3)
    assert gone.error_code is ErrorCode.leader_not_available
    assert gone.offline_replicas == (7, 8)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.01)


async def test_a_broker_that_is_gone_is_named_to_clients_for_a_while(tmp_path: Path) -> None:
    """When etcd was away all of them are gone at once; an empty list would be believed."""
    with etcd() as running:
        endpoints = running.endpoints
        config = BrokerConfig(
            data_dir=str(tmp_path / "data"), addr="127.0.0.1:0", etcd=",".join(endpoints)
        )
        server = await KafkaServer.start(config)
        broker = server.broker
        async with await EtcdMetadataStore.open(EtcdConfig(endpoints=endpoints)) as store:
            await store.put(broker_key(7), encode_broker(OTHER))
            await until(lambda: [info.id for info in broker.registered_brokers()] == [0, 7])
            both = (Delete(key=broker_key(7)), Delete(key=broker_key(0)))
            await store.commit(Transaction(deletes=both))
            await until(lambda: 7 not in {info.id for info in broker.registered_brokers()})
            assert [(info.id, info.host) for info in broker.brokers()][1] == (7, "there")
            assert broker.brokers()[0] == broker.info
            await until(lambda: [info.id for info in broker.brokers()] == [0])
        await server.stop()
