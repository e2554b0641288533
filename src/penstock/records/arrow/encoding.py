"""Arrow columns to record batches that a producer can send, without a Python object per record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.records.arrow import encode_kernels as kernels
from penstock.records.arrow.columns import bytes_column, header_columns, milliseconds_of
from penstock.records.arrow.memory import address_of
from penstock.records.batch import (
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    crc_of,
)
from penstock.records.compression import compress

_BATCH_BYTES_MAX: Final = 2**31 - 1  # the length of a batch has 32 bits
_NO_LEADER_EPOCH: Final = -1
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43


class RecordTooLargeError(PenstockError):
    """One record alone is larger than a batch can be."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One record batch, version 2: base offset 0, no producer, a right CRC. `data` may be written to."""

    data: memoryview
    records: int


def encode(
    *,
    keys: pa.Array | None,
    values: pa.Array | None,
    headers: pa.Array | None,
    timestamps: pa.Array | int,
    rows: np.ndarray[Any, Any] | None,
    codec: int,
    bytes_max: int,
) -> Iterator[Encoded]:
    """The rows as record batches of at most `bytes_max` bytes before compression.

    A record that is larger by itself gets a batch of its own. `rows` says which rows, in which order;
    None: all. Keys and values are binary or string of any of Arrow's kinds, sliced or chunked; None: all
    null. Headers are lists of structs (key, value); null is none. Timestamps are Arrow timestamps or
    milliseconds, or one number of milliseconds for all.

    Reads the columns while it is iterated. Raises `ColumnTypeError`, `RecordTooLargeError`.
    """
    source = _source(keys, values, headers, timestamps, rows)
    bound = min(max(bytes_max, 0), _BATCH_BYTES_MAX) - HEADER_BYTES
    sizes = np.empty(source.records, np.int64)
    first = 0
    while first < source.records:
        records, size, max_timestamp = kernels.measure_batch(
            *source.arguments, first, source.records, bound, sizes
        )
        if size > _BATCH_BYTES_MAX - HEADER_BYTES:
            raise RecordTooLargeError(f"a record has {size} bytes, more than a batch can hold")
        batch = np.empty(HEADER_BYTES + size, np.uint8)
        records_at = _address(batch) + HEADER_BYTES
        kernels.write_batch(*source.arguments, first, records, sizes, records_at)
        data = _packed(batch.data, codec)
        _put_header(data, codec, records, source.timestamp(first), max_timestamp)
        yield Encoded(data, records)
        first += records


class _Source(NamedTuple):
    """What is encoded: as the kernels take it, and the arrays that must stay alive meanwhile."""

    spans: kernels.Spans
    times: np.ndarray[Any, Any] | None
    constant: int
    rows: np.ndarray[Any, Any] | None
    records: int
    owners: tuple[Any, ...]

    @property
    def arguments(self) -> tuple[kernels.Spans, int, int, int]:
        return self.spans, _address(self.times), self.constant, _address(self.rows)

    def timestamp(self, index: int) -> int:
        if self.times is None:
            return self.constant
        return int(self.times[index if self.rows is None else self.rows[index]])


def _source(keys: Any, values: Any, headers: Any, timestamps: Any, rows: Any) -> _Source:
    """Check that the columns fit each other and the rows: the kernels do not."""
    columns = (bytes_column(keys), bytes_column(values), *header_columns(headers))
    lengths = {column.rows for column in columns[:3]} - {None}
    times, constant = None, 0
    if isinstance(timestamps, int):
        constant = timestamps
    else:
        times = milliseconds_of(timestamps)
        lengths.add(len(times))
    assert len(lengths) <= 1, f"columns of different lengths: {lengths}"
    length = next(iter(lengths), None)
    if rows is not None:
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) and length is not None:
            assert rows.min() >= 0, "a row before the first"
            assert rows.max() < length, "a row behind the last"
        length = len(rows)
    assert length is not None, "neither a column nor rows say how many records there are"
    keys, values, lists, names, contents = (column.span for column in columns)
    spans = (keys, values, lists, names, contents)
    owners = tuple(column.owner for column in columns)
    return _Source(spans, times, constant, rows, length, owners)


def _address(array: np.ndarray[Any, Any] | None) -> int:
    return 0 if array is None else address_of(array.data)


def _packed(batch: memoryview, codec: int) -> memoryview:
    """The batch with its records compressed."""
    if codec == 0:
        return batch
    records = memoryview(compress(codec, batch[HEADER_BYTES:]))
    packed = np.empty(HEADER_BYTES + len(records), np.uint8).data
    packed[HEADER_BYTES:] = records
    return packed


def _put_header(
    batch: memoryview, codec: int, records: int, base_timestamp: int, max_timestamp: int
) -> None:
    length = len(batch) - LENGTH_OVERHEAD
    times = (base_timestamp, max_timestamp)
    rest = (codec, records - 1, *times, NO_PRODUCER, -1, -1, records)
    HEADER.pack_into(batch, 0, 0, length, _NO_LEADER_EPOCH, MAGIC, 0, *rest)
    _CRC.pack_into(batch, _CRC_AT, crc_of(batch))


def stamp_producer(
    batch: bytearray | memoryview, *, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Say who sends the batch and where it stands among what they sent; the CRC is made right again."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_AT, crc_of(batch))
