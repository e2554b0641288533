"""The hand-written Fetch codec says what kio's says, in every version."""

from __future__ import annotations

import datetime
import os
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from penstock.client import fetch_codec as client_codec
from penstock.kafka.fetch_codec import PartitionData, decode_request, encode_response
from penstock.kafka.handlers import REGISTRY
from penstock.kafka.primitives import ELEMENTS_MAX
from penstock.log import FileSlice
from penstock.log.segment import LogFile
from penstock.machine import boot_id
from penstock.wire import BY_REFERENCE, FileReference
from tests.kafka.codec_rules import (
    checked,
    must_read_garbage_or_find_it_malformed,
    must_read_what_kio_writes,
    must_refuse_whatever_is_cut_short,
)
from tests.kafka.strategies import ERRORS, TEXTS, integers
from tests.kafka.tagging import encode_with_tags, uvarint
from tests.kafka.wire import build, decode, encode, fetch, must_equal

FETCH = 1
VERSIONS = list(REGISTRY[FETCH].versions)
NO_ID = uuid.UUID(int=0)

every_version = pytest.mark.parametrize("version", VERSIONS)


def read(version: int, data: bytes) -> Any:
    return decode_request(version, memoryview(bytearray(data)), 0)


def plain(version: int, entity: Any) -> dict[str, Any]:
    """kio's request in the shape of ours, with our defaults for what the version lacks."""

    def name(topic: Any) -> Any:
        return (topic.topic_id or NO_ID) if version >= 13 else topic.topic

    replica_id = (
        entity.replica_id if version <= 14 else getattr(entity.replica_state, "replica_id", -1)
    )
    replica_epoch = -1
    if version >= 15 and getattr(entity, "replica_state", None) is not None:
        replica_epoch = entity.replica_state.replica_epoch
    return {
        "replica_id": replica_id,
        "replica_epoch": replica_epoch,
        "by_reference": False,
        "max_wait_ms": entity.max_wait // datetime.timedelta(milliseconds=1),
        "min_bytes": entity.min_bytes,
        "max_bytes": entity.max_bytes,
        "isolation_level": entity.isolation_level,
        "session_id": getattr(entity, "session_id", 0),
        "session_epoch": getattr(entity, "session_epoch", -1),
        "topics": [
            (
                name(topic),
                [
                    (
                        item.partition,
                        getattr(item, "current_leader_epoch", -1),
                        item.fetch_offset,
                        getattr(item, "last_fetched_epoch", -1),
                        getattr(item, "log_start_offset", -1),
                        item.partition_max_bytes,
                    )
                    for item in topic.partitions
                ],
            )
            for topic in entity.topics
        ],
        "forgotten": [
            (name(topic), list(topic.partitions))
            for topic in getattr(entity, "forgotten_topics_data", ())
        ],
        "rack_id": getattr(entity, "rack_id", ""),
    }


def ours_plain(request: Any) -> dict[str, Any]:
    values: dict[str, Any] = request._asdict()
    values["topics"] = [(topic, [tuple(p) for p in found]) for topic, found in request.topics]
    return values


def test_every_version_of_kio_is_served() -> None:
    assert list(range(4, 19)) == VERSIONS


@every_version
def test_a_request_is_read_as_kio_wrote_it(version: int) -> None:
    request_type = kio.index.load_request_schema(FETCH, version)
    must_read_what_kio_writes(
        request_type,
        lambda data: ours_plain(read(version, data)),
        lambda entity: plain(version, entity),
    )


SETTINGS = {"max_wait": 32, "min_bytes": 32, "max_bytes": 32, "isolation_level": 8,
            "session_id": 32, "session_epoch": 32}  # fmt: skip
PLACE = {"partition": 32, "current_leader_epoch": 32, "fetch_offset": 64,
         "last_fetched_epoch": 32, "log_start_offset": 64, "partition_max_bytes": 32}  # fmt: skip


