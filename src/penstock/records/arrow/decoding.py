"""What a Fetch returned for a partition, as Arrow columns in the types of Spark.

The way of the bytes: `fetched.py` walks the batches; those with records in the wanted range are
decompressed, or used where they lie; one call of `decode_kernels.py` writes the columns that were asked
for, and Arrow wraps those without another copy. A column that was not asked for costs nothing, and
counting alone does not even decompress.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.records.arrow import decode_kernels as kernels
from penstock.records.arrow.fetched import (
    AbortedTransaction,
    CorruptBatchError,
    FetchedBatch,
    batches_of,
)
from penstock.records.arrow.memory import address_of
from penstock.records.batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_LOG_APPEND_TIME,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
)
from penstock.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from penstock.records.decode import BadRecordError

__all__ = ["COLUMNS", "TYPES", "AbortedTransaction", "CorruptBatchError", "Decoded", "decode"]

TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}
COLUMNS: Final = tuple(TYPES)

_WANTED: Final = {
    "key": kernels.KEY,
    "value": kernels.VALUE,
    "offset": kernels.OFFSET,
    "timestamp": kernels.TIMESTAMP,
    "timestampType": kernels.TIMESTAMP_TYPE,
    "headers": kernels.HEADERS,
}
_COLUMN_BYTES_MAX: Final = 2**31 - 1  # Arrow's offsets have 32 bits
_RECORD_BYTES_MIN: Final = 7  # each of its fields takes a byte


class TooLargeError(PenstockError):
    """More records at once than an Arrow column can hold: ask for fewer bytes per fetch."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`rows` records as columns. The next fetch is for `next_offset`."""

    rows: int
    columns: dict[str, pa.Array]
    next_offset: int


def decode(
    data: Buffer,
    *,
    columns: Collection[str],
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    check_crc: bool = True,
) -> Decoded:
    """The records of `data` with `start <= offset < end`, as the named columns.

    `data` holds whole batches and maybe a torn one at its end, which is ignored. Markers of
    transactions are left out, and so are the records of those that `aborted` names. `next_offset` is one
    past the last offset that the whole batches cover, whether there was a record or not, at most `end`;
    it is `start` if there was no whole batch.

    Headers are null if a record has none. Raises `CorruptBatchError`, `BadRecordError` or
    `CompressionError` for damaged bytes, `TooLargeError` for more than 2 GiB of records.
    Copies what it returns: `data` may be reused at once. Releases the GIL for most of its time.
    """
    unknown = set(columns) - _WANTED.keys()
    assert not unknown, f"no such columns: {unknown}"
    view = memoryview(data).cast("B")
    table = _Table(view)
    next_offset = start
    counted = 0
    for batch in batches_of(view, aborted, check_crc):
        header = batch.header
        next_offset = min(max(next_offset, header.last_offset + 1), end)
        if header.base_offset >= end:
            break
        if not batch.visible or header.last_offset < start or not header.record_count:
            continue
        if not columns and start <= header.base_offset and header.last_offset < end:
            counted += header.record_count
        else:
            table.add(batch)
    rows, decoded = table.decode(columns, start, end)
    return Decoded(counted + rows, decoded, next_offset)


