"""Arrow columns to batches: every decoder finds the rows in them, and a broker accepts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.arrow.columns import ColumnTypeError
from penstock.records.arrow.decoding import TYPES
from penstock.records.arrow.encoding import Encoded, encode, stamp_producer
from penstock.records.batch import check_produced, crc_of, read_header
from penstock.records.compression import compress
from penstock.records.decode import records_of
from tests.records.foreign import Made, parse
from tests.records.test_decode import BYTES, CODECS, LIBRARIES, MADE, NAMES

NOW = 1_700_000_000_000
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
PARSERS = [*LIBRARIES, "penstock"]


def batches(**options: Any) -> list[Encoded]:
    """What `encode` makes, each batch as a broker would accept it."""
    defaults: dict[str, Any] = {
        "keys": None,
        "values": None,
        "headers": None,
        "timestamps": NOW,
        "rows": None,
        "codec": 0,
        "bytes_max": 1 << 20,
    }
    encoded = list(encode(**{**defaults, **options}))
    for batch in encoded:
        header = check_produced(batch.data, 1 << 30)
        assert header.record_count == batch.records
        assert header.base_offset == 0
        assert header.producer_id == -1
    return encoded


def found(encoded: Sequence[Encoded], parser: str = "penstock") -> list[Made]:
    """The records of the batches one after another."""
    result: list[Made] = []
    for batch in encoded:
        if parser != "penstock":
            result += [made for _, made in parse(parser, bytes(batch.data))]
            continue
        result += [
            Made(record.timestamp, record.key, record.value, tuple(record.headers))  # type: ignore[arg-type]
            for record in records_of(batch.data)
        ]
    return result


def header_array(rows: Sequence[Sequence[tuple[str, bytes | None]] | None], type_: Any) -> pa.Array:
    entries = [
        None if row is None else [{"key": name, "value": content} for name, content in row]
        for row in rows
    ]
    return pa.array(entries, type_)


class TestRoundTrip:
    @pytest.mark.parametrize("parser", PARSERS)
    @settings(max_examples=100, deadline=None)
    @given(made=MADE, codec=st.sampled_from(CODECS), bytes_max=st.sampled_from([0, 150, 1 << 20]))
    def test_rows_come_out_of_every_decoder(
        self, parser: str, made: list[Made], codec: int, bytes_max: int
    ) -> None:
        encoded = batches(
            keys=pa.array([record.key for record in made], pa.binary()),
            values=pa.array([record.value for record in made], pa.binary()),
            headers=header_array([record.headers for record in made], TYPES["headers"]),
            timestamps=pa.array([record.timestamp for record in made], pa.int64()),
            codec=codec,
            bytes_max=bytes_max,
        )
        assert found(encoded, parser) == made
        for batch in encoded:
            header = read_header(batch.data)
            assert header.attributes == codec
            assert header.max_timestamp == max(one.timestamp for one in found([batch]))

    @settings(max_examples=100, deadline=None)
    @given(
        pairs=st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=30),
        data=st.data(),
        key_type=st.sampled_from(BINARY_TYPES),
        value_type=st.sampled_from(BINARY_TYPES),
    )
    def test_any_binary_type_slice_and_order(
        self,
        pairs: list[tuple[bytes | None, bytes | None]],
        data: Any,
        key_type: Any,
        value_type: Any,
    ) -> None:
        first = data.draw(st.integers(0, len(pairs) - 1))
        pairs, whole = pairs[first:], pairs
        rows = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=40))
        encoded = batches(
            keys=pa.array([key for key, _ in whole], key_type)[first:],
            values=pa.array([value for _, value in whole], value_type)[first:],
            rows=np.array(rows, np.int32),
        )
        expected = [Made(NOW, pairs[row][0], pairs[row][1], ()) for row in rows]
        assert found(encoded) == expected

    @settings(max_examples=100, deadline=None)
    @given(
        texts=st.lists(st.one_of(st.none(), NAMES), min_size=1, max_size=20),
        first=st.integers(0, 5),
        type_=st.sampled_from(TEXT_TYPES),
    )
    def test_text_is_sent_as_utf_8(self, texts: list[str | None], first: int, type_: Any) -> None:
        encoded = batches(keys=None, values=pa.array(texts, type_)[first:])
        expected = [None if text is None else text.encode() for text in texts[first:]]
        assert [record.value for record in found(encoded)] == expected

    @settings(max_examples=100, deadline=None)
    @given(
        rows=st.lists(
            st.one_of(st.none(), st.lists(st.tuples(NAMES, BYTES), max_size=4)),
            min_size=1,
            max_size=10,
        ),
        first=st.integers(0, 5),
        is_large=st.booleans(),
    )
    def test_headers_of_any_list_type_and_slice(
        self, rows: list[list[tuple[str, bytes | None]] | None], first: int, is_large: bool
    ) -> None:
        entry = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
        type_ = pa.large_list(entry) if is_large else TYPES["headers"]
        encoded = batches(headers=header_array(rows, type_)[first:])
        expected = [tuple(row or ()) for row in rows[first:]]
        assert [record.headers for record in found(encoded)] == expected

    def test_chunks_are_one_column(self) -> None:
        keys = pa.chunked_array([[b"a"], [], [None, b"c"]], pa.binary())
        values = pa.chunked_array([["x", "y", "z"]], pa.string())
        headers = pa.chunked_array([header_array([[("h", b"1")]], TYPES["headers"])] * 3)
        got = found(batches(keys=keys, values=values, headers=headers))
        assert [(made.key, made.value) for made in got] == [
            (b"a", b"x"),
            (None, b"y"),
            (b"c", b"z"),
        ]
        assert [made.headers for made in got] == [(("h", b"1"),)] * 3

    def test_an_array_of_type_null_is_all_null(self) -> None:
        nothing = pa.nulls(2)
        got = found(batches(keys=nothing, values=nothing, headers=nothing))
        assert got == [Made(NOW, None, None, ())] * 2

    def test_no_rows_make_no_batch(self) -> None:
        assert batches(values=pa.array([], pa.binary())) == []
        assert batches(values=pa.array([b"a"]), rows=np.array([], np.int64)) == []

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_timestamps_of_any_unit(self, unit: str) -> None:
        times = pa.array([NOW, NOW - 5000], pa.timestamp("ms", "UTC")).cast(
            pa.timestamp(unit, "UTC")
        )
        got = found(batches(values=pa.array([b"a", b"b"]), timestamps=times))
        assert [made.timestamp for made in got] == [NOW, NOW - 5000]


class TestSplitting:
    @settings(max_examples=100, deadline=None)
    @given(
        sizes=st.lists(st.integers(0, 400), min_size=1, max_size=50), bytes_max=st.integers(60, 900)
    )
    def test_a_batch_is_as_full_as_it_may_be(self, sizes: list[int], bytes_max: int) -> None:
        encoded = batches(values=pa.array([b"v" * size for size in sizes]), bytes_max=bytes_max)
        assert [len(made.value or b"") for made in found(encoded)] == sizes
        for batch, following in zip(encoded, [*encoded[1:], None], strict=True):
            assert len(batch.data) <= bytes_max or batch.records == 1
            if following is not None:
                first = next(records_of(following.data)).value
                assert first is not None
                assert len(batch.data) + 7 + len(first) + 3 > bytes_max

    def test_the_bound_is_on_what_is_compressed(self) -> None:
        values = pa.array([bytes(1000)] * 10)
        plain = batches(values=values, bytes_max=3000)
        packed = batches(values=values, bytes_max=3000, codec=4)
        assert [batch.records for batch in packed] == [batch.records for batch in plain] == [2] * 5
        assert sum(len(batch.data) for batch in packed) < 1000


class TestProducer:
    def test_a_stamp_leaves_a_sound_batch(self) -> None:
        (batch,) = batches(values=pa.array([b"a", b"b"]))
        stamp_producer(batch.data, producer_id=2**40, producer_epoch=7, base_sequence=2**31 - 1)
        header = check_produced(batch.data, 1 << 20)
        assert header.crc == crc_of(batch.data)
        assert (header.producer_id, header.producer_epoch) == (2**40, 7)
        assert header.base_sequence == 2**31 - 1
        assert [made.value for made in found([batch])] == [b"a", b"b"]

    def test_lz4_has_independent_blocks_as_the_java_client_wants_them(self) -> None:
        frame = compress(3, bytes(200_000))
        assert frame[:4] == bytes.fromhex("04224d18")
        assert frame[4] & 0x20


class TestRefusal:
    @pytest.mark.parametrize("values", [pa.array([1]), pa.array([1.0]), pa.array([[b"a"]])])
    def test_a_value_is_bytes_or_text(self, values: pa.Array) -> None:
        with pytest.raises(ColumnTypeError, match="binary or string"):
            batches(values=values)

    @pytest.mark.parametrize(
        "type_",
        [
            pa.list_(pa.string()),
            pa.map_(pa.string(), pa.binary()),
            pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
            pa.list_(pa.struct([("key", pa.int32()), ("value", pa.binary())])),
        ],
    )
    def test_headers_are_lists_of_key_and_value(self, type_: Any) -> None:
        with pytest.raises(ColumnTypeError):
            batches(headers=pa.nulls(1, type_))

    @pytest.mark.parametrize("entry", [None, {"key": None, "value": b"x"}])
    def test_a_header_needs_a_name(self, entry: Any) -> None:
        with pytest.raises(ColumnTypeError, match="no key"):
            batches(headers=pa.array([[entry]], TYPES["headers"]))

    def test_a_record_needs_a_time(self) -> None:
        with pytest.raises(ColumnTypeError, match="null"):
            batches(values=pa.array([b"a"]), timestamps=pa.nulls(1, pa.int64()))
        with pytest.raises(ColumnTypeError, match="double"):
            batches(values=pa.array([b"a"]), timestamps=pa.array([1.5]))

    def test_columns_and_rows_must_fit(self) -> None:
        with pytest.raises(AssertionError):
            batches(keys=pa.array([b"a"]), values=pa.array([b"a", b"b"]))
        for row in (-1, 1):
            with pytest.raises(AssertionError):
                batches(keys=pa.array([b"a"]), rows=np.array([row]))