def numbers(bits: dict[str, int]) -> Any:
    return st.fixed_dictionaries({name: integers(size) for name, size in bits.items()})


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 13])
@pytest.mark.parametrize("besides", ["nothing", "a rack", "a topic to forget"])
def test_a_request_for_one_partition_is_read_as_kio_wrote_it(version: int, besides: str) -> None:
    """Most are as plain as that, and are read at once; but not what has more to say."""
    request_type = kio.index.load_request_schema(FETCH, version)

    @checked
    @given(numbers(SETTINGS), numbers(PLACE), st.uuids())
    def check(settings: Any, place: Any, topic: uuid.UUID) -> None:
        more: dict[str, Any] = {}
        if besides == "a rack":
            more["rack_id"] = "r"
        elif besides == "a topic to forget":
            more["forgotten_topics_data"] = [{"topic_id": topic, "partitions": []}]
        topics = [{"topic_id": topic, "partitions": [place]}]
        entity = build(request_type, {**settings, **more, "topics": topics})
        must_equal(ours_plain(read(version, encode(entity))), plain(version, entity))

    check()


def a_request(version: int) -> Any:
    topic: Any = NO_ID if version >= 13 else "topic"
    return fetch(version, {topic: {0: 1, 1: 2}}, forget={topic: [3, 4]}, session=(1, 1))


@every_version
def test_a_request_cut_short_anywhere_is_malformed(version: int) -> None:
    data = encode(a_request(version))
    must_refuse_whatever_is_cut_short(partial(read, version), data)


@every_version
def test_garbage_is_read_or_malformed_and_nothing_else(version: int) -> None:
    valid = encode(a_request(version))
    must_read_garbage_or_find_it_malformed(partial(read, version), valid)


@pytest.mark.parametrize("version", [7, 12])
def test_counts_beyond_all_reason_are_refused(version: int) -> None:
    within = read(version, repeated(version, 1))
    assert [len(partitions) for _, partitions in within.topics] == [ELEMENTS_MAX]
    assert [len(partitions) for _, partitions in within.forgotten] == [ELEMENTS_MAX]
    for topics, forgotten in ((2, 0), (0, 2)):
        with pytest.raises(ValueError, match="too much"):
            read(version, repeated(version, topics, forgotten))


def repeated(version: int, topics: int, forgotten: int = 1) -> bytes:
    """A request of so many topics, fetched and forgotten, each with as many partitions as may be."""
    count = uvarint if version >= 12 else lambda value: (value - 1).to_bytes(4, "big")
    name, tags = (b"\x02t", b"\x00") if version >= 12 else (b"\x00\x01t", b"")
    one = bytes(4 + 4 + 8 + 4 + 8 + 4) + tags if version >= 12 else bytes(4 + 8 + 8 + 4)
    many = count(ELEMENTS_MAX + 1)
    return b"".join(
        [
            bytes(4 + 13 + 8),
            count(topics + 1),
            (name + many + one * ELEMENTS_MAX + tags) * topics,
            count(forgotten + 1),
            (name + many + bytes(4) * ELEMENTS_MAX + tags) * forgotten,
            b"\x01" if version >= 12 else b"",  # an empty rack id
            tags,
        ]
    )


found_partitions = st.builds(
    PartitionData,
    partition=integers(32),
    error_code=ERRORS.map(int),
    high_watermark=integers(64),
    last_stable_offset=integers(64),
    log_start_offset=integers(64),
    records=st.none() | st.binary(max_size=300),
    diverging=st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
)


