"""Records come back as they were written: bytes, order, headers, timestamps, sizes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.errors import ErrorCode
from tests.clients.client import (
    Acks,
    Client,
    ConsumerOptions,
    Message,
    Placed,
    Refused,
    TopicPartition,
    numbered,
    values,
)

# One record without key and headers in an uncompressed batch, of the default limit's size exactly: the
# batch's header is 61 bytes, a record of this size adds 11 to its value.
MESSAGE_BYTES_MAX = 1_048_588
LARGEST_VALUE = MESSAGE_BYTES_MAX - 61 - 11


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_are_read_in_the_order_they_were_written(
    client: Client, topic: str, acks: Acks
) -> None:
    written = numbered(500)
    client.produce(topic, written, acks=acks, batch_bytes=1_000)
    at = TopicPartition(topic, 0)
    with client.consumer(ConsumerOptions()) as consumer:
        consumer.assign(at)
        consumer.seek(at, 0)
        records = consumer.read(500)  # with acks=0 they may still be on their way
    assert values(records) == [message.value for message in written]


@pytest.mark.parametrize("acks", [1, "all"])
def test_a_producer_is_told_where_its_records_are(client: Client, topic: str, acks: Acks) -> None:
    placed = client.produce(topic, numbered(20), acks=acks)
    assert placed == [Placed(0, offset) for offset in range(20)]
    assert [record.offset for record in client.read_all(topic)] == [p.offset for p in placed]


def test_null_and_empty_are_different(client: Client, topic: str) -> None:
    written = [
        Message(key=None, value=b"no key"),
        Message(key=b"", value=b"empty key"),
        Message(key=b"k", value=None),
        Message(key=b"k", value=b""),
    ]
    client.produce(topic, written)
    assert [(r.key, r.value) for r in client.read_all(topic)] == [(m.key, m.value) for m in written]


def test_headers_keep_their_order_and_may_repeat(client: Client, topic: str) -> None:
    headers = (("trace", b"1"), ("näme", b"\x00\xff"), ("trace", b"2"), ("empty", b""))
    client.produce(topic, [Message(value=b"v", headers=headers)])
    (record,) = client.read_all(topic)
    assert record.headers == headers


def test_a_header_may_be_null(client: Client, topic: str) -> None:
    if not client.null_headers:
        pytest.skip(f"{client.name} sends no null headers")
    client.produce(topic, [Message(value=b"v", headers=(("null", None),))])
    (record,) = client.read_all(topic)
    assert record.headers == (("null", None),)


def test_a_producer_may_set_the_timestamp(client: Client, topic: str) -> None:
    client.produce(topic, [Message(value=b"v", timestamp_ms=1_600_000_000_123)])
    (record,) = client.read_all(topic)
    assert record.timestamp_ms == 1_600_000_000_123


def test_log_append_time_is_the_brokers(client: Client, unique: Callable[[str], str]) -> None:
    topic = unique("stamped")
    client.create_topic(topic, settings={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    client.produce(topic, [Message(value=b"v", timestamp_ms=1_600_000_000_123)])
    (record,) = client.read_all(topic)
    assert before_ms <= record.timestamp_ms <= int(time.time() * 1000)


def test_a_key_always_has_the_same_partition(client: Client, unique: Callable[[str], str]) -> None:
    topic = unique("keyed")
    client.create_topic(topic, partitions=4)
    written = [Message(key=f"key-{i % 10}".encode(), value=b"v") for i in range(100)]
    placed = client.produce(topic, written, partition=None)
    homes = {(m.key, p.partition) for m, p in zip(written, placed, strict=True)}
    assert len(homes) == 10
    assert len({partition for _, partition in homes}) > 1


def test_the_largest_batch_is_taken_and_read(client: Client, topic: str) -> None:
    value = bytes(LARGEST_VALUE)
    client.produce(topic, [Message(value=value)])
    (record,) = client.read_all(topic)
    assert record.value == value


def test_one_byte_more_is_too_large(client: Client, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Message(value=bytes(LARGEST_VALUE + 1))])
    assert refused.value.code == ErrorCode.message_too_large


def test_a_topic_may_allow_larger_batches(client: Client, unique: Callable[[str], str]) -> None:
    topic = unique("large")
    client.create_topic(topic, settings={"max.message.bytes": "5000000"})
    value = bytes(4_900_000)
    client.produce(topic, [Message(value=value)], batch_bytes=5_000_000)
    (record,) = client.read_all(topic)
    assert record.value == value


def test_a_batch_larger_than_the_fetch_is_read_all_the_same(client: Client, topic: str) -> None:
    client.produce(topic, [Message(value=bytes(500_000)), Message(value=b"next")])
    at = TopicPartition(topic, 0)
    with client.consumer(ConsumerOptions(fetch_bytes_max=1_000)) as consumer:
        consumer.assign(at)
        consumer.seek(at, 0)
        records = consumer.read(2)
    assert [len(record.value or b"") for record in records] == [500_000, 4]


def test_many_large_batches_are_read_whole(client: Client, topic: str) -> None:
    written = numbered(200, size=50_000)
    client.produce(topic, written, batch_bytes=500_000)
    assert values(client.read_all(topic)) == [message.value for message in written]
