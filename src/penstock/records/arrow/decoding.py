"""What a Fetch returned for a partition, as Arrow columns in the types of Spark.

The way of the bytes: `fetched.py` walks the batches; those with records in the wanted range are
decompressed, or used where they lie; one call of `decode_kernels.py` writes the columns that were asked
for, and Arrow wraps those without another copy. A column that was not asked for costs nothing, and
counting alone does not even decompress.

Bytes that compress well may hold a thousand times their size, so what is decompressed at once is bounded
by what comes of it: the records of one fetch may come in several pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.records.arrow import decode_kernels as kernels
from penstock.records.arrow.fetched import (
    AbortedTransaction,
    CorruptBatchError,
    batches_of,
)
from penstock.records.arrow.memory import address_of
from penstock.records.batch import (
    ATTRIBUTE_COMPRESSION,
    HEADER_BYTES,
    Buffer,
)
from penstock.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    TooManyBytesError,
    decompress_view,
)
from penstock.records.decode import BadRecordError

__all__ = [
    "COLUMNS",
    "TYPES",
    "AbortedTransaction",
    "CorruptBatchError",
    "Decoded",
    "TooLargeError",
    "decode_in_pieces",
]

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
_PIECE_BYTES: Final = 32 << 20
_COLUMN_BYTES_MAX: Final = 2**31 - 1  # Arrow's offsets have 32 bits; so has the size of a batch
_LIKELY_MORE: Final = 4096
_RECORD_BYTES_MIN: Final = 7  # each of its fields takes a byte


class TooLargeError(PenstockError):
    """The records of a single batch are more than can be held at once."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`rows` records as columns. What comes behind them begins at `next_offset`."""

    rows: int
    columns: dict[str, pa.Array]
    next_offset: int


def decode_in_pieces(
    data: Buffer,
    *,
    columns: Collection[str],
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    check_crc: bool = True,
    piece_bytes: int = _PIECE_BYTES,
) -> Iterator[Decoded]:
    """The records of `data` with `start <= offset < end`, as the named columns: one piece or more.

    A piece is made of whole batches, which have at most `piece_bytes` of decompressed records, or of a
    single batch that has more. Nothing else is decompressed until the next piece is asked for.

    `data` holds whole batches and maybe a torn one at its end, which is ignored. Markers of
    transactions are left out, and so are the records of those that `aborted` names. `next_offset` of the
    last piece is one past the last offset that the whole batches cover, whether there was a record or
    not, at most `end`; it is `start` if there was no whole batch.

    Headers are null if a record has none. Raises `CorruptBatchError`, `BadRecordError` or
    `CompressionError` for damaged bytes, `TooLargeError` for a batch that cannot be held.
    Copies what it returns: `data` may be reused behind the last piece. Releases the GIL for most of its
    time.
    """
    unknown = set(columns) - _WANTED.keys()
    assert not unknown, f"no such columns: {unknown}"
    assert 0 < piece_bytes <= _COLUMN_BYTES_MAX
    view = memoryview(data).cast("B")
    batches, next_offset = batches_of(view, end, aborted, check_crc)
    first = batches[:, kernels.BASE_OFFSET]
    last = first + batches[:, kernels.LAST_OFFSET_DELTA]
    counted = 0
    if columns:
        wanted = (last >= start) & (first < end)
    else:
        inside = (first >= start) & (last < end)
        counted = int(batches[inside, kernels.RECORD_COUNT].sum())
        wanted = (last >= start) & (first < end) & ~inside
    if not wanted.all():
        batches, last = batches[wanted], last[wanted]
    behind = 0
    for piece, records in _pieces(view, batches, piece_bytes):
        rows, decoded = _decode(piece, columns, start, end)
        records.clear()  # the caller may take its time
        behind += len(piece)
        if behind < len(batches):
            yield Decoded(rows, decoded, int(last[behind - 1]) + 1)
        else:
            yield Decoded(counted + rows, decoded, min(max(next_offset, start), end))


