"""A broker as a member of a cluster: its parts, put together on etcd."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.cluster_topics import ClusterTopics
from penstock.broker.core import Broker, agreed_cluster_id
from penstock.clock import Clock
from penstock.cluster.node import ClusterNode
from penstock.cluster.state import TopicState
from penstock.cluster.view import BrokerChanged, Change
from penstock.errors import ConfigError
from penstock.groups.spread import SpreadCoordinator
from penstock.log import LogStore
from penstock.metadata.errors import MetadataError, StoreUnavailable
from penstock.model import BrokerInfo
from penstock.settings import BrokerConfig, TopicConfig

if TYPE_CHECKING:
    from penstock.metadata.etcd import EtcdMetadataStore

__all__ = ["hand_over", "join"]

logger = logging.getLogger(__name__)

_GROUPS_HAND_OVER_S_MAX: Final = 5.0


async def join(config: BrokerConfig, info: BrokerInfo, logs: LogStore, clock: Clock) -> Broker:
    """Connect to etcd, register, and take part. Nothing is left open if it can not be."""
    store = await _connect(config, clock)
    try:
        cluster_id = await agreed_cluster_id(store)
        logs.claim_for(cluster_id, info.id)
        topics: ClusterTopics

        def topic_config(topic: TopicState) -> TopicConfig:
            return topics.topic_config(topic)

        node = ClusterNode(
            config=config, info=info, store=store, logs=logs, clock=clock, topic_config=topic_config
        )
        topics = ClusterTopics(store, config, node, logs)
        groups = SpreadCoordinator(
            store,
            config,
            clock,
            info.id,
            holds_lease=node.holds_lease,
        )
        topics.on_delete(groups.forget_topic)
        broker = Broker(config, info, cluster_id, store, logs, clock, topics, groups, node)
        node.observers += [topics.changed, partial(_tell_groups, node, groups)]
        node.registrants.append(groups)
        try:
            await node.start()
            await groups.start()
        except BaseException:
            await groups.stop()
            await node.stop()
            raise
    except BaseException:
        await store.close()
        raise
    return broker


def _tell_groups(node: ClusterNode, groups: SpreadCoordinator, change: Change) -> None:
    """Who is there to stay: their coordinators are spread over those."""
    if isinstance(change, BrokerChanged):
        brokers = node.view.brokers
        groups.brokers_changed([b for b in brokers if not brokers[b].is_leaving])


async def _connect(config: BrokerConfig, clock: Clock) -> EtcdMetadataStore:
    """Both may start at once, or etcd be away for a moment: it is waited for."""
    try:
        from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
        from penstock.metadata.etcd_client import EtcdSilent
    except ImportError as error:
        raise ConfigError("a cluster needs what `pip install penstock[cluster]` brings") from error
    etcd = EtcdConfig.parse(
        config.etcd,
        key_prefix=config.etcd_prefix,
        user=config.etcd_user or None,
        password=config.etcd_password or None,
        ca_file=config.etcd_ca or None,
        cert_file=config.etcd_cert or None,
        key_file=config.etcd_key or None,
    )
    patience_s = clock.monotonic_s() + config.etcd_wait_ms / 1000
    while True:
        try:
            return await EtcdMetadataStore.open(etcd, now=clock.monotonic_s)
        except StoreUnavailable as error:
            if isinstance(error, EtcdSilent) and clock.monotonic_s() < patience_s:
                logger.warning("waiting for etcd: %s", error)
                continue
            raise ConfigError(
                f"etcd can not be used at {config.etcd}: {error}; is it running, and --etcd right?"
            ) from error


async def hand_over(broker: Broker) -> None:
    """Let others lead our partitions and coordinate our groups, while we still answer."""
    assert broker.node is not None
    await broker.node.hand_over()
    assert isinstance(broker.groups, SpreadCoordinator)
    with contextlib.suppress(TimeoutError, MetadataError):
        async with asyncio.timeout(_GROUPS_HAND_OVER_S_MAX):
            await broker.groups.leave()
