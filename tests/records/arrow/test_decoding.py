"""Batches to Arrow columns: what other decoders find in them, no more, and nothing of damage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.arrow.decoding import COLUMNS, TYPES, Decoded, decode
from penstock.records.batch import Buffer
from penstock.records.decode import encode_batch
from tests.records.foreign import Made, build
from tests.records.test_decode import CODECS, LIBRARIES, MADE

END = 2**62


def decoded(data: Buffer, start: int = 0, end: int = END, **options: Any) -> Decoded:
    """All columns; the arrays are sound and as long as they should be."""
    result = decode(data, columns=options.pop("columns", COLUMNS), start=start, end=end, **options)
    for name, array in result.columns.items():
        array.validate(full=True)
        assert len(array) == result.rows
        assert array.type == TYPES[name]
    return result


def rows_of(data: Buffer, start: int = 0, end: int = END, **options: Any) -> list[tuple[int, Made]]:
    """Offset and content of every record, as `tests.records.foreign.parse` gives them."""
    columns = decoded(data, start, end, **options).columns
    times = columns["timestamp"].cast(pa.int64()).to_pylist()
    headers = [
        tuple((entry["key"], entry["value"]) for entry in entries or ())
        for entries in columns["headers"].to_pylist()
    ]
    keys, values = columns["key"].to_pylist(), columns["value"].to_pylist()
    made = [
        Made(time // 1000, key, value, entries)
        for time, key, value, entries in zip(times, keys, values, headers, strict=True)
    ]
    return list(zip(columns["offset"].to_pylist(), made, strict=True))


class TestAgreement:
    @pytest.mark.parametrize("library", LIBRARIES)
    @settings(max_examples=100, deadline=None)
    @given(made=MADE, codec=st.sampled_from(CODECS))
    def test_a_foreign_producer_s_records_come_out(
        self, library: str, made: list[Made], codec: int
    ) -> None:
        assert rows_of(build(library, made, codec)) == list(enumerate(made))

    def test_many_batches_of_all_codecs_come_out_in_order(self) -> None:
        data = bytearray()
        for codec in CODECS:
            pairs = [(b"k%d" % i if i % 3 else None, b"v" * i) for i in range(100)]
            data += encode_batch(pairs, codec=codec, base_offset=codec * 100)
        rows = rows_of(data)
        assert [offset for offset, _ in rows] == list(range(500))
        assert rows[301][1] == Made(1, b"k1", b"v", ())
