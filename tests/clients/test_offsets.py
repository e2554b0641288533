"""Where a consumer reads: by offset, by time, by what its group committed, by policy."""

from __future__ import annotations

import pytest

from tests.clients.client import (
    Client,
    CommittedOffset,
    Consumer,
    ConsumerOptions,
    Message,
    NoPosition,
    TopicPartition,
    numbered,
    values,
)

FIRST_MS = 1_600_000_000_000


@pytest.fixture
def filled(client: Client, topic: str) -> TopicPartition:
    """Ten records, a second apart, in two batches."""
    messages = [
        Message(value=f"value-{i}".encode(), timestamp_ms=FIRST_MS + i * 1_000) for i in range(10)
    ]
    client.produce(topic, messages[:6])
    client.produce(topic, messages[6:])
    return TopicPartition(topic, 0)


def reading(client: Client, at: TopicPartition, **options: object) -> Consumer:
    consumer = client.consumer(ConsumerOptions(**options))  # type: ignore[arg-type]
    consumer.assign(at)
    return consumer


def test_a_consumer_seeks_to_an_offset(client: Client, filled: TopicPartition) -> None:
    with reading(client, filled) as consumer:
        consumer.seek(filled, 7)
        assert values(consumer.read(3)) == [b"value-7", b"value-8", b"value-9"]
        consumer.seek(filled, 2)
        assert values(consumer.read(8))[0] == b"value-2"


def test_a_consumer_seeks_to_the_beginning_and_the_end(
    client: Client, filled: TopicPartition
) -> None:
    with reading(client, filled) as consumer:
        consumer.seek_to_end(filled)
        client.produce(filled.topic, [Message(value=b"new")])
        assert values(consumer.read(1)) == [b"new"]
        assert consumer.position(filled) == 11
        consumer.seek_to_beginning(filled)
        assert values(consumer.read(11))[0] == b"value-0"


@pytest.mark.parametrize(
    ("time_ms", "offset"),
    [
        pytest.param(0, 0, id="before the first"),
        pytest.param(FIRST_MS + 3_000, 3, id="exact"),
        pytest.param(FIRST_MS + 3_001, 4, id="between two"),
        pytest.param(FIRST_MS + 9_001, None, id="after the last"),
    ],
)
def test_a_time_has_the_first_offset_at_or_after_it(
    client: Client, filled: TopicPartition, time_ms: int, offset: int | None
) -> None:
    with reading(client, filled) as consumer:
        assert consumer.offset_for_time(filled, time_ms) == offset


def test_the_bounds_follow_writes_and_deletions(client: Client, filled: TopicPartition) -> None:
    with reading(client, filled) as consumer:
        assert consumer.bounds(filled) == (0, 10)
        assert client.delete_records(filled, 4) == 4
        client.produce(filled.topic, numbered(1))
        assert consumer.bounds(filled) == (4, 11)


def test_the_policy_says_where_to_read_what_was_deleted(
    client: Client, filled: TopicPartition
) -> None:
    client.delete_records(filled, 4)
    with reading(client, filled, reset="earliest") as consumer:
        consumer.seek(filled, 1)
        assert values(consumer.read(6))[0] == b"value-4"


def test_the_latest_policy_skips_what_is_there(
    client: Client, filled: TopicPartition, group: str
) -> None:
    with reading(client, filled, reset="latest", group=group) as consumer:
        # Where the end is, is looked up in the background: what is written before may be skipped, too.
        written = 0
        while not consumer.poll(0.1):
            client.produce(filled.topic, [Message(value=b"new")])
            written += 1
        assert consumer.received[0].offset >= 10
        assert written < 20


def test_without_a_policy_a_lost_position_is_an_error(
    client: Client, filled: TopicPartition
) -> None:
    with reading(client, filled, reset="none") as consumer:
        consumer.seek(filled, 99)
        with pytest.raises(NoPosition):
            consumer.read(1)


def test_without_a_policy_a_new_group_has_no_position(
    client: Client, filled: TopicPartition, group: str
) -> None:
    with reading(client, filled, reset="none", group=group) as consumer, pytest.raises(NoPosition):
        consumer.read(1)


def test_a_commit_is_seen_with_its_note(client: Client, filled: TopicPartition, group: str) -> None:
    with reading(client, filled, group=group) as consumer:
        assert consumer.committed(filled) is None
        consumer.commit({filled: CommittedOffset(6, "nöte")})
        expected = CommittedOffset(6, "nöte" if client.reads_notes else "")
        assert consumer.committed(filled) == expected
    assert client.group_offsets(group) == {filled: 6}


def test_the_next_consumer_of_a_group_goes_on_where_the_last_committed(
    client: Client, filled: TopicPartition, group: str
) -> None:
    with client.consumer(ConsumerOptions(group=group)) as first:
        first.subscribe(filled.topic)
        first.read(10)
        first.commit({filled: CommittedOffset(6)})
    with client.consumer(ConsumerOptions(group=group)) as second:
        second.subscribe(filled.topic)
        assert values(second.read(4)) == [b"value-6", b"value-7", b"value-8", b"value-9"]


def test_a_consumer_that_commits_by_itself_does_so_when_it_closes(
    client: Client, filled: TopicPartition, group: str
) -> None:
    with client.consumer(ConsumerOptions(group=group, auto_commit=True)) as consumer:
        consumer.subscribe(filled.topic)
        consumer.read(10)
    assert client.group_offsets(group) == {filled: 10}


def test_read_committed_sees_all_that_is_in_no_transaction(
    client: Client, filled: TopicPartition
) -> None:
    with reading(client, filled, read_committed=True) as consumer:
        consumer.seek(filled, 0)
        assert len(consumer.read(10)) == 10
