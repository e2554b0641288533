"""One broker: its topics, its groups and the jobs that keep them, behind every front door.

Alone, it keeps its metadata in SQLite beside its logs. With `etcd` it is a member of a cluster: the same
parts, but topics come from what the cluster agreed on (`ClusterTopics`), groups are those whose part of
the work this broker has (`SpreadCoordinator`), and a `ClusterNode` replicates.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Final

from penstock.broker.catalog import Catalog
from penstock.broker.topics import TopicCatalog
from penstock.clock import Clock, SystemClock
from penstock.errors import ConfigError
from penstock.groups import GroupCoordinator
from penstock.log import LogStore
from penstock.metadata.errors import RevisionMismatch
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import MetadataStore
from penstock.model import BrokerInfo
from penstock.settings import BrokerConfig

if TYPE_CHECKING:
    from penstock.cluster.node import ClusterNode
    from penstock.groups.spread import SpreadCoordinator

METADATA_FILE: Final = "metadata.db"
_CLUSTER_ID_KEY: Final = "cluster/id"


class Broker:
    """What a front door may ask for. Runs on one event loop; nothing here is thread-safe."""

    def __init__(
        self,
        config: BrokerConfig,
        info: BrokerInfo,
        cluster_id: str,
        store: MetadataStore,
        logs: LogStore,
        clock: Clock,
        topics: Catalog,
        groups: GroupCoordinator | SpreadCoordinator,
        node: ClusterNode | None = None,
    ) -> None:
        self.config = config
        self.info = info  # as advertised to clients
        self.cluster_id = cluster_id
        self.clock = clock
        self.store = store
        self.logs = logs
        self.topics = topics
        self.groups = groups
        self.node = node  # None: the broker is alone

    @classmethod
    async def start(
        cls, config: BrokerConfig, info: BrokerInfo, clock: Clock | None = None
    ) -> Broker:
        """Take the data directory, recover what is in it, and begin the background jobs.

        `PenstockError` with a clear text if that is impossible; nothing is left open then.
        """
        clock = clock or SystemClock()
        logs = LogStore(config, clock)
        try:
            if config.etcd:
                from penstock.broker import member

                broker = await member.join(config, info, logs, clock)
            else:
                broker = await cls._start_alone(config, info, logs, clock)
        except BaseException:
            await logs.close()
            raise
        logs.start()
        return broker

    @classmethod
    async def _start_alone(
        cls, config: BrokerConfig, info: BrokerInfo, logs: LogStore, clock: Clock
    ) -> Broker:
        if logs.cluster_id is not None:
            raise ConfigError(
                f"the data directory {logs.data_dir} belongs to cluster {logs.cluster_id}; start it"
                " with --etcd, or with another --data-dir"
            )
        store = await SqliteStore.open(os.path.join(logs.own_directory, METADATA_FILE))
        try:
            topics = TopicCatalog(store, logs, config, info.id)
            groups = GroupCoordinator(store, config, clock, info.id)
            cluster_id = await agreed_cluster_id(store)
            broker = cls(config, info, cluster_id, store, logs, clock, topics, groups)
            topics.on_delete(groups.forget_topic)
            await topics.load()
            await groups.load()
            # A crash can come between a topic's deletion and that of the offsets committed for it.
            await groups.retain_topics(lambda name: topics.get(name) is not None)
            await groups.start()
        except BaseException:
            await store.close()
            raise
        return broker

    # The cluster, as clients see it

    def brokers(self) -> list[BrokerInfo]:
        """Every broker that clients may turn to, by id."""
        if self.node is None:
            return [self.info]
        return [info for _, info in sorted(self.node.listed.items())]

    def registered_brokers(self) -> list[BrokerInfo]:
        """Every broker that is there at this moment, by id."""
        if self.node is None:
            return [self.info]
        return [info for info in self.brokers() if self.node.view.is_live(info.id)]

    def find_broker(self, broker_id: int) -> BrokerInfo | None:
        """The broker of this id, if it is there at this moment."""
        return next((info for info in self.registered_brokers() if info.id == broker_id), None)

    @property
    def controller_id(self) -> int:
        """The broker that decides for all; -1 while there is none."""
        if self.node is None:
            return self.info.id
        claim = self.node.view.controller
        if claim is None or not self.node.view.is_live(claim.value.broker):
            return -1
        return claim.value.broker

    # The end

    async def hand_over(self) -> None:
        """Before a stop, while requests are still served: let others take over what we lead."""
        if self.node is not None:
            from penstock.broker import member

            await member.hand_over(self)

    async def stop(self) -> None:
        """A clean stop: everything durable, so that the next start scans nothing."""
        await self.groups.stop()
        await self.topics.close()
        if self.node is not None:
            await self.node.stop()
        await self.logs.close()
        await self.store.close()


async def agreed_cluster_id(store: MetadataStore) -> str:
    """The id that this metadata store was given when it was first used."""
    while True:
        entry = await store.get(_CLUSTER_ID_KEY)
        if entry is not None:
            return entry.value.decode()
        cluster_id = uuid.uuid4().hex[:22]
        try:
            await store.put(_CLUSTER_ID_KEY, cluster_id.encode(), expected_revision=0)
        except RevisionMismatch:
            continue  # another broker was first
        return cluster_id
