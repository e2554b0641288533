"""The inner loops of decoding: find the batches, then pass once over their records, into columns.

Hostile bytes are expected. A record may use only the bytes that its length gives it, and that only
those of its batch; so what is copied to a column is never more than the batches hold, which is how
large the caller makes each column. A row is written per record, and the caller makes room for as many
as the batches claim.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.records.arrow.memory import (
    big_int16_at,
    big_int32_at,
    big_int64_at,
    byte_at,
    copy_bytes,
    int64_at,
    kernel,
    put_byte,
    put_int32,
    put_int64,
    read_varint,
)
from penstock.records.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
)

# A row of the table of batches: what `scan_batches` finds, and where the records are.
BODY: Final = 0  # the address of the first record, once it is decompressed
BODY_SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET_DELTA: Final = 3
RECORD_COUNT: Final = 4
TIMESTAMP_BASE: Final = 5  # in ms; that of every record if it is stamped on arrival
APPEND_TIME: Final = 6  # 1 if it is
POSITION: Final = 7  # of the batch in what was fetched
SIZE: Final = 8
CRC: Final = 9
ATTRIBUTES: Final = 10
PRODUCER_ID: Final = 11
BATCH_FIELDS: Final = 12

# Which columns are wanted.
KEY: Final = 1
VALUE: Final = 2
OFFSET: Final = 4
TIMESTAMP: Final = 8
TIMESTAMP_TYPE: Final = 16
HEADERS: Final = 32

# A column of bytes, by addresses: where each field ends (int32, behind the first, which is 0), the fields
# themselves, whether each is there (a byte), and what was written: the bytes used and the nulls (int64 each).
Column = tuple[int, int, int, int]

# What a kernel returns instead of a count.
PAST_BATCH: Final = -1
PAST_RECORD: Final = -2
BEHIND_LAST: Final = -3
BAD_OFFSET: Final = -4
NOT_FILLED: Final = -5
REASONS: Final = {
    PAST_BATCH: "a record extends past its batch",
    PAST_RECORD: "a field extends past its record",
    BEHIND_LAST: "bytes behind the last record",
    BAD_OFFSET: "the offsets of a batch's records do not rise within it",
    NOT_FILLED: "a record's fields do not fill it",
}

_OFFSET_MAX: Final = 2**63 - 2
_MICROSECONDS_MAX: Final = 2**63 - 1
_MILLISECONDS_MAX: Final = _MICROSECONDS_MAX // 1000


@kernel
def scan_batches(address: int, size: int, end: int, batches: Any) -> tuple[int, int]:
    """Fill the table with the whole batches from an address on: their number, and where the scan stopped.

    It stops behind the last whole batch, behind one that begins at `end` or later, or at a header that
    cannot be true, which the caller recognises by reading it again.
    """
    position = 0
    count = 0
    offset_min = 0
    while position + HEADER_BYTES <= size:
        at = address + position
        base_offset = big_int64_at(at)
        length = big_int32_at(at + 8)
        last_delta = big_int32_at(at + 23)
        records = big_int32_at(at + 57)
        if byte_at(at + 16) != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD:
            break
        if base_offset < offset_min or last_delta < 0 or base_offset > _OFFSET_MAX - last_delta:
            break
        whole = length + LENGTH_OVERHEAD
        if records < 0 or whole > size - position:
            break
        attributes = big_int16_at(at + 21)
        append_time = (attributes & ATTRIBUTE_LOG_APPEND_TIME) != 0
        batches[count, BODY] = at + HEADER_BYTES
        batches[count, BODY_SIZE] = whole - HEADER_BYTES
        batches[count, BASE_OFFSET] = base_offset
        batches[count, LAST_OFFSET_DELTA] = last_delta
        batches[count, RECORD_COUNT] = records
        batches[count, TIMESTAMP_BASE] = big_int64_at(at + (35 if append_time else 27))
        batches[count, APPEND_TIME] = append_time
        batches[count, POSITION] = position
        batches[count, SIZE] = whole
        batches[count, CRC] = big_int32_at(at + 17) & 0xFFFF_FFFF
        batches[count, ATTRIBUTES] = attributes
        batches[count, PRODUCER_ID] = big_int64_at(at + 43)
        count += 1
        position += whole
        offset_min = base_offset + last_delta + 1
        if base_offset >= end:
            break
    return count, position


@kernel
def put_bytes(size: int, source: int, row: int, column: Column) -> None:
    """Append a nullable field to a column of bytes as its row `row`."""
    ends, content, valid, written = column
    used = int64_at(written)
    if size < 0:
        put_byte(valid + row, 0)
        put_int64(written + 8, int64_at(written + 8) + 1)
    else:
        put_byte(valid + row, 1)
        copy_bytes(content + used, source, size)
        used += size
        put_int64(written, used)
    put_int32(ends + 4 * (row + 1), used)


@kernel
def microseconds(milliseconds: int) -> int:
    """A record's time for Spark. What microseconds cannot hold becomes the farthest that they can."""
    if milliseconds > _MILLISECONDS_MAX:
        return _MICROSECONDS_MAX
    if milliseconds < -_MILLISECONDS_MAX:
        return -_MICROSECONDS_MAX
    return milliseconds * 1000


