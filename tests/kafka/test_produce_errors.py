"""What is wrong with a produce request has its Kafka error, and changes nothing."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.kafka.handlers import REGISTRY
from penstock.testing import ThreadBroker
from tests.kafka.batches import GZIP, LZ4, SNAPPY, ZSTD, make_batch, patched, records_in
from tests.kafka.wire import Topic, Wire, fetch, frame, only_partition, produce, topic_id

VERSIONS = list(REGISTRY[0].versions)
GOOD = make_batch(b"good", b"better")
LENGTH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA, MAX_TIMESTAMP, COUNT = 8, 16, 17, 21, 23, 35, 57

BAD_BATCHES = {
    "no records": (b"", ErrorCode.invalid_record),
    "null": (None, ErrorCode.invalid_record),
    "less than a header": (GOOD[:60], ErrorCode.corrupt_message),
    "a header that says less than a header": (
        patched(GOOD, LENGTH, ">i", 40),
        ErrorCode.corrupt_message,
    ),
    "a negative length": (patched(GOOD, LENGTH, ">i", -1), ErrorCode.corrupt_message),
    "cut off": (GOOD[:-1], ErrorCode.corrupt_message),
    "a byte flipped in a record": (
        patched(GOOD, len(GOOD) - 3, ">b", 1, fix_crc=False),
        ErrorCode.corrupt_message,
    ),
    "a wrong CRC": (patched(GOOD, CRC, ">I", 1, fix_crc=False), ErrorCode.corrupt_message),
    "an old format": (patched(GOOD, MAGIC, ">b", 1), ErrorCode.invalid_record),
    "a format to come": (patched(GOOD, MAGIC, ">b", 3), ErrorCode.invalid_record),
    "two batches": (GOOD + GOOD, ErrorCode.invalid_record),
    "a batch of no records": (patched(GOOD, COUNT, ">i", 0), ErrorCode.invalid_record),
    "a negative count": (patched(GOOD, COUNT, ">i", -1), ErrorCode.invalid_record),
    "a count and offsets that differ": (
        patched(GOOD, LAST_OFFSET_DELTA, ">i", 5),
        ErrorCode.invalid_record,
    ),
    "a control batch": (patched(GOOD, ATTRIBUTES, ">h", 0x20), ErrorCode.invalid_record),
    "a transactional batch": (patched(GOOD, ATTRIBUTES, ">h", 0x10), ErrorCode.invalid_record),
    "an unknown codec": (
        patched(GOOD, ATTRIBUTES, ">h", 5),
        ErrorCode.unsupported_compression_type,
    ),
    "another unknown codec": (
        patched(GOOD, ATTRIBUTES, ">h", 7),
        ErrorCode.unsupported_compression_type,
    ),
    "larger than max.message.bytes": (
        make_batch(b"x" * 1_100_000),
        ErrorCode.message_too_large,
    ),
    "a timestamp two hours ahead": (
        patched(GOOD, MAX_TIMESTAMP, ">q", int(time.time() * 1000) + 7_200_000),
        ErrorCode.invalid_timestamp,
    ),
    "an idempotent batch without a sequence": (
        make_batch(b"x", producer_id=5, epoch=0, sequence=-1),
        ErrorCode.invalid_record,
    ),
}


def check_unharmed(wire: Wire, topic: str, partition: int = 0) -> None:
    """The log is as it was, and takes the next good batch."""
    answer = only_partition(wire.ask(produce(9, topic, {partition: GOOD})))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
    found = only_partition(wire.ask(fetch(12, {topic: {partition: 0}})))
    assert records_in(found.records) == [(0, b"good"), (1, b"better")]


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_refused_with_its_error(wire: Wire, topic: str, case: str) -> None:
    records, expected = BAD_BATCHES[case]
    for version, acks in ((3, 1), (8, -1), (9, 1)):
        answer = only_partition(wire.ask(produce(version, topic, {0: records}, acks=acks)))
        assert answer.error_code is expected
        assert answer.base_offset == -1
        assert version < 8 or answer.error_message
    check_unharmed(wire, topic)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_tells_of_an_error(wire: Wire, topic: str, version: int) -> None:
    name: Topic = topic_id(wire, topic) if version >= 13 else topic
    answer = only_partition(wire.ask(produce(version, name, {0: GOOD[:-1]})))
    assert answer.error_code is ErrorCode.corrupt_message


def test_one_bad_partition_does_not_harm_the_others(shared: ThreadBroker, wire: Wire) -> None:
    topic = shared.create_topic(partitions=3)
    answer = wire.ask(produce(9, topic, {0: GOOD, 1: GOOD[:-1], 2: GOOD, 7: GOOD}, acks=-1))
    (found,) = answer.responses
    assert {item.index: item.error_code for item in found.partition_responses} == {
        0: ErrorCode.none,
        1: ErrorCode.corrupt_message,
        2: ErrorCode.none,
        7: ErrorCode.unknown_topic_or_partition,
    }
    check_unharmed(wire, topic, 1)


@pytest.mark.parametrize("acks", [-2, 2, 3, 32767, -32768])
def test_acks_are_none_one_or_all(wire: Wire, topic: str, acks: int) -> None:
    answer = only_partition(wire.ask(produce(9, topic, {0: GOOD}, acks=acks)))
    assert answer.error_code is ErrorCode.invalid_required_acks
    check_unharmed(wire, topic)


@pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_unknown(wire: Wire, topic: str, partition: int) -> None:
    answer = only_partition(wire.ask(produce(9, topic, {partition: GOOD})))
    assert answer.error_code is ErrorCode.unknown_topic_or_partition
    assert answer.index == partition


def test_a_topic_that_is_not_there_is_unknown_and_not_created(wire: Wire) -> None:
    for name in ("nobody-made-this-topic", "no/topic", "", "x" * 32_760, "日" * 10_000):
        for version in (3, 8, 9, 12):
            answer = only_partition(wire.ask(produce(version, name, {0: GOOD})))
            assert answer.error_code is ErrorCode.unknown_topic_or_partition
    answer = only_partition(wire.ask(produce(13, uuid.uuid4(), {0: GOOD})))
    assert answer.error_code is ErrorCode.unknown_topic_id


def test_a_transactional_producer_is_refused(wire: Wire, topic: str) -> None:
    answer = only_partition(wire.ask(produce(9, topic, {0: GOOD}, transactional_id="t")))
    assert answer.error_code is ErrorCode.invalid_request
    check_unharmed(wire, topic)


def test_more_replicas_than_there_are_refuse_acks_all_only(
    shared: ThreadBroker, wire: Wire
) -> None:
    topic = shared.create_topic(settings={"min.insync.replicas": "2"})
    answer = only_partition(wire.ask(produce(9, topic, {0: GOOD}, acks=-1)))
    assert answer.error_code is ErrorCode.not_enough_replicas
    check_unharmed(wire, topic)


def test_the_size_limit_is_a_topic_setting(shared: ThreadBroker, wire: Wire) -> None:
    batch = make_batch(b"x" * 1000)
    fits = shared.create_topic(settings={"max.message.bytes": str(len(batch))})
    small = shared.create_topic(settings={"max.message.bytes": str(len(batch) - 1)})
    assert only_partition(wire.ask(produce(9, fits, {0: batch}))).error_code is ErrorCode.none
    answer = only_partition(wire.ask(produce(9, small, {0: batch})))
    assert answer.error_code is ErrorCode.message_too_large


@pytest.mark.parametrize("compression", [0, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("version", [3, 6, 7, 9])
def test_every_codec_passes_untouched_but_zstd_of_old_producers(
    wire: Wire, topic: str, compression: int, version: int
) -> None:
    batch = make_batch(b"x" * 1000, b"y" * 1000, compression=compression)
    answer = only_partition(wire.ask(produce(version, topic, {0: batch})))
    if compression == ZSTD and version < 7:
        assert answer.error_code is ErrorCode.unsupported_compression_type
        return
    assert answer.error_code is ErrorCode.none
    found = only_partition(wire.ask(fetch(12, {topic: {0: 0}}))).records
    assert found[:8] == bytes(8)
    assert found[16:] == batch[16:], "all but the base offset and the leader epoch"


def test_records_stamped_on_arrival_say_so(shared: ThreadBroker, wire: Wire) -> None:
    topic = shared.create_topic(settings={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    for version in (3, 9):
        answer = only_partition(wire.ask(produce(version, topic, {0: GOOD})))
        assert before_ms <= answer.log_append_time.timestamp() * 1000 <= time.time() * 1000 + 1
    found = only_partition(wire.ask(fetch(12, {topic: {0: 0}})))
    assert len(records_in(found.records)) == 4


# acks=0: the only way to tell is to hang up


@pytest.mark.parametrize("case", ["a wrong CRC", "an old format", "null"])
def test_with_acks_0_an_error_closes_the_connection(
    shared: ThreadBroker, topic: str, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    with Wire(shared.bootstrap) as wire:
        wire.send_bytes(frame(produce(9, topic, {0: BAD_BATCHES[case][0]}, acks=0)))
        assert wire.is_closed_by_broker()
    lines: list[Any] = [item for item in caplog.records if item.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "acks=0" in lines[0].getMessage()
    assert not lines[0].exc_info


def test_with_acks_0_an_unknown_topic_closes_the_connection(shared: ThreadBroker) -> None:
    with Wire(shared.bootstrap) as wire:
        wire.send_bytes(frame(produce(9, "nobody-made-this-topic", {0: GOOD}, acks=0)))
        assert wire.is_closed_by_broker()
