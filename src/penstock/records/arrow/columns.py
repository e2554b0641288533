"""Arrow arrays as compiled kernels read them: where their buffers lie, whatever their type and slice."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.records.arrow.memory import byte_at, int32_at, int64_at, kernel

# A column of variable length as a kernel takes it: where its offsets are, how many bytes each has,
# where the content is, where the bitmap of valid rows is (0: all are), and which bit is row 0.
Span = tuple[int, int, int, int, int]

ALL_NULL: Final[Span] = (0, 4, 0, 0, 0)
_VIEWS: Final = {pa.binary_view(): pa.large_binary(), pa.string_view(): pa.large_binary()}


class ColumnTypeError(PenstockError):
    """A column's type is not one that records can be made of."""


class Column(NamedTuple):
    """A span, and what must stay alive while a kernel uses it."""

    span: Span
    owner: pa.Array | None

    @property
    def rows(self) -> int | None:
        return None if self.owner is None else len(self.owner)


def bytes_column(array: Any) -> Column:
    """A column of nullable bytes or text of any of Arrow's types; None: every row is null."""
    if array is None:
        return Column(ALL_NULL, None)
    array = _combined(array)
    if array.type in _VIEWS:
        array = array.cast(_VIEWS[array.type])
    kind = array.type
    if pa.types.is_null(kind):
        return Column(ALL_NULL, array)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        width = 4
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        width = 8
    else:
        raise ColumnTypeError(f"a key, value or header must be binary or string, not {kind}")
    validity, offsets, content = array.buffers()
    return Column(_span(array, width, validity, offsets, content), array)


class HeaderColumns(NamedTuple):
    """The headers of every row: which of the entries, and those entries' names and values."""

    rows: Column
    names: Column
    values: Column


def header_columns(array: Any) -> HeaderColumns:
    """A column of lists of structs (key, value); None: no row has headers."""
    if array is None:
        nothing = Column(ALL_NULL, None)
        return HeaderColumns(nothing, nothing, nothing)
    array = _combined(array)
    kind = array.type
    if pa.types.is_null(kind):
        nothing = Column(ALL_NULL, array)
        return HeaderColumns(nothing, nothing, nothing)
    is_large = pa.types.is_large_list(kind)
    if not (is_large or pa.types.is_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise ColumnTypeError(f"headers must be a list of structs of key and value, not {kind}")
    fields = [field.name for field in kind.value_type]
    if fields != ["key", "value"]:
        raise ColumnTypeError(f"a header must have the fields key and value, not {fields}")
    entries = array.values
    if len(array):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        used = entries[first:last]
        if used.null_count or used.field(0).null_count:
            _refuse_nameless(array)
    validity, offsets = array.buffers()[:2]
    rows = Column(_span(array, 8 if is_large else 4, validity, offsets, None), array)
    return HeaderColumns(rows, bytes_column(entries.field(0)), bytes_column(entries.field(1)))


def _refuse_nameless(array: Any) -> None:
    """Raise if a header that is in use has no name; what lies under a null row is not in use."""
    entries = array.flatten()
    if entries.null_count or entries.field(0).null_count:
        raise ColumnTypeError("a header has no key: it may be empty but not null")


def _combined(array: Any) -> Any:
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)


def _span(array: Any, width: int, validity: Any, offsets: Any, content: Any) -> Span:
    if not len(array):  # an empty array may come without buffers
        return ALL_NULL
    return (
        offsets.address + width * array.offset,
        width,
        content.address if content is not None else 0,
        validity.address if validity is not None and array.null_count else 0,
        array.offset,
    )


def milliseconds_of(array: Any) -> np.ndarray[Any, Any]:
    """A column of timestamps, or of milliseconds, as whole milliseconds without nulls."""
    array = _combined(array)
    if array.null_count:
        raise ColumnTypeError("a record's timestamp is null")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
    elif not pa.types.is_integer(array.type):
        raise ColumnTypeError(f"a record's timestamp cannot be {array.type}")
    return np.ascontiguousarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False))


@kernel
def start_of(span: Span, row: int) -> int:
    """Where the row begins in the column's content."""
    if span[1] == 4:
        start: int = int32_at(span[0] + 4 * row)
    else:
        start = int64_at(span[0] + 8 * row)
    return start


@kernel
def size_of(span: Span, row: int) -> int:
    """How long the row is, -1 if it is null."""
    if span[0] == 0:
        return -1
    if span[3]:
        bit = span[4] + row
        if not (byte_at(span[3] + (bit >> 3)) >> (bit & 7)) & 1:
            return -1
    return start_of(span, row + 1) - start_of(span, row)
