"""One broker: its topics, its groups and the jobs that keep them, behind every front door."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.topics import TopicCatalog
    from penstock.clock import Clock
    from penstock.groups import GroupCoordinator
    from penstock.log import LogStore
    from penstock.metadata import MetadataStore
    from penstock.model import BrokerInfo
    from penstock.settings import BrokerConfig


class Broker:
    """What a front door may ask for. Runs on one event loop; nothing here is thread-safe."""

    config: BrokerConfig
    info: BrokerInfo  # as advertised to clients
    cluster_id: str
    clock: Clock
    store: MetadataStore
    logs: LogStore
    topics: TopicCatalog
    groups: GroupCoordinator
