"""What only confluent-kafka offers of librdkafka's admin and consumer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from penstock.errors import ErrorCode
from penstock.testing import ProcessBroker, broker
from tests.clients.client import (
    DEADLINE_S,
    Client,
    ConsumerOptions,
    Message,
    Refused,
    numbered,
    until,
)
from tests.log.support import power_cut

admin: Any = confluent_kafka.admin  # whose types do not name all that it exports


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["confluent-kafka"]


@pytest.fixture
def rd_admin(server: ProcessBroker) -> Iterator[Any]:
    with admin.AdminClient({"bootstrap.servers": server.bootstrap}) as made:
        yield made


def test_offsets_by_every_specification(client: Client, rd_admin: Any, topic: str) -> None:
    client.produce(topic, [Message(value=b"v", timestamp_ms=t) for t in (1_000, 5_000, 3_000)])
    at = ck.TopicPartition(topic, 0)
    for spec, offset in [
        (admin.OffsetSpec.earliest(), 0),
        (admin.OffsetSpec.latest(), 3),
        (admin.OffsetSpec.max_timestamp(), 1),
        (admin.OffsetSpec.for_timestamp(2_000), 1),
        (admin.OffsetSpec.for_timestamp(9_000), -1),
    ]:
        answer = rd_admin.list_offsets({at: spec}, request_timeout=DEADLINE_S)
        assert answer[at].result(DEADLINE_S).offset == offset


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_the_older_way_to_alter_settings_replaces_all_of_them(
    client: Client, rd_admin: Any, unique: Callable[[str], str]
) -> None:
    topic = unique("topic")
    client.create_topic(topic, settings={"retention.ms": "60000", "segment.bytes": "5000000"})
    resource = admin.ConfigResource("topic", topic, set_config={"retention.ms": "70000"})
    rd_admin.alter_configs([resource])[resource].result(DEADLINE_S)
    settings = client.settings(topic)
    assert (settings["retention.ms"], settings["segment.bytes"]) == ("70000", "1073741824")


def test_groups_are_listed_by_state(client: Client, rd_admin: Any, topic: str, group: str) -> None:
    def listed(state: ck.ConsumerGroupState) -> set[str]:
        answer = rd_admin.list_consumer_groups(states={state}).result(DEADLINE_S)
        return {found.group_id for found in answer.valid}

    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe(topic)
        until("it is assigned", lambda: bool(consumer.owned), consumer)
        assert group in listed(ck.ConsumerGroupState.STABLE)
        assert group not in listed(ck.ConsumerGroupState.EMPTY)
    assert group in listed(ck.ConsumerGroupState.EMPTY)


def test_two_with_one_instance_id_are_not_let_be(client: Client, topic: str, group: str) -> None:
    options = ConsumerOptions(group=group, instance_id="one")
    with client.consumer(options) as old, client.consumer(options) as successor:
        old.subscribe(topic)
        until("the first is assigned", lambda: bool(old.owned), old)
        successor.subscribe(topic)
        with pytest.raises(Refused) as refused:
            until("the first is fenced", lambda: False, old, successor)
        assert refused.value.code in {ErrorCode.fenced_instance_id, ck.KafkaError._FATAL}
        until("the second has taken over", lambda: bool(successor.owned), successor)


def test_a_paused_partition_is_not_read_until_it_is_resumed(
    client: Client, server: ProcessBroker, topic: str
) -> None:
    client.produce(topic, numbered(3))
    at = ck.TopicPartition(topic, 0, 0)
    consumer = ck.Consumer({"bootstrap.servers": server.bootstrap, "group.id": "paused"})
    try:
        consumer.assign([at])
        consumer.pause([at])
        assert consumer.poll(0.3) is None
        consumer.resume([at])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.value() == b"value-0"
    finally:
        consumer.close()


def test_who_read_what_a_power_cut_took_misses_nothing_that_comes_in_its_place() -> None:
    with broker() as own:
        topic = own.create_topic(partitions=1)
        produce_one_by_one(own.bootstrap, topic, [b"lost-%d" % n for n in range(10)])
        settings = {"group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = ck.Consumer({"bootstrap.servers": own.bootstrap, **settings})
        consumer.subscribe([topic])
        assert values_up_to(consumer, b"lost-9")[-1] == b"lost-9"
        own.stop()
        data = Path(own.data_dir)
        segment = data / topic / "0" / f"{0:020d}.log"
        os.truncate(segment, segment.stat().st_size * 6 // 10)
        (segment.parent / "checkpoint").unlink()
        power_cut(data)
        own.start()
        produce_one_by_one(own.bootstrap, topic, [b"new-%d" % n for n in range(10)])
        assert values_up_to(consumer, b"new-9") == [b"new-%d" % n for n in range(10)]
        consumer.close()


def produce_one_by_one(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "acks": 1})
    for value in values:
        producer.produce(topic, value)
        assert producer.flush(DEADLINE_S) == 0


def values_up_to(consumer: Any, last: bytes) -> list[bytes]:
    values: list[bytes] = []
    while last not in values:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"only {values} came"
        if message.error() is None:  # else the broker was away
            values.append(message.value())
    return values
