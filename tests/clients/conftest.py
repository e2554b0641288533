"""One broker for all tests of a worker, and every client that is to be had."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from penstock.testing import ProcessBroker, broker_process
from tests.clients import jvm, kcat
from tests.clients.adapters.aio import AiokafkaClient
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.client import Client
from tests.clients.peers import JavaPeer, KcatPeer, Peer, PythonPeer

PYTHON_CLIENTS: tuple[type[Client], ...] = (ConfluentClient, KafkaPythonClient, AiokafkaClient)


@pytest.fixture(scope="session")
def server() -> Iterator[ProcessBroker]:
    """A broker as people run it: a process of its own. Sessions may be short: tests await their end."""
    with broker_process(group_session_timeout_ms_min=500) as running:
        yield running


@pytest.fixture(scope="session")
def clients(server: ProcessBroker) -> Iterator[dict[str, Client]]:
    """The Python clients by name."""
    made = {kind.name: kind(server.bootstrap) for kind in PYTHON_CLIENTS}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture(params=[kind.name for kind in PYTHON_CLIENTS])
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    """Each of the Python clients in turn: a test with this is a rule for all of them."""
    return clients[request.param]


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes a name that no other test has."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(client: Client, unique: Callable[[str], str]) -> str:
    """A new topic with one partition."""
    name = unique("topic")
    client.create_topic(name)
    return name


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    """The name of a group that is not there yet."""
    return unique("group")


@pytest.fixture(scope="session")
def java_classes() -> str:
    """A class path with the Java client; without it the tests that need it are skipped."""
    try:
        return jvm.class_path()
    except jvm.JavaMissing as reason:
        pytest.skip(f"the Java client is not to be had: {reason}")


@pytest.fixture(scope="session")
def java(java_classes: str) -> Iterator[jvm.Scenarios]:
    scenarios = jvm.Scenarios(java_classes)
    yield scenarios
    scenarios.close()


@pytest.fixture
def peers(
    request: pytest.FixtureRequest, clients: dict[str, Client], server: ProcessBroker
) -> Callable[[str], Peer]:
    """Any client by its name, as one that writes and reads; skips if it is not to be had."""

    def find(name: str) -> Peer:
        if name == "kcat":
            request.getfixturevalue("kcat_command")
            return KcatPeer(server.bootstrap)
        if name == "java":
            return JavaPeer(server.bootstrap, request.getfixturevalue("java"))
        return PythonPeer(clients[name])

    return find


@pytest.fixture(scope="session")
def kcat_command() -> None:
    if not kcat.is_there():
        pytest.skip("there is no `kcat` on the PATH; Debian and Ubuntu have a package of that name")
