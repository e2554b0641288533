"""The hand-written Produce codec says what kio's says, in every version."""

from __future__ import annotations

import datetime
import uuid
from functools import partial
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from penstock.kafka.handlers import REGISTRY
from penstock.kafka.primitives import ELEMENTS_MAX
from penstock.kafka.produce_codec import PartitionResult, decode_request, encode_response
from tests.kafka.codec_rules import (
    checked,
    must_read_garbage_or_find_it_malformed,
    must_read_what_kio_writes,
    must_refuse_whatever_is_cut_short,
)
from tests.kafka.strategies import ERRORS, TEXTS, integers
from tests.kafka.tagging import encode_with_tags, uvarint
from tests.kafka.wire import build, decode, encode, must_equal, produce

PRODUCE = 0
VERSIONS = list(REGISTRY[PRODUCE].versions)
NO_ID = uuid.UUID(int=0)

every_version = pytest.mark.parametrize("version", VERSIONS)


def read(version: int, data: bytes) -> Any:
    return decode_request(version, memoryview(bytearray(data)), 0)


def plain(version: int, entity: Any) -> Any:
    """kio's request in the shape of ours."""
    topics = [
        (
            (topic.topic_id or NO_ID) if version >= 13 else topic.name,
            [(item.index, item.records) for item in topic.partition_data],
        )
        for topic in entity.topic_data
    ]
    timeout_ms = entity.timeout // datetime.timedelta(milliseconds=1)
    return entity.transactional_id is not None, entity.acks, timeout_ms, topics


def ours_plain(request: Any) -> Any:
    topics = [
        (topic, [(i, None if r is None else bytes(r)) for i, r in partitions])
        for topic, partitions in request.topics
    ]
    return request.transactional, request.acks, request.timeout_ms, topics


def test_every_version_of_kio_is_served() -> None:
    assert list(range(3, 14)) == VERSIONS


@every_version
def test_a_request_is_read_as_kio_wrote_it(version: int) -> None:
    request_type = kio.index.load_request_schema(PRODUCE, version)
    must_read_what_kio_writes(
        request_type,
        lambda data: ours_plain(read(version, data)),
        lambda entity: plain(version, entity),
    )


@every_version
def test_a_request_cut_short_anywhere_is_malformed(version: int) -> None:
    topic = NO_ID if version >= 13 else "topic"
    data = encode(produce(version, topic, {0: b"records", 1: None}, transactional_id="t"))
    must_refuse_whatever_is_cut_short(partial(read, version), data)


@every_version
def test_garbage_is_read_or_malformed_and_nothing_else(version: int) -> None:
    valid = encode(produce(version, NO_ID if version >= 13 else "t", {0: b"records"}))
    must_read_garbage_or_find_it_malformed(partial(read, version), valid)


@every_version
def test_counts_beyond_all_reason_are_refused_before_they_cost_anything(version: int) -> None:
    is_flexible = version >= 9
    head = (b"\x00" if is_flexible else b"\xff\xff") + b"\x00\x01\x00\x00\x00\x01"
    for count in (2**31 - 1, ELEMENTS_MAX + 1):
        announced = uvarint(count + 1) if is_flexible else count.to_bytes(4, "big")
        with pytest.raises(ValueError, match="too much"):
            read(version, head + announced + bytes(100))


@pytest.mark.parametrize("version", [8, 12])
def test_many_small_arrays_are_no_way_round_the_bound(version: int) -> None:
    """Topics of 30,000 partitions each, all without records."""
    within = read(version, request_of_topics(version, 5))
    assert [len(partitions) for _, partitions in within.topics] == [30_000] * 5
    with pytest.raises(ValueError, match="too much"):
        read(version, request_of_topics(version, 6))


def request_of_topics(version: int, count: int) -> bytes:
    if version >= 9:
        topic = b"\x02t" + uvarint(30_001) + (bytes(4) + b"\x00\x00") * 30_000 + b"\x00"
        return b"\x00\x00\x01\x00\x00\x00\x01" + uvarint(count + 1) + topic * count + b"\x00"
    topic = b"\x00\x01t" + (30_000).to_bytes(4, "big") + (bytes(4) + b"\xff" * 4) * 30_000
    return b"\xff\xff\x00\x01\x00\x00\x00\x01" + count.to_bytes(4, "big") + topic * count


def test_a_hundred_tagged_fields_are_enough() -> None:
    entity = produce(9, "t", {0: b"records"})
    some = [(tag, b"") for tag in range(1000, 1100)]
    assert len(read(9, encode_with_tags(entity, some)).topics) == 1
    with pytest.raises(ValueError, match="too many"):
        read(9, encode_with_tags(entity, [*some, (1100, b"")]))


results = st.builds(
    PartitionResult,
    partition=integers(32),
    error_code=ERRORS.map(int),
    base_offset=integers(64),
    append_time=st.integers(-1, 2**42),  # kio reads it as a date
    log_start_offset=integers(64),
    message=st.none() | TEXTS,
)


@every_version
def test_kio_reads_a_response_as_we_wrote_it(version: int) -> None:
    names = st.uuids() if version >= 13 else TEXTS
    topics = st.lists(st.tuples(names, st.lists(results, max_size=3)), max_size=3)

    @checked
    @given(topics)
    def check(answers: list[tuple[Any, list[PartitionResult]]]) -> None:
        response_type = kio.index.load_response_schema(PRODUCE, version)
        expected = build(
            response_type,
            {
                "throttle_time": 0,
                "responses": [
                    {
                        "name": topic,
                        "topic_id": topic,
                        "partition_responses": [
                            {
                                "index": item.partition,
                                "error_code": ErrorCode(item.error_code),
                                "base_offset": item.base_offset,
                                "log_append_time": item.append_time,
                                "log_start_offset": item.log_start_offset,
                                "error_message": item.message,
                            }
                            for item in partitions
                        ],
                    }
                    for topic, partitions in answers
                ],
            },
        )
        must_equal(decode(response_type, encode_response(version, answers)), expected)

    check()