class _Table:
    """Batches to be decoded at once: their fields as the kernel wants them, and their bytes, kept alive."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._address = address_of(view)
        self._batches: list[tuple[int, ...]] = []
        self._decompressed: list[bytes] = []
        self._bytes = 0
        self._records = 0

    def add(self, batch: FetchedBatch) -> None:
        header = batch.header
        first = batch.position + HEADER_BYTES
        codec = header.attributes & ATTRIBUTE_COMPRESSION
        if codec:
            body = self._view[first : batch.position + header.size_bytes]
            left = min(_COLUMN_BYTES_MAX - self._bytes, DECOMPRESSED_BYTES_MAX)
            records = decompress(codec, body, left)
            self._decompressed.append(records)
            address, size = address_of(records), len(records)
        else:
            address, size = self._address + first, header.size_bytes - HEADER_BYTES
        # A number of records is believed only if they can be there: it decides what is allocated.
        if header.record_count * _RECORD_BYTES_MIN > size:
            raise BadRecordError(f"{header.record_count} records cannot be in {size} bytes")
        self._bytes += size
        self._records += header.record_count
        if self._bytes > _COLUMN_BYTES_MAX:
            raise TooLargeError(f"the fetched records have more than {_COLUMN_BYTES_MAX} bytes")
        self._batches.append(_row(header, address, size))

    def decode(self, columns: Collection[str], start: int, end: int) -> tuple[int, dict[str, Any]]:
        wanted = sum({_WANTED[name] for name in columns})
        batches = np.array(self._batches, np.int64).reshape(-1, kernels.BATCH_FIELDS)
        capacity = self._records
        offsets = np.empty(capacity if "offset" in columns else 0, np.int64)
        timestamps = np.empty(capacity if "timestamp" in columns else 0, np.int64)
        types = np.empty(capacity if "timestampType" in columns else 0, np.int32)
        headers = np.empty((capacity if "headers" in columns else 0, 2), np.int64)
        keys = _BytesColumn(*((capacity, self._bytes) if "key" in columns else (0, 0)))
        values = _BytesColumn(*((capacity, self._bytes) if "value" in columns else (0, 0)))
        rows = kernels.decode_records(
            batches,
            start,
            end,
            wanted,
            offsets,
            timestamps,
            types,
            *keys.arguments(),
            *values.arguments(),
            headers,
        )
        _raise_if_bad(rows)
        makers = {
            "key": lambda: keys.array(rows, TYPES["key"]),
            "value": lambda: values.array(rows, TYPES["value"]),
            "offset": lambda: _fixed(rows, offsets, TYPES["offset"]),
            "timestamp": lambda: _fixed(rows, timestamps, TYPES["timestamp"]),
            "timestampType": lambda: _fixed(rows, types, TYPES["timestampType"]),
            "headers": lambda: _headers(headers[:rows]),
        }
        return rows, {name: makers[name]() for name in columns}


def _row(header: BatchHeader, address: int, size: int) -> tuple[int, ...]:
    stamped = bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME)
    return (
        address,
        size,
        header.base_offset,
        header.last_offset_delta,
        header.record_count,
        header.max_timestamp if stamped else header.base_timestamp,
        int(stamped),
    )


class _BytesColumn:
    """A column of nullable bytes while a kernel writes it; room is made for as many as there can be.

    What is not written is never touched, so it takes no memory.
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._ends = np.empty(rows_max + 1, np.int32)
        self._ends[0] = 0
        self._content = np.empty(bytes_max, np.uint8)
        self._valid = np.empty(rows_max, np.uint8)
        self._written = np.zeros(2, np.int64)

    def arguments(self) -> tuple[Any, int, Any, Any]:
        """As the kernels take it."""
        return self._ends, address_of(self._content), self._valid, self._written  # type: ignore[arg-type]

    def array(self, rows: int, type_: Any) -> pa.Array:
        used, nulls = self._written.tolist()
        buffers = [
            _validity(self._valid[:rows]) if nulls else None,
            pa.py_buffer(self._ends[: rows + 1]),
            pa.py_buffer(self._content[:used]),
        ]
        return pa.Array.from_buffers(type_, rows, buffers, nulls)


def _validity(valid: np.ndarray[Any, Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed(rows: int, values: np.ndarray[Any, Any], type_: Any) -> pa.Array:
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(values[:rows])], 0)


def _headers(spans: np.ndarray[Any, Any]) -> pa.Array:
    """The column of headers, from where those of each row lie."""
    rows = len(spans)
    ends = np.zeros(rows + 1, np.int32)
    valid = np.empty(rows, np.uint8)
    count = kernels.count_headers(spans, ends, valid)
    _raise_if_bad(count)
    bytes_max = int((spans[:, 1] - spans[:, 0]).sum())
    names = _BytesColumn(count, bytes_max)
    values = _BytesColumn(count, bytes_max)
    foreign_letters = kernels.decode_headers(spans, ends, *names.arguments(), *values.arguments())
    _raise_if_bad(foreign_letters)
    struct_type = TYPES["headers"].value_type
    name_array = names.array(count, pa.binary() if foreign_letters else pa.string())
    if foreign_letters:
        # Arrow's text must be sound UTF-8, which a producer did not have to send.
        text = [name.decode("utf-8", "replace") for name in name_array.to_pylist()]
        name_array = pa.array(text, pa.string())
    entries = pa.StructArray.from_arrays(
        [name_array, values.array(count, pa.binary())], fields=list(struct_type)
    )
    nulls = rows - int(np.count_nonzero(valid))
    buffers = [_validity(valid) if nulls else None, pa.py_buffer(ends)]
    return pa.Array.from_buffers(TYPES["headers"], rows, buffers, nulls, children=[entries])


def _raise_if_bad(result: int) -> None:
    if result < 0:
        raise BadRecordError(kernels.REASONS[result])
