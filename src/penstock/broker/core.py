"""One broker: its topics, its groups and the jobs that keep them, behind every front door."""

from __future__ import annotations

import os
import uuid
from typing import Final

from penstock.broker.topics import TopicCatalog
from penstock.clock import Clock, SystemClock
from penstock.groups import GroupCoordinator
from penstock.log import LogStore
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import MetadataStore
from penstock.model import BrokerInfo
from penstock.settings import BrokerConfig

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
    ) -> None:
        self.config = config
        self.info = info  # as advertised to clients
        self.cluster_id = cluster_id
        self.clock = clock
        self.store = store
        self.logs = logs
        self.topics = TopicCatalog(store, logs, config, info.id)
        self.groups = GroupCoordinator(store, config, clock, info.id)

    def find_broker(self, broker_id: int) -> BrokerInfo | None:
        """Where clients reach a broker that is there now."""
        return self.info if broker_id == self.info.id else None

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
            store = await SqliteStore.open(os.path.join(logs.own_directory, METADATA_FILE))
        except BaseException:
            await logs.close()
            raise
        try:
            broker = cls(config, info, await _cluster_id(store), store, logs, clock)
            broker.topics.on_delete(broker.groups.forget_topic)
            await broker.topics.load()
            await broker.groups.load()
            # A crash can come between a topic's deletion and that of the offsets committed for it.
            await broker.groups.retain_topics(lambda name: broker.topics.get(name) is not None)
            await broker.groups.start()
        except BaseException:
            await logs.close()
            await store.close()
            raise
        logs.start()
        return broker

    async def stop(self) -> None:
        """A clean stop: everything durable, so that the next start scans nothing."""
        await self.groups.stop()
        await self.topics.close()
        await self.logs.close()
        await self.store.close()


async def _cluster_id(store: MetadataStore) -> str:
    """The id this data directory was given when it was first used."""
    entry = await store.get(_CLUSTER_ID_KEY)
    if entry is not None:
        return entry.value.decode()
    cluster_id = uuid.uuid4().hex[:22]
    await store.put(_CLUSTER_ID_KEY, cluster_id.encode())
    return cluster_id
