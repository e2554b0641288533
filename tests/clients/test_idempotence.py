"""Idempotent producers: a batch that is sent again, because its answer was lost, is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.testing import broker_process
from tests.clients.client import Client, Placed, numbered, values
from tests.clients.conftest import PYTHON_CLIENTS
from tests.clients.jvm import Scenarios
from tests.clients.proxy import LossyProxy, lossy_proxy


@pytest.fixture(scope="module")
def network() -> Iterator[LossyProxy]:
    """A broker behind a proxy that loses answers when it is told to."""
    with (
        lossy_proxy() as proxy,
        broker_process(advertise_addr=proxy.address) as running,
    ):
        proxy.target = running.bootstrap
        yield proxy


@pytest.fixture(scope="module")
def lossy_clients(network: LossyProxy) -> Iterator[dict[str, Client]]:
    made = {kind.name: kind(network.address) for kind in PYTHON_CLIENTS}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture(params=[kind.name for kind in PYTHON_CLIENTS])
def lossy(request: pytest.FixtureRequest, lossy_clients: dict[str, Client]) -> Client:
    return lossy_clients[request.param]


def test_an_idempotent_producer_writes_once_and_in_order(
    lossy: Client, network: LossyProxy, unique: Callable[[str], str]
) -> None:
    topic = unique("once")
    lossy.create_topic(topic)
    written = numbered(300)
    network.losses = 3
    placed = lossy.produce(topic, written, idempotent=True, batch_bytes=500)
    assert network.losses <= 0, "answers were lost"
    assert values(lossy.read_all(topic)) == [message.value for message in written]
    assert placed == [Placed(0, offset) for offset in range(300)]


def test_another_producer_may_write_twice(
    lossy: Client, network: LossyProxy, unique: Callable[[str], str]
) -> None:
    """Not that it should: it shows that the test above is one."""
    topic = unique("twice")
    lossy.create_topic(topic)
    network.losses = 1
    lossy.produce(topic, numbered(1), idempotent=False)
    assert values(lossy.read_all(topic)) == [b"value-0", b"value-0"]


@pytest.mark.java
def test_the_java_producer_writes_once_and_in_order(java: Scenarios, network: LossyProxy) -> None:
    network.losses = 3
    java.run("records-idempotent", bootstrap=network.address)
    assert network.losses <= 0


def test_producers_have_ids_of_their_own(client: Client, topic: str) -> None:
    for _ in range(3):
        client.produce(topic, numbered(5), idempotent=True)
    assert values(client.read_all(topic)) == 3 * [message.value for message in numbered(5)]
