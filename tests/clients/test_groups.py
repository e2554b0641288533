"""Consumer groups: members come and go, and every partition has one owner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.client import (
    Client,
    CommittedOffset,
    Consumer,
    ConsumerOptions,
    TopicPartition,
    numbered,
    until,
    values,
)

PARTITIONS = 6


class Crew:
    """The members of one group."""

    def __init__(self, client: Client, group: str, topic: str, stack: ExitStack) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._stack = stack

    def join(self, **options: object) -> Consumer:
        """A new member, which is closed at the end if it is not before."""
        made = ConsumerOptions(group=self._group, **options)  # type: ignore[arg-type]
        member = self._client.consumer(made)
        self._stack.callback(member.close)
        member.subscribe(self._topic)
        return member

    def settle(self, *wanted: tuple[Consumer, int]) -> None:
        """Wait until each member owns so many partitions, and all of them and the broker agree."""
        members = [member for member, _ in wanted]
        counts = [count for _, count in wanted]

        def is_settled() -> bool:
            shares = [member.owned for member in members]
            if [len(share) for share in shares] != counts:
                return False
            described = self._client.describe_group(self._group)
            return described.state == "stable" and sorted(
                sorted(share) for share in described.assignments
            ) == sorted(sorted(share) for share in shares)

        until(f"members own {counts} partitions", is_settled, *members)


@pytest.fixture
def wide(client: Client, unique: Callable[[str], str]) -> str:
    """A topic with six partitions."""
    name = unique("wide")
    client.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def crew(client: Client, wide: str, group: str) -> Iterator[Crew]:
    """A group that reads the wide topic, without members yet."""
    with ExitStack() as stack:
        yield Crew(client, group, wide, stack)


def partitions_of(member: Consumer) -> set[int]:
    return {at.partition for at in member.owned}


def each_assignor(client: Client) -> list[str]:
    return [*client.eager_assignors, *(["cooperative-sticky"] if client.is_cooperative else [])]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_partitions_are_shared_anew_when_members_join_and_leave(
    client: Client, crew: Crew, group: str, assignor: str
) -> None:
    if assignor not in each_assignor(client):
        pytest.skip(f"{client.name} has no {assignor} assignor")
    first = crew.join(assignor=assignor)
    crew.settle((first, 6))
    second = crew.join(assignor=assignor)
    crew.settle((first, 3), (second, 3))
    third = crew.join(assignor=assignor)
    crew.settle((first, 2), (second, 2), (third, 2))
    assert client.describe_group(group).assignor == assignor
    first.close()
    crew.settle((second, 3), (third, 3))
    third.close()
    crew.settle((second, 6))


def test_an_eager_rebalance_revokes_everything(client: Client, crew: Crew, wide: str) -> None:
    first = crew.join(assignor="range")
    crew.settle((first, 6))
    second = crew.join(assignor="range")
    crew.settle((first, 3), (second, 3))
    assert {TopicPartition(wide, i) for i in range(6)} in first.rebalances.revoked


def test_a_cooperative_rebalance_revokes_only_what_moves(client: Client, crew: Crew) -> None:
    if not client.is_cooperative:
        pytest.skip(f"{client.name} has no cooperative assignor")
    first = crew.join(assignor="cooperative-sticky")
    crew.settle((first, 6))
    second = crew.join(assignor="cooperative-sticky")
    crew.settle((first, 3), (second, 3))
    revoked: set[TopicPartition] = set().union(*first.rebalances.revoked)
    assert revoked == second.owned


def test_a_static_member_is_back_without_a_rebalance(client: Client, crew: Crew) -> None:
    stays = crew.join(instance_id="stays")
    restarts = crew.join(instance_id="restarts")
    crew.settle((stays, 3), (restarts, 3))
    before = restarts.owned
    rebalances = len(stays.rebalances.assigned)
    restarts.close()  # which does not leave the group
    restarted = crew.join(instance_id="restarts")
    crew.settle((stays, 3), (restarted, 3))
    assert restarted.owned == before
    assert len(stays.rebalances.assigned) == rebalances


def test_a_member_that_is_silent_for_a_session_is_missed(client: Client, crew: Crew) -> None:
    stays = crew.join()
    silent = crew.join(instance_id="silent", session_timeout_ms=800)
    crew.settle((stays, 3), (silent, 3))
    silent.close()  # as it is static, nobody is told
    since = time.monotonic()
    crew.settle((stays, 6))
    assert time.monotonic() - since > 0.4


def test_every_record_goes_to_one_member(client: Client, crew: Crew, wide: str) -> None:
    members = [crew.join(), crew.join()]
    crew.settle((members[0], 3), (members[1], 3))
    for partition in range(PARTITIONS):
        client.produce(wide, numbered(20, prefix=str(partition)), partition=partition)
    until("all came", lambda: sum(len(m.received) for m in members) >= 120, *members)
    received = [record.value for member in members for record in member.received]
    assert len(set(received)) == len(received) == 120
    for member in members:
        assert {record.partition for record in member.received} == partitions_of(member)


def test_what_was_committed_before_a_rebalance_is_not_read_again(
    client: Client, crew: Crew, wide: str
) -> None:
    for partition in range(PARTITIONS):
        client.produce(wide, numbered(10), partition=partition)
    first = crew.join()
    first.read(60)
    first.commit({TopicPartition(wide, i): CommittedOffset(10) for i in range(PARTITIONS)})
    second = crew.join()
    crew.settle((first, 3), (second, 3))
    for partition in range(PARTITIONS):
        client.produce(wide, numbered(1, prefix="new"), partition=partition)
    until("the new came", lambda: len(first.received) + len(second.received) >= 66, first, second)
    assert len(first.received) == 63
    assert {record.value for record in second.received} == {b"new-0"}


def test_a_member_reads_the_partitions_that_are_added(
    client: Client, crew: Crew, wide: str
) -> None:
    member = crew.join()
    crew.settle((member, 6))
    client.grow(wide, 8)
    client.produce(wide, numbered(1), partition=7)
    (record,) = member.read(1)
    assert (record.topic, record.partition) == (wide, 7)
    assert len(member.owned) == 8


def test_a_pattern_takes_in_topics_as_they_are_created(
    client: Client, group: str, unique: Callable[[str], str]
) -> None:
    prefix = unique("family")
    client.create_topic(f"{prefix}.one")
    client.produce(f"{prefix}.one", numbered(1, prefix="one"))
    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe_pattern(f"{prefix}.*")
        consumer.read(1)
        client.create_topic(f"{prefix}.two")
        client.produce(f"{prefix}.two", numbered(1, prefix="two"))
        while b"two-0" not in values(consumer.received):
            consumer.read(1)  # the first once more, as nothing is committed
        assert {at.topic for at in consumer.owned} == {f"{prefix}.one", f"{prefix}.two"}


def test_groups_do_not_disturb_each_other(client: Client, crew: Crew, wide: str) -> None:
    member = crew.join()
    crew.settle((member, 6))
    with client.consumer(ConsumerOptions(group=f"{wide}-other")) as other:
        other.subscribe(wide)
        until("the other has all, too", lambda: len(other.owned) == 6, other)
        crew.settle((member, 6))
    assert len(member.rebalances.assigned) == 1
