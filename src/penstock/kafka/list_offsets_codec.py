"""ListOffsets, versions 1 to 11, by hand: Spark's Kafka connector asks twice for every 500 records it reads.

version 2    throttle time, isolation level      version 6    flexible
version 4    leader epochs                       version 10   a timeout
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import ErrorCode
from penstock.kafka.primitives import check_element_count, read_count, read_string, skip_tags
from penstock.wire import INT32, write_count, write_string

_ASKED_1: Final = struct.Struct(">iq")  # partition, timestamp
_ASKED_4: Final = struct.Struct(">iiq")  # the leader epoch between them
_FOUND_1: Final = struct.Struct(">ihqq")  # partition, error code, timestamp, offset
_FOUND_4: Final = struct.Struct(">ihqqi")  # and the leader epoch
_NO_THROTTLE: Final = INT32.pack(0)


@dataclass(frozen=True, slots=True)
class PartitionAsked:
    partition_index: int
    timestamp: int
    current_leader_epoch: int = -1  # from version 4


@dataclass(frozen=True, slots=True)
class TopicAsked:
    name: str
    partitions: Sequence[PartitionAsked]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """The isolation level is not read: without transactions both levels see the same."""

    replica_id: int
    topics: Sequence[TopicAsked]


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    name: str
    partitions: Sequence[PartitionOffset]


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    topics: Sequence[TopicOffsets]


def decode_request(version: int, data: memoryview, position: int) -> ListOffsetsRequest:
    flexible = version >= 6
    replica_id = INT32.unpack_from(data, position)[0]
    position += 5 if version >= 2 else 4  # the isolation level
    count, position = read_count(data, position, flexible)
    topics = []
    partition_count = 0
    for _ in range(count):
        name, position = read_string(data, position, flexible)
        partitions, position = _read_partitions(version, data, position)
        topics.append(TopicAsked(name, partitions))
        partition_count += len(partitions)
        check_element_count(partition_count)
    if version >= 10:
        INT32.unpack_from(data, position)  # how long a look into a cold tier may take
        position += 4
    if flexible:
        skip_tags(data, position)
    return ListOffsetsRequest(replica_id, topics)


def _read_partitions(
    version: int, data: memoryview, position: int
) -> tuple[list[PartitionAsked], int]:
    flexible = version >= 6
    count, position = read_count(data, position, flexible)
    partitions = []
    for _ in range(count):
        if version >= 4:
            index, leader_epoch, timestamp = _ASKED_4.unpack_from(data, position)
            position += _ASKED_4.size
        else:
            (index, timestamp), leader_epoch = _ASKED_1.unpack_from(data, position), -1
            position += _ASKED_1.size
        partitions.append(PartitionAsked(index, timestamp, leader_epoch))
        if flexible:
            position = skip_tags(data, position)
    return partitions, skip_tags(data, position) if flexible else position


def encode_response(version: int, response: ListOffsetsResponse) -> bytes:
    flexible = version >= 6
    tags = b"\x00" if flexible else b""
    parts = [_NO_THROTTLE] if version >= 2 else []
    parts.append(write_count(len(response.topics), flexible))
    for topic in response.topics:
        parts.append(write_string(topic.name, flexible))
        parts.append(write_count(len(topic.partitions), flexible))
        for one in topic.partitions:
            found = (one.partition_index, one.error_code, one.timestamp, one.offset)
            if version >= 4:
                parts.append(_FOUND_4.pack(*found, one.leader_epoch))
            else:
                parts.append(_FOUND_1.pack(*found))
            parts.append(tags)
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)
