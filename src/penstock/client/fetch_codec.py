"""Fetch of one partition, versions 4 to 17, by hand: records are neither parsed nor copied.

version 5    log start offset              version 12   flexible, last fetched epoch
version 7    sessions (we have none)       version 13   topics by id
version 9    current leader epoch          version 15   the replica id is a tagged field
version 11   rack id, preferred replica

From version 15 on, a Penstock broker can be asked to say where the records are: `wire.FileReference`.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

from penstock.client.wire import read_string
from penstock.machine import boot_id
from penstock.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from penstock.wire import (
    BY_REFERENCE,
    INT32,
    FileReference,
    read_bytes_size,
    read_count,
    read_tagged,
    read_uvarint,
    skip_tags,
    write_count,
    write_string,
    write_uvarint,
)

TOPIC_IDS_FROM: Final = 13
REFERENCES_FROM: Final = 15
_FLEXIBLE_FROM: Final = 12
_NO_SESSION: Final = struct.pack(">ii", 0, -1)
_CONSUMER: Final = INT32.pack(-1)  # who asks is no replica

_WAIT_MIN_MAX_ISOLATION: Final = struct.Struct(">iiib")
_PARTITION_4: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iqqi")
_PARTITION_9: Final = struct.Struct(">iiqqi")
_PARTITION_12: Final = struct.Struct(">iiqiqi")

_HEAD: Final = struct.Struct(">ihi")  # throttle time, error code, session id
_DATA_4: Final = struct.Struct(">ihqq")
_DATA_5: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_LAST_OFFSET_DELTA: Final = 23  # where it is in a batch
_MAGIC: Final = 16


class FetchRequest(NamedTuple):
    topic: str
    topic_id: uuid.UUID | None
    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int
    wait_ms: int
    isolation: int  # 1: only what is committed
    by_reference: bool = False


class PartitionData(NamedTuple):
    """The answer for the partition. `records` are a view of the buffer it was received in."""

    throttle_ms: int
    error_code: int
    high_watermark: int
    last_stable: int
    log_start: int  # -1: the version does not tell
    aborted: list[tuple[int, int]]  # producer id, first offset
    records: memoryview
    reference: FileReference | None = None  # where they are, if they did not come


def encode_request(version: int, request: FetchRequest) -> bytes:
    flexible = version >= _FLEXIBLE_FROM
    topic = (
        request.topic_id.bytes
        if version >= TOPIC_IDS_FROM and request.topic_id is not None
        else write_string(request.topic, flexible)
    )
    tags = b"\x00" if flexible else b""
    parts = [
        b"" if version >= 15 else _CONSUMER,
        _WAIT_MIN_MAX_ISOLATION.pack(request.wait_ms, 1, request.bytes_max, request.isolation),
        _NO_SESSION if version >= 7 else b"",
        write_count(1, flexible),
        topic,
        write_count(1, flexible),
        _partition(version, request),
        tags,  # of the partition
        tags,  # of the topic
        write_count(0, flexible) if version >= 7 else b"",  # forgotten topics
        write_string("", flexible) if version >= 11 else b"",  # rack
        _by_reference() if request.by_reference and version >= REFERENCES_FROM else tags,
    ]
    return b"".join(parts)


def _by_reference() -> bytes:
    """The only tagged field: on which machine references can be followed."""
    machine = boot_id().encode()
    return b"\x01" + write_uvarint(BY_REFERENCE) + write_uvarint(len(machine)) + machine


def _partition(version: int, request: FetchRequest) -> bytes:
    _, _, index, epoch, offset, size, *_ = request
    if version >= 12:
        return _PARTITION_12.pack(index, epoch, offset, -1, -1, size)
    if version >= 9:
        return _PARTITION_9.pack(index, epoch, offset, -1, size)
    if version >= 5:
        return _PARTITION_5.pack(index, offset, -1, size)
    return _PARTITION_4.pack(index, offset, size)


def decode_response(version: int, data: memoryview, position: int) -> PartitionData:
    """The one partition that was asked for. Raises one of `MALFORMED` if the bytes are no answer."""
    flexible = version >= _FLEXIBLE_FROM
    throttle_ms: int = INT32.unpack_from(data, position)[0]
    if version >= 7:
        throttle_ms, error_code, _ = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        if error_code:
            return PartitionData(throttle_ms, error_code, -1, -1, -1, [], data[:0])
    else:
        position += 4
    topics, position = read_count(data, position, flexible)
    if not topics:
        return PartitionData(throttle_ms, 0, -1, -1, -1, [], data[:0])
    if version >= TOPIC_IDS_FROM:
        position += 16
    else:
        _, position = read_string(data, position, flexible)
    partitions, position = read_count(data, position, flexible)
    if topics != 1 or partitions != 1:
        raise ValueError(f"{topics} topics and {partitions} partitions, where one was asked for")
    return _read_partition(version, data, position, throttle_ms)


def _read_partition(
    version: int, data: memoryview, position: int, throttle_ms: int
) -> PartitionData:
    flexible = version >= _FLEXIBLE_FROM
    log_start = -1
    if version >= 5:
        _, error, high_watermark, stable, log_start = _DATA_5.unpack_from(data, position)
        position += _DATA_5.size
    else:
        _, error, high_watermark, stable = _DATA_4.unpack_from(data, position)
        position += _DATA_4.size
    count, position = read_count(data, position, flexible)
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(data, position)
        aborted.append((producer_id, first_offset))
        position += _ABORTED.size
        if flexible:
            position = skip_tags(data, position)
    if version >= 11:
        position += 4  # a replica that we might prefer
    size, position = read_bytes_size(data, position, flexible)
    records = data[position : position + size]
    reference = _read_reference(data, position + size) if flexible else None
    return PartitionData(
        throttle_ms, error, high_watermark, stable, log_start, aborted, records, reference
    )


def _read_reference(data: memoryview, position: int) -> FileReference | None:
    """Of the tagged fields of a partition, the one that we know."""
    count, position = read_uvarint(data, position)
    fields, _ = read_tagged(data, position, count)
    return FileReference.decode(fields[BY_REFERENCE]) if BY_REFERENCE in fields else None


class Whole(NamedTuple):
    """The whole batches at the front of what came. `missing` is what a torn first batch would need."""

    size: int
    next_offset: int  # behind the last of them
    missing: int = 0


def whole_batches(records: memoryview, position: int, end: int) -> Whole:
    """How much of `records` is whole batches that begin below `end`. One step for each batch.

    `position` is the offset that was asked for: the one that comes next if there is no batch. Raises
    ValueError for bytes that are no batches.
    """
    size = len(records)
    here = last = 0
    unpack = _OFFSET_AND_LENGTH.unpack_from
    while size - here >= HEADER_BYTES:
        base_offset, length = unpack(records, here)
        if base_offset >= end:
            return Whole(here, end)
        stop = here + length + LENGTH_OVERHEAD
        if stop - here < HEADER_BYTES:
            raise ValueError(f"a batch of {length} bytes")
        if stop > size:
            if not here:
                return Whole(0, position, missing=stop)
            break
        last, here = here, stop
    if not here:
        return Whole(0, position)
    if records[last + _MAGIC] != MAGIC:
        raise ValueError(f"record format {records[last + _MAGIC]}; only {MAGIC} can be read")
    base_offset = unpack(records, last)[0]
    next_offset = base_offset + INT32.unpack_from(records, last + _LAST_OFFSET_DELTA)[0] + 1
    if next_offset <= position:
        raise ValueError(f"offsets up to {next_offset} where {position} was asked for")
    return Whole(here, min(next_offset, end))
