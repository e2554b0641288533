"""Clients of every kind at the same group and the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.clients.client import (
    Client,
    CommittedOffset,
    Consumer,
    ConsumerOptions,
    TopicPartition,
    numbered,
    until,
)
from tests.clients.test_kcat import Member as KcatMember

from penstock.testing import ProcessBroker

PER_PARTITION = 10


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_members_of_every_kind_share_a_topic(
    request: pytest.FixtureRequest,
    stack: ExitStack,
    clients: dict[str, Client],
    server: ProcessBroker,
    unique: Callable[[str], str],
    group: str,
    tmp_path: Path,
) -> None:
    """The Python clients, and kcat and Java where they are to be had."""
    topic = unique("shared")
    partitions = 10
    clients["aiokafka"].create_topic(topic, partitions=partitions)
    received: list[Callable[[], list[str]]] = []

    members: list[Consumer] = []
    for client in clients.values():
        member = client.consumer(ConsumerOptions(group=group))
        stack.callback(member.close)
        member.subscribe(topic)
        members.append(member)
        received.append(lambda m=member: [(r.value or b"").decode() for r in m.received])  # type: ignore[misc]
    if is_there(request, "kcat_command"):
        kcat = KcatMember(server.bootstrap, group, topic, tmp_path / "kcat", "range")
        stack.callback(kcat.kill)
        received.append(lambda: [line.split()[1] for line in kcat.received()])
    if is_there(request, "java"):
        java = request.getfixturevalue("java")
        java.run("exchange-join", server.bootstrap, group, topic)
        stack.callback(java.run, "exchange-leave", server.bootstrap, group)
        received.append(
            lambda: java.run("exchange-member", server.bootstrap, group).split("|")[1].split()
        )

    def shared() -> bool:
        described = clients["confluent-kafka"].describe_group(group)
        shares = [len(assignment) for assignment in described.assignments]
        return described.state == "stable" and len(shares) == len(received) and min(shares) > 0

    until("every member has partitions", shared, *members)
    for partition, client in zip(range(partitions), 4 * list(clients.values()), strict=False):
        client.produce(topic, numbered(PER_PARTITION, prefix=str(partition)), partition=partition)

    def came() -> list[list[str]]:
        return [some() for some in received]

    wanted = partitions * PER_PARTITION
    until("all came", lambda: sum(len(some) for some in came()) >= wanted, *members)
    everything = [value for some in came() for value in some]
    assert len(set(everything)) == len(everything) == wanted
    assert all(came()), "every member got some"


def is_there(request: pytest.FixtureRequest, fixture: str) -> bool:
    try:
        request.getfixturevalue(fixture)
    except pytest.skip.Exception:
        return False
    return True


@pytest.mark.parametrize("reader", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_what_one_client_commits_another_goes_on_from(
    client: Client, clients: dict[str, Client], topic: str, group: str, reader: str
) -> None:
    client.produce(topic, numbered(10))
    at = TopicPartition(topic, 0)
    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.assign(at)
        consumer.commit({at: CommittedOffset(7, "a note")})
    other = clients[reader]
    assert other.group_offsets(group) == {at: 7}
    with other.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe(topic)
        assert consumer.read(3)[0].offset == 7
