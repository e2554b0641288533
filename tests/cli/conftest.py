"""The real `penstock` command in a process of its own, against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from penstock.testing import TestBroker, broker
from tests.cli.command import Penstock


@pytest.fixture(scope="session")
def running_broker() -> Iterator[TestBroker]:
    """One broker for all tests of a worker: topic and group names are each test's own."""
    with broker() as running:
        yield running


@pytest.fixture
def penstock_command(running_broker: TestBroker) -> Penstock:
    return Penstock(running_broker.bootstrap)


@pytest.fixture
def filled(running_broker: TestBroker) -> Callable[..., str]:
    """Makes a topic that holds the given lines, in one partition unless told otherwise."""

    def fill(*lines: str, partitions: int = 1) -> str:
        topic = running_broker.create_topic(partitions=partitions)
        producer = Producer({"bootstrap.servers": running_broker.bootstrap, "linger.ms": 0})
        for line in lines:
            producer.produce(topic, line)
        assert producer.flush(20) == 0
        return topic

    return fill
