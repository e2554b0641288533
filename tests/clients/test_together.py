"""Clients of every kind at the same group and the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from penstock.testing import ProcessBroker
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

PARTITIONS = 10
PER_PARTITION = 10


class Everyone:
    """A member of each kind in one group. Those of Python have to be polled; the others see to it."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.polled: dict[str, Consumer] = {}
        self.received: dict[str, Callable[[], list[str]]] = {}  # values, by the member's name
        self.leave: dict[str, Callable[[], object]] = {}

    def add(
        self, name: str, received: Callable[[], list[str]], leave: Callable[[], object]
    ) -> None:
        self.received[name] = received
        self.leave[name] = leave

    def add_python(self, name: str, member: Consumer) -> None:
        member.subscribe(self.topic)
        self.polled[name] = member
        self.add(name, lambda: [(r.value or b"").decode() for r in member.received], member.close)

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        until(what, condition, *self.polled.values())

    def all_received(self) -> list[list[str]]:
        return [values() for values in self.received.values()]


@pytest.fixture
def everyone(
    request: pytest.FixtureRequest,
    clients: dict[str, Client],
    server: ProcessBroker,
    unique: Callable[[str], str],
    group: str,
    tmp_path: Path,
) -> Iterator[Everyone]:
    """The Python clients, and kcat and Java where they are to be had."""
    topic = unique("shared")
    clients["aiokafka"].create_topic(topic, partitions=PARTITIONS)
    members = Everyone(group, topic)
    with ExitStack() as stack:
        for name, client in clients.items():
            member = client.consumer(ConsumerOptions(group=group))
            stack.callback(member.close)
            members.add_python(name, member)
        if is_there(request, "kcat_command"):
            kcat = KcatMember(server.bootstrap, group, topic, tmp_path / "kcat", "range")
            stack.callback(kcat.kill)
            members.add("kcat", lambda: [line.split()[1] for line in kcat.received()], kcat.leave)
        if is_there(request, "java"):
            run = partial(request.getfixturevalue("java").run, bootstrap=server.bootstrap)
            run("exchange-join", group, topic)
            leave = partial(run, "exchange-leave", group)
            stack.callback(leave)
            members.add("java", lambda: run("exchange-member", group).split("|")[1].split(), leave)
        yield members


def is_there(request: pytest.FixtureRequest, fixture: str) -> bool:
    try:
        request.getfixturevalue(fixture)
    except pytest.skip.Exception:
        return False
    return True


def test_members_of_every_kind_share_a_topic_and_leave_one_by_one(
    everyone: Everyone, clients: dict[str, Client]
) -> None:
    def is_shared() -> bool:
        described = clients["confluent-kafka"].describe_group(everyone.group)
        shares = [len(assignment) for assignment in described.assignments]
        return described.state == "stable" and len(shares) == len(everyone.leave) and all(shares)

    everyone.until("every member has partitions", is_shared)
    for partition, client in zip(range(PARTITIONS), cycle(clients.values()), strict=False):
        messages = numbered(PER_PARTITION, prefix=str(partition))
        client.produce(everyone.topic, messages, partition=partition)

    wanted = PARTITIONS * PER_PARTITION
    everyone.until("all came", lambda: sum(map(len, everyone.all_received())) >= wanted)
    values = [value for some in everyone.all_received() for value in some]
    assert len(set(values)) == len(values) == wanted
    assert all(everyone.all_received()), "every member got some"

    while len(everyone.leave) > 1:
        name, leave = everyone.leave.popitem()
        everyone.polled.pop(name, None)
        leave()
        everyone.until(f"others have what {name} had", is_shared)


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
