"""The inner loops of encoding: measure the records of a batch, then write them to where they go."""

from __future__ import annotations

from typing import Any

from penstock.records.arrow.columns import Span, size_of, start_of
from penstock.records.arrow.memory import (
    copy_bytes,
    int64_at,
    kernel,
    put_byte,
    varint_size,
    write_varint,
)

Spans = tuple[Span, Span, Span, Span, Span]  # keys, values, headers, their names, their values


@kernel
def _row(rows: int, index: int) -> int:
    row: int = int64_at(rows + 8 * index) if rows else index
    return row


@kernel
def _timestamp(timestamps: int, constant: int, row: int) -> int:
    timestamp: int = int64_at(timestamps + 8 * row) if timestamps else constant
    return timestamp


@kernel
def _field_size(span: Span, row: int) -> int:
    size = size_of(span, row)
    return varint_size(size) + max(size, 0)


@kernel
def measure_batch(
    spans: Spans,
    timestamps: int,
    constant: int,
    rows: int,
    first: int,
    count: int,
    bytes_max: int,
    sizes: Any,
) -> tuple[int, int, int]:
    """How many records from `first` on fit `bytes_max` together (at least one), their bytes, their last time.

    `sizes` gets what each record's own length will say, from index 0 on. `rows` is the address of the
    rows' numbers, 0 for all in order; `timestamps` of their milliseconds, 0 if all have `constant`.
    """
    keys, values, headers, names, contents = spans
    base_timestamp = _timestamp(timestamps, constant, _row(rows, first))
    max_timestamp = base_timestamp
    total = 0
    for index in range(count - first):
        row = _row(rows, first + index)
        timestamp = _timestamp(timestamps, constant, row)
        size = 1 + varint_size(timestamp - base_timestamp) + varint_size(index)
        size += _field_size(keys, row) + _field_size(values, row)
        entries = max(size_of(headers, row), 0)
        size += varint_size(entries)
        if entries:
            entry = start_of(headers, row)
            for number in range(entry, entry + entries):
                size += _field_size(names, number) + _field_size(contents, number)
        whole = size + varint_size(size)
        if index and total + whole > bytes_max:
            return index, total, max_timestamp
        total += whole
        sizes[index] = size
        max_timestamp = max(max_timestamp, timestamp)
    return count - first, total, max_timestamp


@kernel
def _put_field(address: int, span: Span, row: int) -> int:
    size = size_of(span, row)
    address = write_varint(address, size)
    if size > 0:
        copy_bytes(address, span[2] + start_of(span, row), size)
        address += size
    return address


@kernel
def write_batch(
    spans: Spans,
    timestamps: int,
    constant: int,
    rows: int,
    first: int,
    count: int,
    sizes: Any,
    address: int,
) -> int:
    """Write `count` records that `measure_batch` measured to an address; the address behind them."""
    keys, values, headers, names, contents = spans
    base_timestamp = _timestamp(timestamps, constant, _row(rows, first))
    for index in range(count):
        row = _row(rows, first + index)
        address = write_varint(address, sizes[index])
        put_byte(address, 0)  # a record's attributes: none are defined
        address = write_varint(address + 1, _timestamp(timestamps, constant, row) - base_timestamp)
        address = write_varint(address, index)
        address = _put_field(address, keys, row)
        address = _put_field(address, values, row)
        entries = max(size_of(headers, row), 0)
        address = write_varint(address, entries)
        if entries:
            entry = start_of(headers, row)
            for number in range(entry, entry + entries):
                address = _put_field(address, names, number)
                address = _put_field(address, contents, number)
    return address