@every_version
def test_kio_reads_a_response_as_we_wrote_it(version: int, tmp_path: Path) -> None:
    names = st.uuids() if version >= 13 else TEXTS
    many = st.lists(
        st.tuples(names, st.lists(st.tuples(found_partitions, st.booleans()), max_size=3)),
        max_size=3,
    )
    one = st.tuples(names, st.tuples(found_partitions, st.just(True)).map(lambda item: [item]))
    topics = many | one.map(lambda topic: [topic])

    @checked
    @given(topics, ERRORS, integers(32), st.booleans())
    def check(drawn: Any, error: ErrorCode, session_id: int, is_committed: bool) -> None:
        with_files = [
            (topic, [in_file(tmp_path, item) if stored else item for item, stored in partitions])
            for topic, partitions in drawn
        ]
        parts = encode_response(
            version, int(error), session_id, with_files, is_committed=is_committed
        )
        data = b"".join(part if isinstance(part, bytes) else part.read() for part in parts)
        response_type = kio.index.load_response_schema(FETCH, version)
        expected = {
            "throttle_time": 0,
            "error_code": error,
            "session_id": session_id,
            "responses": [
                {
                    "topic": topic,
                    "topic_id": topic,
                    "partitions": [in_kio(version, item, is_committed) for item, _ in partitions],
                }
                for topic, partitions in drawn
            ],
        }
        must_equal(decode(response_type, data), build(response_type, expected))

    check()


def in_file(directory: Path, item: PartitionData) -> PartitionData:
    """The same, with its records in the middle of a file."""
    if not item.records:
        return item
    assert isinstance(item.records, bytes)
    path = directory / "segment"
    path.write_bytes(b"before" + item.records + b"behind")
    slice_ = FileSlice(LogFile(str(path), os.O_RDONLY), 6, len(item.records))
    path.unlink()
    return item._replace(records=slice_)


def in_kio(version: int, item: PartitionData, is_committed: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "partition_index": item.partition,
        "error_code": ErrorCode(item.error_code),
        "high_watermark": item.high_watermark,
        "last_stable_offset": item.last_stable_offset,
        "log_start_offset": item.log_start_offset,
        "aborted_transactions": () if is_committed else None,
        "preferred_read_replica": -1,
        "records": item.records or b"",
    }
    if item.diverging is not None and version >= 12:
        values["diverging_epoch"] = {"epoch": item.diverging[0], "end_offset": item.diverging[1]}
    return values


def test_memory_between_two_file_ranges_is_one_part(tmp_path: Path) -> None:
    item = in_file(tmp_path, PartitionData(0, records=b"records"))
    parts = encode_response(12, 0, 0, [("a", [item, PartitionData(1)]), ("b", [item])])
    assert [type(part) for part in parts] == [bytes, FileSlice, bytes, FileSlice, bytes]
    # Before version 12 nothing follows the last records, and an empty part would cost a system call.
    parts = encode_response(11, 0, 0, [("a", [item])])
    assert [type(part) for part in parts] == [bytes, FileSlice]


# -- references to files, a field of our own ----------------------------------------------------

REFERENCE = FileReference(3, 2**63, 4096, 100, bytes(range(61)), b"/data/orders/0/0.log")


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 12])
@pytest.mark.parametrize("machine", [boot_id(), "another", ""])
def test_who_asks_for_references_is_known_from_version_15_on(version: int, machine: str) -> None:
    """If it is on this machine. Before, a tagged field at the end of a request is nobody's."""
    request_type = kio.index.load_request_schema(FETCH, version)
    asked = build(request_type, {"replica_state": {"replica_id": 7, "replica_epoch": 8}})
    found = read(version, encode_with_tags(asked, [(BY_REFERENCE, machine.encode())]))
    assert found.by_reference == (version >= 15 and machine == boot_id())
    assert found.replica_id == plain(version, asked)["replica_id"]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 15])
@pytest.mark.parametrize("diverging", [None, (3, 5)])
def test_a_reference_takes_the_place_of_the_records(
    version: int, diverging: tuple[int, int] | None
) -> None:
    data = PartitionData(4, 0, 9, 8, 7, REFERENCE, diverging)
    [answer] = encode_response(version, 0, 0, [(uuid.uuid4(), [data])])
    assert isinstance(answer, bytes)
    found = client_codec.decode_response(version, memoryview(answer), 0)
    assert found.reference == REFERENCE
    assert (found.high_watermark, found.last_stable, found.log_start) == (9, 8, 7)
    assert not found.records
