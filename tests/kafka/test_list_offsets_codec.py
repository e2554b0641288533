"""The hand-written ListOffsets codec says what kio's says, in every version."""

from __future__ import annotations

from functools import partial
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.handlers import REGISTRY
from penstock.kafka.list_offsets_codec import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionAsked,
    PartitionOffset,
    TopicAsked,
    TopicOffsets,
    decode_request,
    encode_response,
)
from penstock.kafka.primitives import ELEMENTS_MAX
from tests.kafka.codec_rules import (
    checked,
    must_read_garbage_or_find_it_malformed,
    must_read_what_kio_writes,
    must_refuse_whatever_is_cut_short,
)
from tests.kafka.strategies import ERRORS, TEXTS, integers
from tests.kafka.tagging import uvarint
from tests.kafka.wire import build, decode, encode, must_equal, request

LIST_OFFSETS = 2
VERSIONS = list(REGISTRY[LIST_OFFSETS].versions)

every_version = pytest.mark.parametrize("version", VERSIONS)
topics_found = st.lists(
    st.builds(
        TopicOffsets,
        TEXTS,
        st.lists(
            st.builds(
                PartitionOffset, integers(32), ERRORS, integers(64), integers(64), integers(32)
            ),
            max_size=3,
        ),
    ),
    max_size=3,
)


def read(version: int, data: bytes) -> ListOffsetsRequest:
    return decode_request(version, memoryview(bytearray(data)), 0)


def ours(entity: Any) -> ListOffsetsRequest:
    """kio's request as ours, with our default for what the version lacks."""
    return ListOffsetsRequest(
        entity.replica_id,
        [
            TopicAsked(
                topic.name,
                [
                    PartitionAsked(
                        one.partition_index,
                        one.timestamp,
                        getattr(one, "current_leader_epoch", -1),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in entity.topics
        ],
    )


def test_every_version_of_kio_is_served() -> None:
    assert list(range(1, 12)) == VERSIONS


@every_version
def test_a_request_is_read_as_kio_wrote_it(version: int) -> None:
    request_type = kio.index.load_request_schema(LIST_OFFSETS, version)
    must_read_what_kio_writes(request_type, partial(read, version), ours)


def a_request(version: int) -> bytes:
    partitions = [{"partition_index": index, "timestamp": -1} for index in (0, 1)]
    topics = [{"name": name, "partitions": partitions} for name in ("a", "b")]
    return encode(request("list_offsets", version, replica_id=-1, topics=topics))


@every_version
def test_a_request_cut_short_anywhere_is_malformed(version: int) -> None:
    data = a_request(version)
    must_refuse_whatever_is_cut_short(partial(read, version), data)


@every_version
def test_garbage_is_read_or_malformed_and_nothing_else(version: int) -> None:
    valid = a_request(version)
    must_read_garbage_or_find_it_malformed(partial(read, version), valid)


@pytest.mark.parametrize("version", [1, 11])
def test_more_partitions_than_all_reason_are_refused(version: int) -> None:
    def asking_for(topics: int) -> bytes:
        flexible = version >= 6
        count = uvarint if flexible else lambda value: (value - 1).to_bytes(4, "big")
        name, tags = (b"\x02t", b"\x00") if flexible else (b"\x00\x01t", b"")
        one = bytes(4 + 4 + 8) + tags if flexible else bytes(4 + 8)
        topic = name + count(ELEMENTS_MAX + 1) + one * ELEMENTS_MAX + tags
        head, end = (bytes(5), bytes(4) + tags) if flexible else (bytes(4), b"")
        return head + count(topics + 1) + topic * topics + end

    assert [len(topic.partitions) for topic in read(version, asking_for(1)).topics] == [
        ELEMENTS_MAX
    ]
    with pytest.raises(ValueError, match="too much"):
        read(version, asking_for(2))


@every_version
def test_kio_reads_a_response_as_we_wrote_it(version: int) -> None:
    response_type = kio.index.load_response_schema(LIST_OFFSETS, version)

    @checked
    @given(topics_found)
    def check(topics: list[TopicOffsets]) -> None:
        expected = {
            "throttle_time": 0,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {name: getattr(one, name) for name in PartitionOffset.__slots__}
                        for one in topic.partitions
                    ],
                }
                for topic in topics
            ],
        }
        data = encode_response(version, ListOffsetsResponse(topics))
        must_equal(decode(response_type, data), build(response_type, expected))

    check()
