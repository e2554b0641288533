"""Topics, settings, records and groups, managed through each client's admin API."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.errors import ErrorCode
from penstock.testing import ProcessBroker, broker_process
from tests.clients.client import (
    DEADLINE_S,
    Client,
    CommittedOffset,
    Consumer,
    ConsumerOptions,
    Refused,
    TopicPartition,
    numbered,
    until,
    values,
)
from tests.clients.conftest import PYTHON_CLIENTS


def assert_refused(code: ErrorCode, work: Callable[[], object]) -> None:
    with pytest.raises(Refused) as refused:
        work()
    assert ErrorCode(refused.value.code) is code


# Topics


def test_a_topic_is_created_listed_described_and_deleted(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("topic")
    client.create_topic(name, partitions=3)
    assert name in client.topics()
    assert client.partition_leaders(name) == [0, 0, 0]
    client.delete_topic(name)
    assert name not in client.topics()
    assert_refused(ErrorCode.unknown_topic_or_partition, lambda: client.delete_topic(name))


def test_a_topic_of_a_deleted_ones_name_is_empty(client: Client, topic: str) -> None:
    client.produce(topic, numbered(5))
    client.delete_topic(topic)
    client.create_topic(topic)
    client.produce(topic, numbered(1, prefix="new"))
    assert values(client.read_all(topic)) == [b"new-0"]


def test_validation_alone_creates_nothing(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("topic")
    client.create_topic(name, validate_only=True)
    assert name not in client.topics()


def test_a_name_is_taken_once(client: Client, topic: str) -> None:
    assert_refused(ErrorCode.topic_already_exists, lambda: client.create_topic(topic))


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        pytest.param({"name": "no/slash"}, ErrorCode.invalid_topic_exception, id="name"),
        pytest.param({"name": "n" * 250}, ErrorCode.invalid_topic_exception, id="length"),
        pytest.param({"partitions": 0}, ErrorCode.invalid_partitions, id="partitions"),
        pytest.param({"replicas": 3}, ErrorCode.invalid_replication_factor, id="replicas"),
        pytest.param({"settings": {"no.such": "1"}}, ErrorCode.invalid_config, id="setting"),
        pytest.param({"settings": {"retention.ms": "x"}}, ErrorCode.invalid_config, id="value"),
    ],
)
def test_what_breaks_a_rule_is_not_created(
    client: Client, unique: Callable[[str], str], wanted: dict[str, object], code: ErrorCode
) -> None:
    if client.name == "confluent-kafka" and wanted.get("partitions") == 0:
        pytest.skip("confluent-kafka checks the partition count itself")
    arguments = {"name": unique("topic"), **wanted}
    assert_refused(code, lambda: client.create_topic(**arguments))  # type: ignore[arg-type]


def test_partitions_are_added_and_never_taken_away(client: Client, topic: str) -> None:
    client.grow(topic, 3)
    assert client.partition_leaders(topic) == [0, 0, 0]
    client.produce(topic, numbered(1), partition=2)
    assert_refused(ErrorCode.invalid_partitions, lambda: client.grow(topic, 2))
    assert_refused(ErrorCode.invalid_partitions, lambda: client.grow(topic, 3))


def test_records_before_an_offset_are_deleted(client: Client, topic: str) -> None:
    client.produce(topic, numbered(10))
    at = TopicPartition(topic, 0)
    assert client.delete_records(at, 6) == 6
    assert values(client.read_all(topic)) == [b"value-6", b"value-7", b"value-8", b"value-9"]
    assert_refused(ErrorCode.offset_out_of_range, lambda: client.delete_records(at, 11))
    assert client.delete_records(at, -1) == 10


# Settings


def test_a_topic_has_its_own_settings_over_the_defaults(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("topic")
    client.create_topic(name, settings={"retention.ms": "60000"})
    assert client.settings(name)["retention.ms"] == "60000"
    assert client.settings(name)["cleanup.policy"] == "delete"
    client.set_setting(name, "retention.ms", "70000")
    assert client.settings(name)["retention.ms"] == "70000"


def test_a_setting_that_is_reset_is_the_default_again(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("topic")
    client.create_topic(name, settings={"retention.ms": "60000", "segment.bytes": "5000000"})
    client.reset_setting(name, "retention.ms")
    assert client.settings(name)["retention.ms"] == "604800000"
    assert client.settings(name)["segment.bytes"] == "5000000"


def test_a_setting_counts_as_soon_as_it_is_changed(client: Client, topic: str) -> None:
    client.set_setting(topic, "max.message.bytes", "1000")
    assert_refused(
        ErrorCode.message_too_large, lambda: client.produce(topic, numbered(1, size=2_000))
    )


def test_an_invalid_setting_is_refused(client: Client, topic: str) -> None:
    assert_refused(
        ErrorCode.invalid_config, lambda: client.set_setting(topic, "retention.ms", "soon")
    )
    assert_refused(ErrorCode.invalid_config, lambda: client.set_setting(topic, "no.such", "1"))


def test_the_broker_describes_itself(client: Client, server: ProcessBroker) -> None:
    assert client.broker_ids() == {0}
    settings = client.broker_settings(0)
    assert settings["listeners"] == server.bootstrap
    assert settings["message.max.bytes"] == "1048588"


# Groups


@pytest.fixture
def member(client: Client, topic: str, group: str) -> Iterator[Consumer]:
    """The only member of a group, assigned and with one commit."""
    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe(topic)
        until("it is assigned", lambda: bool(consumer.owned), consumer)
        consumer.commit({TopicPartition(topic, 0): CommittedOffset(3)})
        yield consumer


def test_a_group_is_listed_and_described(
    client: Client, member: Consumer, group: str, topic: str
) -> None:
    assert group in client.groups()
    described = client.describe_group(group)
    assert (described.state, described.assignor) == ("stable", "range")
    assert described.assignments == [{TopicPartition(topic, 0)}]
    member.close()
    assert client.describe_group(group).state == "empty"


def test_a_static_member_is_described_by_its_name(client: Client, topic: str, group: str) -> None:
    if client.name == "aiokafka":
        pytest.skip("aiokafka describes groups by an older version of the protocol")
    with client.consumer(ConsumerOptions(group=group, instance_id="the-one")) as consumer:
        consumer.subscribe(topic)
        until("it is assigned", lambda: bool(consumer.owned), consumer)
        assert client.describe_group(group).instance_ids == {"the-one"}


def test_a_group_is_deleted_when_it_is_empty(client: Client, member: Consumer, group: str) -> None:
    assert_refused(ErrorCode.non_empty_group, lambda: client.delete_group(group))
    member.close()
    client.delete_group(group)
    assert group not in client.groups()
    assert client.group_offsets(group) == {}
    assert_refused(ErrorCode.group_id_not_found, lambda: client.delete_group(group))


def test_the_offsets_of_an_empty_group_are_set_by_hand(
    client: Client, topic: str, group: str
) -> None:
    client.produce(topic, numbered(10))
    at = TopicPartition(topic, 0)
    client.set_group_offset(group, at, 8)
    assert client.group_offsets(group) == {at: 8}
    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe(topic)
        assert values(consumer.read(2)) == [b"value-8", b"value-9"]


def test_the_offsets_of_a_group_at_work_are_its_own(
    client: Client, member: Consumer, group: str, topic: str
) -> None:
    at = TopicPartition(topic, 0)
    assert_refused(ErrorCode.unknown_member_id, lambda: client.set_group_offset(group, at, 0))
    assert client.group_offsets(group) == {at: 3}


def test_an_offset_is_deleted_when_nobody_reads_the_topic(
    client: Client, member: Consumer, group: str, topic: str
) -> None:
    at = TopicPartition(topic, 0)
    assert_refused(
        ErrorCode.group_subscribed_to_topic, lambda: client.delete_group_offset(group, at)
    )
    member.close()
    client.delete_group_offset(group, at)
    assert client.group_offsets(group) == {}


def test_a_deleted_topic_takes_its_offsets_along(
    client: Client, member: Consumer, group: str, topic: str
) -> None:
    member.close()
    client.delete_topic(topic)
    assert client.group_offsets(group) == {}


# Topics that are not there


def test_a_topic_is_created_when_it_is_written_to(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("created")
    client.produce(name, numbered(1))
    assert values(client.read_all(name)) == [b"value-0"]


def test_a_consumer_may_wait_for_a_topic_without_creating_it(
    client: Client, unique: Callable[[str], str], group: str
) -> None:
    if not client.chooses_creation:
        pytest.skip(f"{client.name} always asks for creation")
    name = unique("awaited")
    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe(name)
        assert_refused(ErrorCode.unknown_topic_or_partition, lambda: consumer.poll(DEADLINE_S))
        assert name not in client.topics()
        client.create_topic(name)
        client.produce(name, numbered(1))
        assert values(consumer.read(1)) == [b"value-0"]


@pytest.fixture(scope="module")
def strict_clients() -> Iterator[dict[str, Client]]:
    """Clients of a broker that creates no topics."""
    with broker_process(auto_create_topics=False) as running:
        made = {kind.name: kind(running.bootstrap) for kind in PYTHON_CLIENTS}
        yield made
        for client in made.values():
            client.close()


def test_a_broker_may_create_no_topics(
    strict_clients: dict[str, Client], client: Client, unique: Callable[[str], str]
) -> None:
    strict = strict_clients[client.name]
    name = unique("unknown")
    assert_refused(ErrorCode.unknown_topic_or_partition, lambda: strict.partition_leaders(name))
    assert name not in strict.topics()
