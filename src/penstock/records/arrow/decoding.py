"""What Fetches returned for a partition, as Arrow columns in the types of Spark.

The way of the bytes: `fetched.py` walks the batches; those with records in the wanted range are
decompressed, or used where they lie; one call of `decode_kernels.py` writes the columns that were asked
for, and Arrow wraps those without another copy. Values that lie in memory of ours are moved together there,
so that what was fetched becomes the column. A column that was not asked for costs nothing, and counting
alone does not even decompress.

Bytes that compress well may hold a thousand times their size, so what is decompressed at once is bounded
by what comes of it: the records of one fetch may come in several pieces. And a small piece is cheap to
make, because all of it stays in a cache, but dear to hand over; so small ones are put together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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
    "Collector",
    "CorruptBatchError",
    "Decoded",
    "TooLargeError",
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
_ROOM_MAX: Final = 16  # times the first piece: room is made for so much at most
_SMALL: Final = 16  # so many pieces in a batch, or more, are small ones


class TooLargeError(PenstockError):
    """The records of a single batch are more than can be held at once."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`rows` records as columns. What comes behind them begins at `next_offset`."""

    rows: int
    columns: dict[str, pa.Array]
    next_offset: int


class Collector:
    """Turns fetches of a partition, in their order, into the named columns of [start, end).

    What is decompressed at once, a piece, is made of whole batches, which have at most `piece_bytes` of
    decompressed records, or of a single batch that has more. Pieces are put together as long as
    they have at most `batch_bytes`; with 0 each is returned by itself. So it is with headers, always,
    and with pieces that are not small and can be made columns where they lie.

    Markers of transactions are left out, and so are the records of those that were aborted. Headers are
    null if a record has none. Releases the GIL for most of its time.
    """

    def __init__(
        self,
        columns: Collection[str],
        start: int,
        end: int,
        *,
        batch_bytes: int = 0,
        check_crc: bool = True,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        unknown = set(columns) - _WANTED.keys()
        assert not unknown, f"no such columns: {unknown}"
        assert 0 < piece_bytes <= _COLUMN_BYTES_MAX
        assert 0 <= batch_bytes <= _COLUMN_BYTES_MAX
        self._columns = columns
        self._next_offset = start
        self._end = end
        # Headers are decoded last, from bytes that may be gone when another fetch has come.
        self._batch_bytes = 0 if "headers" in columns else batch_bytes
        self._check_crc = check_crc
        self._piece_bytes = piece_bytes
        self._open: _Columns | None = None

    def add(self, data: Buffer, aborted: Sequence[tuple[int, int]] = ()) -> Iterator[Decoded]:
        """Take what a Fetch returned; what is complete thereby. To be iterated over to its end.

        `data` holds whole batches and maybe a torn one at its end, which is ignored. If it may be written
        to, it is used up, and belongs to the results; else it may be reused behind the last of them.
        Nothing more is decompressed while the caller has a result.

        `next_offset` behind the last piece is one past the last offset that the whole batches cover,
        whether there was a record or not, at most `end`; it does not move if there was no whole batch.

        Raises `CorruptBatchError`, `BadRecordError` or `CompressionError` for damaged bytes,
        `TooLargeError` for a batch that cannot be held.
        """
        start, end = self._next_offset, self._end
        view = memoryview(data).cast("B")
        batches, next_offset = batches_of(view, end, aborted, self._check_crc)
        first = batches[:, kernels.BASE_OFFSET]
        last = first + batches[:, kernels.LAST_OFFSET_DELTA]
        counted = 0
        if self._columns:
            wanted = (last >= start) & (first < end)
        else:
            inside = (first >= start) & (last < end)
            counted = int(batches[inside, kernels.RECORD_COUNT].sum())
            wanted = (last >= start) & (first < end) & ~inside
        if not wanted.all():
            batches, last = batches[wanted], last[wanted]
        behind = 0
        for piece, records in _pieces(view, batches, self._piece_bytes):
            size = _Size.of(piece)
            in_place = view if not records and self._is_moved(view, size) else None
            if self._open is not None and (in_place or not self._open.has_room_for(size)):
                yield self._close(self._open)
            if self._open is None:
                room = size if in_place else size.room(self._batch_bytes)
                self._open = _Columns(self._columns, room, in_place)
            self._open.append(piece, size, start, end)
            behind += len(piece)
            if behind < len(batches):
                self._next_offset = int(last[behind - 1]) + 1
            else:
                self._open.rows += counted
                self._next_offset = min(max(next_offset, start), end)
            # Not when the next one has come: by then this is no longer in the cache.
            is_full = self._open.size + size.bytes > self._batch_bytes or not self._batch_bytes
            complete = [self._close(self._open)] if in_place or is_full else []
            records.clear()  # the caller may take its time
            yield from complete

    def rest(self) -> Iterator[Decoded]:
        """What no result had yet."""
        if self._open is not None:
            yield self._close(self._open)

    def _is_moved(self, view: memoryview, size: _Size) -> bool:
        """Whether values are moved together where they lie, rather than copied to a column."""
        is_small = size.bytes * _SMALL < self._batch_bytes
        # Headers are decoded last: they must still be there.
        return (
            "value" in self._columns
            and "headers" not in self._columns
            and not (view.readonly or is_small)
        )

    def _close(self, columns: _Columns) -> Decoded:
        self._open = None
        return Decoded(columns.rows, columns.arrays(), self._next_offset)


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


class _Size(NamedTuple):
    """Of records, decompressed: not more of them than this."""

    rows: int
    bytes: int

    @classmethod
    def of(cls, batches: np.ndarray[Any, Any]) -> _Size:
        sizes, counts = batches[:, kernels.BODY_SIZE], batches[:, kernels.RECORD_COUNT]
        # A number of records is believed only if they can be there: it decides what is allocated.
        if (counts * _RECORD_BYTES_MIN > sizes).any():
            raise BadRecordError("a batch has fewer bytes than its records need")
        return cls(int(counts.sum()), int(sizes.sum()))

    def room(self, wanted_bytes: int) -> _Size:
        """What it takes to put more like these together, up to so many bytes."""
        times = min(max(wanted_bytes / max(self.bytes, 1), 1), _ROOM_MAX)
        return _Size(int(self.rows * times), int(self.bytes * times))


class _Columns:
    """The columns while kernels write them: one piece of records behind the other.

    Or a single piece whose values become their column `in_place`, where all of it lies.
    """

    def __init__(
        self, columns: Collection[str], room: _Size, in_place: memoryview | None = None
    ) -> None:
        nothing = _Size(0, 0)
        self.rows = 0
        self.size = 0  # of the records, in bytes
        self._names = columns
        self._room = room
        self._wanted = sum({_WANTED[name] for name in columns})
        self._keys = _BytesColumn(*(room if "key" in columns else nothing))
        self._values = _BytesColumn(*(room if "value" in columns else nothing), in_place)
        self._offsets = np.empty(room.rows if "offset" in columns else 0, np.int64)
        self._timestamps = np.empty(room.rows if "timestamp" in columns else 0, np.int64)
        self._types = np.empty(room.rows if "timestampType" in columns else 0, np.int32)
        self._headers = np.empty((room.rows if "headers" in columns else 0, 2), np.int64)

    def has_room_for(self, more: _Size) -> bool:
        room = self._room
        return self.rows + more.rows <= room.rows and self.size + more.bytes <= room.bytes

    def append(self, batches: np.ndarray[Any, Any], size: _Size, start: int, end: int) -> None:
        row = self.rows
        count = kernels.decode_records(
            batches,
            start,
            end,
            self._wanted,
            self._offsets[row:],
            self._timestamps[row:],
            self._types[row:],
            self._keys.at(row),
            self._values.at(row),
            self._headers[row:],
        )
        _raise_if_bad(count)
        self.rows += count
        self.size += size.bytes

    def arrays(self) -> dict[str, pa.Array]:
        rows = self.rows
        makers = {
            "key": lambda: self._keys.array(rows, TYPES["key"]),
            "value": lambda: self._values.array(rows, TYPES["value"]),
            "offset": lambda: _fixed(rows, self._offsets, TYPES["offset"]),
            "timestamp": lambda: _fixed(rows, self._timestamps, TYPES["timestamp"]),
            "timestampType": lambda: _fixed(rows, self._types, TYPES["timestampType"]),
            "headers": lambda: _headers(self._headers[:rows]),
        }
        return {name: makers[name]() for name in self._names}


class _BytesColumn:
    """A column of nullable bytes while a kernel writes it; room is made for as many as there can be.

    What is not written is never touched, so it takes no memory. With `content` its bytes go there.
    """

    def __init__(self, rows_max: int, bytes_max: int, content: memoryview | None = None) -> None:
        self._ends = np.empty(rows_max + 1, np.int32)
        self._ends[0] = 0
        self._content: np.ndarray[Any, Any] = (
            np.empty(bytes_max, np.uint8) if content is None else np.frombuffer(content, np.uint8)
        )
        self._valid = np.empty(rows_max, np.uint8)
        self._written = np.zeros(2, np.int64)
        parts: tuple[Any, ...] = self._ends, self._content, self._valid, self._written
        self._addresses = tuple(address_of(part) for part in parts)

    def at(self, row: int) -> kernels.Column:
        """As the kernels take it, which go on at `row`."""
        ends, content, valid, written = self._addresses
        return ends + self._ends.itemsize * row, content, valid + row, written

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
    foreign_letters = kernels.decode_headers(spans, ends, names.at(0), values.at(0))
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
