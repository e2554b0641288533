"""A real broker for tests: no Docker, no mocks, ready in a fraction of a second.

    from penstock.testing import broker

    def test_orders() -> None:
        with broker() as b:
            producer = Producer({"bootstrap.servers": b.bootstrap})
            …

`broker()` runs in a thread of the test's process; `broker_process()` is a process of its own that a
test can kill; `cluster()` is several of them with an etcd. In pytest, the fixtures `penstock`,
`penstock_shared`, `penstock_broker` and `penstock_cluster` do the same: see `penstock.testing.plugin`.
"""

from __future__ import annotations

from penstock.testing.brokers import ProcessBroker, TestBroker, ThreadBroker, broker, broker_process
from penstock.testing.clusters import ClusterBroker, TestCluster, cluster

__all__ = [
    "ClusterBroker",
    "ProcessBroker",
    "TestBroker",
    "TestCluster",
    "ThreadBroker",
    "broker",
    "broker_process",
    "cluster",
]
