"""Brokers for the front door's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.kafka.server import KafkaServer
from penstock.settings import BrokerConfig
from penstock.testing import ProcessBroker, ThreadBroker, broker, broker_process
from tests.kafka.wire import Wire


@pytest.fixture(scope="session")
def shared() -> Iterator[ThreadBroker]:
    """One broker for all tests of a worker; `create_topic()` gives each a topic of its own."""
    with broker() as running:
        yield running


@pytest.fixture
def own() -> Iterator[ThreadBroker]:
    """A broker of the test's own."""
    with broker() as running:
        yield running


@pytest.fixture
def process() -> Iterator[ProcessBroker]:
    """A broker of the test's own, in a process that can be killed and looked at from outside."""
    with broker_process() as running:
        yield running


@pytest.fixture
def wire(shared: ThreadBroker) -> Iterator[Wire]:
    with Wire(shared.bootstrap) as connection:
        yield connection


@pytest.fixture
def other(shared: ThreadBroker) -> Iterator[Wire]:
    """A second connection, somebody else's."""
    with Wire(shared.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(shared: ThreadBroker) -> str:
    return shared.create_topic()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KafkaServer]:
    """A broker on the test's own event loop, whose insides the test may look at and replace."""
    config = BrokerConfig(data_dir=str(tmp_path / "data"), addr="127.0.0.1:0")
    running = await KafkaServer.start(config)
    yield running
    await running.stop()
