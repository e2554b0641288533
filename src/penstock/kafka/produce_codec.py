"""Produce, versions 3 to 13, by hand: the records stay where they were received.

version 5    log start offset in the answer       version 9    flexible
version 8    error message in the answer          version 13   topics by id
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.kafka.primitives import (
    MESSAGE_CHARACTERS_MAX,
    Topic,
    check_element_count,
    read_count,
    read_size,
    read_topic,
    skip_tags,
    write_topic,
)
from penstock.wire import INT32, read_uvarint, write_count, write_string

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_RESULT: Final = struct.Struct(">ihqq")
_RESULT_5: Final = struct.Struct(">ihqqq")
_NO_THROTTLE: Final = INT32.pack(0)
_ALL_WELL_8: Final = INT32.pack(0) + write_string(None, flexible=False)  # no bad record, no message
_ALL_WELL_9: Final = b"\x01\x00"


class PartitionRecords(NamedTuple):
    """`records` is a view of the request's own buffer: use it before the next request is read."""

    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional: bool
    acks: int
    timeout_ms: int
    topics: list[tuple[Topic, list[PartitionRecords]]]


class PartitionResult(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None


def failed(index: int, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(index, int(code), message=message[:MESSAGE_CHARACTERS_MAX] or None)


def decode_request(version: int, data: memoryview, position: int) -> ProduceRequest:
    flexible, by_id = version >= 9, version >= 13
    size, position = read_size(data, position, flexible)
    transactional = size >= 0
    position += max(size, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(data, position)
    topic_count, position = read_count(data, position + 6, flexible)
    topics = []
    partition_count = 0
    for _ in range(topic_count):
        topic, position = read_topic(data, position, flexible, by_id)
        partitions, position = _read_partitions(data, position, flexible)
        topics.append((topic, partitions))
        partition_count += len(partitions)
        check_element_count(partition_count)
    if flexible:
        skip_tags(data, position)
    return ProduceRequest(transactional, acks, timeout_ms, topics)


def _read_partitions(
    data: memoryview, position: int, flexible: bool
) -> tuple[list[PartitionRecords], int]:
    count, position = read_count(data, position, flexible)
    partitions = []
    for _ in range(count):
        index: int = INT32.unpack_from(data, position)[0]
        if flexible:
            size, position = read_uvarint(data, position + 4)
            size -= 1
        else:
            size, position = INT32.unpack_from(data, position + 4)[0], position + 8
        end = position + max(size, 0)
        if size < -1 or end > len(data):
            raise ValueError("the records end too early")
        partitions.append(PartitionRecords(index, data[position:end] if size >= 0 else None))
        position = skip_tags(data, end) if flexible else end
    if flexible:
        position = skip_tags(data, position)
    return partitions, position


def encode_response(
    version: int, topics: Sequence[tuple[Topic, Sequence[PartitionResult]]]
) -> bytes:
    flexible = version >= 9
    parts = [write_count(len(topics), flexible)]
    for topic, results in topics:
        parts.append(write_topic(topic, flexible))
        parts.append(write_count(len(results), flexible))
        for result in results:
            if version >= 5:
                parts.append(_RESULT_5.pack(*result[:5]))
            else:
                parts.append(_RESULT.pack(*result[:4]))
            if version >= 8 and result.message is None:
                parts.append(_ALL_WELL_9 if flexible else _ALL_WELL_8)
            elif version >= 8:
                parts.append(write_count(0, flexible))
                parts.append(write_string(result.message, flexible))
            if flexible:
                parts.append(b"\x00")
        if flexible:
            parts.append(b"\x00")
    parts.append(_NO_THROTTLE)
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)
