"""The record batch, version 2: its 61-byte header, read and patched where it lies.

    0         8        12       16    17   21          23             27            35
    baseOffset length   epoch    magic crc  attributes  lastOffsetDelta baseTimestamp maxTimestamp
    43         51            53           57           61
    producerId producerEpoch baseSequence recordCount  records…

`length` counts what follows it, so a batch is `length + 12` bytes. The CRC (CRC-32C) covers everything
from `attributes` on: base offset and leader epoch can be patched without touching it. A batch is never
parsed here beyond its header; `decode.py` does that for the few who need records.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.errors import ApiError, ErrorCode

Buffer = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_OVERHEAD: Final = 12  # base offset and the length field itself
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
NO_PRODUCER: Final = -1

ATTRIBUTE_COMPRESSION: Final = 0x07
ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
COMPRESSION_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

CRC_START: Final = 21
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC_AND_ATTRIBUTES: Final = struct.Struct(">Ih")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_unpack = HEADER.unpack_from


class BatchHeader(NamedTuple):
    """A batch's header. Unchecked: `check` is what makes it trustworthy."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> str:
        return COMPRESSION_NAMES[self.attributes & ATTRIBUTE_COMPRESSION]

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, which must have 61 bytes behind it."""
    return BatchHeader._make(_unpack(buffer, position))


def crc_of(batch: Buffer) -> int:
    """The CRC that a whole batch should carry."""
    return crc32c(memoryview(batch)[CRC_START:])


def check_produced(batch: memoryview, bytes_max: int) -> BatchHeader:
    """The header of exactly one sound batch from a producer, or `ApiError` with Kafka's code."""
    size = len(batch)
    if size < HEADER_BYTES:
        raise ApiError(ErrorCode.corrupt_message, f"a record batch cannot be {size} bytes long")
    header = BatchHeader._make(_unpack(batch, 0))
    if header.magic != MAGIC:
        raise ApiError(
            ErrorCode.invalid_record, f"record batch version {header.magic}; only 2 is accepted"
        )
    if header.length + LENGTH_OVERHEAD != size:
        if HEADER_BYTES <= header.length + LENGTH_OVERHEAD < size:
            raise ApiError(ErrorCode.invalid_record, "more than one record batch for a partition")
        raise ApiError(ErrorCode.corrupt_message, "the record batch is truncated")
    if size > bytes_max:
        raise ApiError(
            ErrorCode.message_too_large,
            f"the batch has {size} bytes, max.message.bytes is {bytes_max}",
        )
    if crc32c(batch[CRC_START:]) != header.crc:
        raise ApiError(ErrorCode.corrupt_message, "the record batch fails its CRC")
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise ApiError(ErrorCode.invalid_record, f"a batch of {count} records is inconsistent")
    attributes = header.attributes
    if attributes & (ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL):
        raise ApiError(
            ErrorCode.invalid_record, "transactional and control batches are not accepted yet"
        )
    if attributes & ATTRIBUTE_LOG_APPEND_TIME:
        raise ApiError(
            ErrorCode.invalid_timestamp, "only the broker marks records as stamped on arrival"
        )
    if attributes & ATTRIBUTE_COMPRESSION >= len(COMPRESSION_NAMES):
        raise ApiError(ErrorCode.unsupported_compression_type, "unknown compression codec")
    return header


def assign(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log. Leaves the CRC valid."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, LENGTH_OVERHEAD, leader_epoch)


def stamp_append_time(batch: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Mark the batch as stamped on arrival and renew its CRC; the header as it is then."""
    attributes = header.attributes | ATTRIBUTE_LOG_APPEND_TIME
    _CRC_AND_ATTRIBUTES.pack_into(batch, 17, 0, attributes)
    _MAX_TIMESTAMP.pack_into(batch, 35, now_ms)
    crc = crc_of(batch)
    _CRC_AND_ATTRIBUTES.pack_into(batch, 17, crc, attributes)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)
