from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.client.cluster import Cluster
from penstock.model import TopicPartition
from penstock.testing import ProcessBroker, ThreadBroker, broker_process


@pytest.fixture
def cluster(penstock_shared: ThreadBroker) -> Iterator[Cluster]:
    with Cluster(penstock_shared.bootstrap, retry_timeout_ms=10_000) as connected:
        yield connected


@pytest.fixture
def partition(penstock_shared: ThreadBroker) -> TopicPartition:
    return TopicPartition(penstock_shared.create_topic(), 0)


@pytest.fixture
def running() -> Iterator[ProcessBroker]:
    with broker_process() as process:
        yield process


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Readers and producers end their threads with their work."""
    yield
    deadline = time.monotonic() + 5
    while names := [t.name for t in threading.enumerate() if t.name.startswith(OURS)]:
        assert time.monotonic() < deadline, f"threads are left: {names}"
        time.sleep(0.01)


OURS = ("read ahead", "penstock producer")
