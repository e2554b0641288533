"""A follower's Fetch, held against kio's."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.fetch_codec import VERSION, Asked, decode_answer, encode_request
from tests.kafka.strategies import entities, examples, integers
from tests.kafka.tagging import encode_with_tags, tagged_fields
from tests.kafka.wire import build, decode, encode, must_equal

FETCH = 1
MALFORMED = (IndexError, struct.error, ValueError)
REQUEST = kio.index.load_request_schema(FETCH, VERSION)
RESPONSE: Any = kio.index.load_response_schema(FETCH, VERSION)

asked = st.builds(
    Asked, integers(32), integers(32), integers(64), integers(32), integers(64), integers(32)
)
topic_ids = st.uuids().map(lambda value: value.bytes)


@examples(100)
@given(
    st.dictionaries(topic_ids, st.lists(asked, max_size=3), max_size=3),
    st.dictionaries(topic_ids, st.lists(integers(32), max_size=3), max_size=3),
    st.tuples(*([integers(32)] * 5)),
    integers(64),
)
def test_kio_reads_a_request_as_we_wrote_it(
    topics: dict[bytes, list[Asked]],
    forgotten: dict[bytes, list[int]],
    values: tuple[int, int, int, int, int],
    replica_epoch: int,
) -> None:
    wait_ms, bytes_max, session_id, session_epoch, replica = values
    data = encode_request(
        replica=replica,
        replica_epoch=replica_epoch,
        wait_ms_max=wait_ms,
        bytes_max=bytes_max,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten=forgotten,
    )
    expected = {
        "replica_state": {"replica_id": replica, "replica_epoch": replica_epoch},
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": bytes_max,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [
            {
                "topic_id": uuid.UUID(bytes=topic),
                "partitions": [
                    {
                        "partition": item.partition,
                        "current_leader_epoch": item.leader_epoch,
                        "fetch_offset": item.offset,
                        "last_fetched_epoch": item.last_epoch,
                        "log_start_offset": item.log_start,
                        "partition_max_bytes": item.bytes_max,
                    }
                    for item in partitions
                ],
            }
            for topic, partitions in topics.items()
        ],
        "forgotten_topics_data": [
            {"topic_id": uuid.UUID(bytes=topic), "partitions": indexes}
            for topic, indexes in forgotten.items()
        ],
        "rack_id": "",
    }
    must_equal(decode(REQUEST, data), build(REQUEST, expected))


def plain(entity: Any) -> tuple[int, int, list[tuple[Any, ...]]]:
    partitions = []
    for topic in entity.responses:
        topic_id = (topic.topic_id or uuid.UUID(int=0)).bytes
        for item in topic.partitions:
            part = item.diverging_epoch
            diverging = None if part is None else (part.epoch, part.end_offset)
            partitions.append(
                (topic_id, item.partition_index, int(item.error_code), item.high_watermark,
                 item.log_start_offset, diverging, bytes(item.records or b""))
            )  # fmt: skip
    return int(entity.error_code), entity.session_id, partitions


@examples(150)
@given(entities(RESPONSE), tagged_fields())
def test_an_answer_is_read_as_kio_wrote_it(entity: Any, tags: Any) -> None:
    for data in (encode(entity), encode_with_tags(entity, tags)):
        code, session_id, partitions = decode_answer(memoryview(data))
        ours = [(*item[:-1], bytes(item.records)) for item in partitions]
        # kio leaves a tagged field out that has its default; we tell presence from absence.
        must_equal(normal((code, session_id, ours)), normal(plain(entity)))


def normal(answer: tuple[int, int, list[tuple[Any, ...]]]) -> Any:
    code, session_id, partitions = answer
    return code, session_id, [
        (*item[:5], None if item[5] in {None, (-1, -1)} else tuple(item[5]), item[6])
        for item in partitions
    ]  # fmt: skip


def test_an_answer_cut_short_anywhere_is_malformed() -> None:
    partition = {
        "partition_index": 1,
        "records": b"abc",
        "diverging_epoch": {"epoch": 1, "end_offset": 2},
    }
    topic = {"topic_id": uuid.uuid4(), "partitions": [partition, partition]}
    data = encode(build(RESPONSE, {"responses": [topic, topic]}))
    for size in range(len(data)):
        with pytest.raises(MALFORMED):
            decode_answer(memoryview(data)[:size])


@examples(300)
@given(st.binary(max_size=90), st.integers(0, 60), st.integers(0, 60))
def test_garbage_is_an_answer_or_malformed_and_nothing_else(
    garbage: bytes, start: int, end: int
) -> None:
    valid = encode(build(RESPONSE, {"responses": [{"partitions": [{"records": b"abc"}]}]}))
    for data in (garbage, valid[:start] + garbage + valid[end:]):
        try:
            decode_answer(memoryview(data))
        except MALFORMED:
            continue
