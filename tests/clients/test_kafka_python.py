"""What only kafka-python offers in its admin client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, KafkaAdminClient, MemberToRemove, OffsetSpec

from penstock.testing import ProcessBroker
from tests.clients.client import Client, ConsumerOptions, Message, numbered, until
from tests.clients.client import TopicPartition as At


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["kafka-python"]


@pytest.fixture
def admin(server: ProcessBroker) -> Iterator[Any]:
    made = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    yield made
    made.close()


def test_offsets_by_every_specification(client: Client, admin: Any, topic: str) -> None:
    client.produce(topic, [Message(value=b"v", timestamp_ms=t) for t in (1_000, 5_000, 3_000)])
    at = TopicPartition(topic, 0)
    for spec, offset in [
        (OffsetSpec.EARLIEST, 0),
        (OffsetSpec.LATEST, 3),
        (OffsetSpec.MAX_TIMESTAMP, 1),
        (OffsetSpec.EARLIEST_LOCAL, 0),
    ]:
        assert admin.list_partition_offsets({at: spec})[at].offset == offset


def test_producers_are_described(client: Client, admin: Any, topic: str) -> None:
    client.produce(topic, numbered(5), idempotent=True)
    at = TopicPartition(topic, 0)
    (producer,) = admin.describe_producers([at])[at].active_producers
    assert producer.last_sequence == 4


def test_log_directories_are_described(
    client: Client, admin: Any, topic: str, server: ProcessBroker
) -> None:
    client.produce(topic, numbered(5))
    assert server.data_dir in str(admin.describe_log_dirs())


def test_partitions_are_described_by_pages(client: Client, admin: Any, topic: str) -> None:
    client.grow(topic, 5)
    page = admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert [p["partition_index"] for p in page["topics"][0]["partitions"]] == [0, 1]
    assert page["next_cursor"]["partition_index"] == 2


def test_settings_are_altered_the_older_way_too(client: Client, admin: Any, topic: str) -> None:
    resource = ConfigResource("topic", topic, {"retention.ms": "60000"})
    answer = admin.alter_configs([resource], incremental=False)
    assert answer == {"topic": {topic: "OK"}}
    assert client.settings(topic)["retention.ms"] == "60000"


def test_a_static_member_is_sent_away(client: Client, admin: Any, topic: str, group: str) -> None:
    with client.consumer(ConsumerOptions(group=group, instance_id="gone")) as consumer:
        consumer.subscribe(topic)
        until("it is assigned", lambda: bool(consumer.owned), consumer)
    assert client.describe_group(group).instance_ids == {"gone"}
    admin.remove_group_members(group, [MemberToRemove(group_instance_id="gone")])
    assert client.describe_group(group).state == "empty"


def test_offsets_are_reset_to_an_end(client: Client, admin: Any, topic: str, group: str) -> None:
    client.produce(topic, numbered(5))
    client.set_group_offset(group, At(topic, 0), 2)
    admin.reset_group_offsets(group, {TopicPartition(topic, 0): OffsetSpec.LATEST})
    assert client.group_offsets(group) == {At(topic, 0): 5}
