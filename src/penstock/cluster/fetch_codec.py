"""Fetch as a follower speaks it, version 17, by hand: records are neither parsed nor copied."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cluster.messages import EpochEnd
from penstock.wire import (
    INT32,
    UUID_BYTES,
    read_bytes_size,
    read_count,
    read_tagged,
    read_uvarint,
    skip_tags,
    write_uvarint,
)

KEY: Final = 1
VERSION: Final = 17
NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1

_WAIT_MIN_MAX_ISOLATION: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_PARTITION: Final = struct.Struct(">iiqiqi")
_REPLICA_STATE: Final = struct.Struct(">iq")
_REPLICA_STATE_TAG: Final = 1

_HEAD: Final = struct.Struct(">ihi")  # throttle time, error code, session id
_DATA: Final = struct.Struct(">ihqqq")
_DIVERGING: Final = struct.Struct(">iq")
_DIVERGING_TAG: Final = 0
_ABORTED_BYTES: Final = 16

_NO_RACK: Final = b"\x01"
_NO_TAGS: Final = b"\x00"


class Asked(NamedTuple):
    """One partition of a request, as the wire has it."""

    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start: int
    bytes_max: int


class Answered(NamedTuple):
    """One partition of an answer. `records` are a view of the buffer it was received in."""

    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    log_start: int  # -1: it was not said
    diverging: EpochEnd | None
    records: memoryview


class Answer(NamedTuple):
    error_code: int
    session_id: int
    partitions: list[Answered]


def encode_request(
    *,
    replica: int,
    replica_epoch: int,
    wait_ms_max: int,
    bytes_max: int,
    session_id: int,
    session_epoch: int,
    topics: Mapping[bytes, Sequence[Asked]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """Topics are named by the bytes of their ids. An answer waits for a first byte, and no longer."""
    parts = [
        _WAIT_MIN_MAX_ISOLATION.pack(wait_ms_max, 1, bytes_max, 0),
        _SESSION.pack(session_id, session_epoch),
        write_uvarint(len(topics) + 1),
    ]
    for topic_id, asked in topics.items():
        parts.append(topic_id)
        parts.append(write_uvarint(len(asked) + 1))
        for partition in asked:
            parts.append(_PARTITION.pack(*partition))
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
    parts.append(write_uvarint(len(forgotten) + 1))
    for topic_id, indexes in forgotten.items():
        parts.append(topic_id)
        parts.append(write_uvarint(len(indexes) + 1))
        parts.append(struct.pack(f">{len(indexes)}i", *indexes))
        parts.append(_NO_TAGS)
    parts.append(_NO_RACK)
    parts.append(_state_tag(replica, replica_epoch))
    return b"".join(parts)


def _state_tag(replica: int, replica_epoch: int) -> bytes:
    state = _REPLICA_STATE.pack(replica, replica_epoch) + _NO_TAGS
    return bytes((1, _REPLICA_STATE_TAG, len(state))) + state


def decode_answer(data: memoryview) -> Answer:
    """Raises what reading too short a buffer does, or `ValueError`, if the bytes are no answer."""
    _, error_code, session_id = _HEAD.unpack_from(data)
    count, position = read_count(data, _HEAD.size, True)
    partitions: list[Answered] = []
    for _ in range(count):
        end = position + UUID_BYTES
        if end > len(data):
            raise IndexError("a topic id ends too early")
        topic_id = bytes(data[position:end])
        here, position = read_count(data, end, True)
        for _ in range(here):
            partition, position = _read_partition(topic_id, data, position)
            partitions.append(partition)
        position = skip_tags(data, position)
    if skip_tags(data, position) != len(data):
        raise ValueError("there are bytes behind the answer")
    return Answer(error_code, session_id, partitions)


def _read_partition(topic_id: bytes, data: memoryview, position: int) -> tuple[Answered, int]:
    index, error_code, high_watermark, _, log_start = _DATA.unpack_from(data, position)
    aborted, position = read_count(data, position + _DATA.size, True)
    for _ in range(aborted):
        position = skip_tags(data, position + _ABORTED_BYTES)
    position += INT32.size  # a replica that a consumer might prefer
    size, position = read_bytes_size(data, position, True)
    records = data[position : position + size]
    diverging, position = _read_tags(data, position + size)
    answered = Answered(topic_id, index, error_code, high_watermark, log_start, diverging, records)
    return answered, position


def _read_tags(data: memoryview, position: int) -> tuple[EpochEnd | None, int]:
    count, position = read_uvarint(data, position)
    fields, position = read_tagged(data, position, count)
    if _DIVERGING_TAG not in fields:
        return None, position
    return EpochEnd(*_DIVERGING.unpack_from(fields[_DIVERGING_TAG])), position