def _pieces(
    view: memoryview, batches: np.ndarray[Any, Any], piece_bytes: int
) -> Iterator[tuple[np.ndarray[Any, Any], list[Buffer]]]:
    """The table of batches, cut; each batch of a piece points to its decompressed records.

    They are in the list beside the piece, and there only: the caller clears it when it is done with them.
    """
    is_packed = batches[:, kernels.ATTRIBUTES] & ATTRIBUTE_COMPRESSION != 0
    if not is_packed.any() and batches[:, kernels.BODY_SIZE].sum() <= piece_bytes:
        yield batches, []
        return
    kept: list[Buffer] = []
    first, left = 0, piece_bytes
    ratio = 0.0  # batches of a partition are alike: the last one tells what to expect of the next
    fields = [kernels.ATTRIBUTES, kernels.POSITION, kernels.SIZE, kernels.BASE_OFFSET]
    for row, (attributes, position, size, offset) in enumerate(batches[:, fields].tolist()):
        codec = attributes & ATTRIBUTE_COMPRESSION
        packed = view[position + HEADER_BYTES : position + size]
        likely = min(int(ratio * size) + _LIKELY_MORE, piece_bytes) if ratio else 0
        # Not tried if it will hardly fit: to find that out takes as long as to decompress it.
        if kept and (likely >= left or not _open(codec, packed, left, likely, kept)):
            yield _pointed(batches[first:row], kept), kept
            kept, first, left = [], row, piece_bytes
        if not kept and not _open(codec, packed, _COLUMN_BYTES_MAX, likely, kept):
            raise TooLargeError(
                f"the batch at offset {offset} cannot be read: its records have more than "
                f"{DECOMPRESSED_BYTES_MAX >> 20} MiB when they are decompressed"
            )
        ratio = 1.25 * len(kept[-1]) / size
        left -= len(kept[-1])
    yield _pointed(batches[first:], kept), kept


def _open(codec: int, packed: memoryview, bytes_max: int, likely: int, kept: list[Buffer]) -> bool:
    """Add a batch's decompressed records to those that are kept, if they have at most `bytes_max`."""
    if codec == 0 and len(packed) > bytes_max:
        return False
    bytes_max = min(bytes_max, DECOMPRESSED_BYTES_MAX)
    try:
        kept.append(decompress_view(codec, packed, bytes_max, bytes_likely=likely))
    except TooManyBytesError:
        return False
    return True


def _pointed(batches: np.ndarray[Any, Any], records: list[Buffer]) -> np.ndarray[Any, Any]:
    batches[:, kernels.BODY] = [address_of(one) for one in records]
    batches[:, kernels.BODY_SIZE] = [len(one) for one in records]
    return batches


def _decode(
    batches: np.ndarray[Any, Any], columns: Collection[str], start: int, end: int
) -> tuple[int, dict[str, Any]]:
    sizes, counts = batches[:, kernels.BODY_SIZE], batches[:, kernels.RECORD_COUNT]
    # A number of records is believed only if they can be there: it decides what is allocated.
    if (counts * _RECORD_BYTES_MIN > sizes).any():
        raise BadRecordError("a batch has fewer bytes than its records need")
    room, nothing = (int(counts.sum()), int(sizes.sum())), (0, 0)
    keys = _BytesColumn(*(room if "key" in columns else nothing))
    values = _BytesColumn(*(room if "value" in columns else nothing))
    offsets = np.empty(room[0] if "offset" in columns else 0, np.int64)
    timestamps = np.empty(room[0] if "timestamp" in columns else 0, np.int64)
    types = np.empty(room[0] if "timestampType" in columns else 0, np.int32)
    headers = np.empty((room[0] if "headers" in columns else 0, 2), np.int64)
    rows = kernels.decode_records(
        batches,
        start,
        end,
        sum({_WANTED[name] for name in columns}),
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