@kernel
def decode_records(  # noqa: C901
    batches: Any,
    start: int,
    end: int,
    wanted: int,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    keys: Column,
    values: Column,
    headers: Any,
) -> int:
    """Write the records with `start <= offset < end` to the wanted columns: their number, or a reason.

    A column that is not wanted may be empty: it is not touched. `headers` gets the address of each
    row's headers and the address behind them, for `count_headers` and `decode_headers`. Without those,
    the content of `values` may begin where the batches do: a value is only ever moved to the front, over
    what has been read.
    """
    row = 0
    for batch in range(len(batches)):
        position = batches[batch, BODY]
        limit = position + batches[batch, BODY_SIZE]
        base_offset = batches[batch, BASE_OFFSET]
        base_timestamp = batches[batch, TIMESTAMP_BASE]
        append_time = batches[batch, APPEND_TIME]
        last_delta = batches[batch, LAST_OFFSET_DELTA]
        previous_delta = -1
        for _ in range(batches[batch, RECORD_COUNT]):
            size, position = read_varint(position, limit)
            if size <= 0 or size > limit - position:
                return PAST_BATCH
            record_end = position + size
            delta, at = read_varint(position + 1, record_end)  # behind the unused attributes
            offset_delta, at = read_varint(at, record_end)
            key_size, key_at = read_varint(at, record_end)
            if key_size > record_end - key_at:
                return PAST_RECORD
            value_size, value_at = read_varint(key_at + max(key_size, 0), record_end)
            if max(value_size, 0) >= record_end - value_at:  # the headers' number is behind it
                return PAST_RECORD
            if offset_delta <= previous_delta or offset_delta > last_delta:
                return BAD_OFFSET
            previous_delta = offset_delta
            position = record_end
            offset = base_offset + offset_delta
            if offset < start:
                continue
            if offset >= end:
                position = limit
                break
            if wanted & KEY:
                put_bytes(key_size, key_at, row, keys)
            if wanted & VALUE:
                put_bytes(value_size, value_at, row, values)
            if wanted & OFFSET:
                offsets[row] = offset
            if wanted & TIMESTAMP:
                timestamps[row] = microseconds(base_timestamp + (0 if append_time else delta))
            if wanted & TIMESTAMP_TYPE:
                timestamp_types[row] = append_time
            if wanted & HEADERS:
                headers[row, 0] = value_at + max(value_size, 0)
                headers[row, 1] = record_end
            row += 1
        if position != limit:
            return BEHIND_LAST
    return row


@kernel
def count_headers(headers: Any, ends: Any, valid: Any) -> int:
    """The number of all headers, or a reason; and where those of each row end. None at all is null."""
    total = 0
    for row in range(len(headers)):
        limit = headers[row, 1]
        count, at = read_varint(headers[row, 0], limit)
        # A header has two bytes or more, so that a number is believed only if they are there.
        if count < 0 or count > (limit - at) // 2:
            return PAST_RECORD
        if count == 0 and at != limit:
            return NOT_FILLED
        headers[row, 0] = at
        valid[row] = count > 0
        total += count
        ends[row + 1] = total
    return total


@kernel
def decode_headers(headers: Any, row_ends: Any, names: Column, values: Column) -> int:
    """Write what `count_headers` counted: 1 if a name has other than ASCII letters, 0, or a reason."""
    header = 0
    letters = 0
    for row in range(len(headers)):
        at = headers[row, 0]
        limit = headers[row, 1]
        for _ in range(row_ends[row + 1] - row_ends[row]):
            name_size, name_at = read_varint(at, limit)
            if name_size > limit - name_at:
                return PAST_RECORD
            value_size, value_at = read_varint(name_at + max(name_size, 0), limit)
            if value_size > limit - value_at:
                return PAST_RECORD
            put_bytes(max(name_size, 0), name_at, header, names)
            put_bytes(value_size, value_at, header, values)
            for index in range(name_size):
                letters |= byte_at(name_at + index)
            at = value_at + max(value_size, 0)
            header += 1
        if at != limit:
            return NOT_FILLED
    return letters >> 7
