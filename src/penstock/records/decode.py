"""One batch's records in plain Python: for a timestamp look-up, `penstock log dump` and tests.

The broker's produce and fetch paths never come here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.records.batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_LOG_APPEND_TIME,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    Buffer,
    crc_of,
    read_header,
)
from penstock.records.compression import compress, decompress

Header = tuple[str, bytes | None]


class BadRecordError(PenstockError):
    """The bytes inside a batch are not the records its header promises."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The zigzag varint at `position`, and the position behind it."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise BadRecordError("a varint is too long")


def write_varint(value: int) -> bytes:
    """`value` as a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def records_of(batch: Buffer) -> Iterator[Record]:
    """Every record of a whole batch, decompressed, with its offset and timestamp."""
    header = read_header(batch)
    data = decompress(header.attributes & ATTRIBUTE_COMPRESSION, memoryview(batch)[HEADER_BYTES:])
    stamped = bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME)
    position = 0
    try:
        for _ in range(header.record_count):
            size, start = read_varint(data, position)
            position = start + size
            if size <= 0 or position > len(data):
                raise BadRecordError("a record extends past its batch")
            yield _record(data[start:position], header, stamped)
        if position != len(data):
            raise BadRecordError("bytes behind the last record")
    except IndexError:
        raise BadRecordError("a record extends past its batch") from None


def _record(data: bytes, header: BatchHeader, stamped: bool) -> Record:
    timestamp_delta, position = read_varint(data, 1)
    offset_delta, position = read_varint(data, position)
    key, position = _nullable(data, position)
    value, position = _nullable(data, position)
    count, position = read_varint(data, position)
    headers: list[Header] = []
    for _ in range(count):
        name, position = _nullable(data, position)
        content, position = _nullable(data, position)
        headers.append(((name or b"").decode("utf-8", "replace"), content))
    if position != len(data):
        raise BadRecordError("a record's fields do not fill it")
    timestamp = header.max_timestamp if stamped else header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def _nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def encode_batch(
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    timestamp: int = 0,
    base_offset: int = 0,
    codec: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    headers: Sequence[Header] = (),
) -> bytearray:
    """A sound batch of (key, value) records, a millisecond apart. For tests and small tools."""
    body = bytearray()
    count = 0
    for count, (key, value) in enumerate(records, start=1):
        record = bytearray(1)
        record += write_varint(count - 1) + write_varint(count - 1)
        for item in (key, value):
            record += write_varint(-1) if item is None else write_varint(len(item)) + item
        record += write_varint(len(headers))
        for name, content in headers:
            record += write_varint(len(name.encode())) + name.encode()
            record += write_varint(-1) if content is None else write_varint(len(content)) + content
        body += write_varint(len(record)) + record
    payload = compress(codec, bytes(body))
    last = count - 1
    batch = bytearray(HEADER_BYTES) + payload
    fields = (base_offset, len(batch) - LENGTH_OVERHEAD, 0, MAGIC)
    rest = (
        codec,
        last,
        timestamp,
        timestamp + last,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    HEADER.pack_into(batch, 0, *fields, 0, *rest)
    HEADER.pack_into(batch, 0, *fields, crc_of(batch), *rest)
    return batch
