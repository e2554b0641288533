"""Batches to Arrow columns: what other decoders find in them, no more, and nothing of damage."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import struct
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cramjam
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.records.arrow.decoding import (
    COLUMNS,
    TYPES,
    AbortedTransaction,
    Collector,
    CorruptBatchError,
    Decoded,
)
from penstock.records.arrow.encoding import encode
from penstock.records.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    Buffer,
    crc_of,
    read_header,
)
from penstock.records.compression import compress
from penstock.records.decode import BadRecordError, encode_batch, write_varint
from tests.records.foreign import Made, build, parse
from tests.records.test_decode import CODECS, HEADERS, LIBRARIES, MADE, PAIRS, TIMES

END = 2**62
ABORT, COMMIT = 0, 1


def decode_in_pieces(
    data: Buffer,
    *,
    columns: Collection[str],
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> Iterator[Decoded]:
    """The records of one fetch; each piece by itself."""
    return Collector(columns, start, end, **options).add(data, aborted)


def decode(data: Buffer, **options: Any) -> Decoded:
    """All records in one piece."""
    (piece,) = decode_in_pieces(data, piece_bytes=2**31 - 1, **options)
    return piece


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


def offsets_of(data: Buffer, start: int = 0, end: int = END, **options: Any) -> list[int]:
    offsets: list[int] = decoded(data, start, end, **options).columns["offset"].to_pylist()
    return offsets


def changed(batch: Buffer, **fields: int) -> bytearray:
    """The batch with other fields in its header, and the CRC to match."""
    result = bytearray(batch)
    HEADER.pack_into(result, 0, *read_header(result)._replace(**fields))
    HEADER.pack_into(result, 0, *read_header(result)._replace(crc=crc_of(result)))
    return result


def sparse(base_offset: int, deltas: Sequence[int], last_delta: int, codec: int = 0) -> bytearray:
    """A batch as compaction leaves it: records with these offsets, the value of each is its delta."""
    body = bytearray()
    for delta in deltas:
        value = str(delta).encode()
        record = bytearray(1) + write_varint(delta) + write_varint(delta) + write_varint(-1)
        record += write_varint(len(value)) + value + write_varint(0)
        body += write_varint(len(record)) + record
    packed = compress(codec, bytes(body))
    batch = encode_batch([(None, None)], base_offset=base_offset, codec=codec)[:61] + packed
    length = len(batch) - LENGTH_OVERHEAD
    return changed(batch, length=length, last_offset_delta=last_delta, record_count=len(deltas))


def marker(base_offset: int, producer: int, kind: int) -> bytearray:
    batch = encode_batch([(struct.pack(">hh", 0, kind), bytes(6))], base_offset=base_offset)
    attributes = ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL
    return changed(batch, producer_id=producer, attributes=attributes)


def in_transaction(base_offset: int, producer: int, records: int = 1) -> bytearray:
    batch = encode_batch([(None, b"x")] * records, base_offset=base_offset)
    return changed(batch, producer_id=producer, attributes=ATTRIBUTE_TRANSACTIONAL)


def guarded(data: Buffer) -> memoryview:
    """A copy behind which no byte can be read: that would kill the process."""
    size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    view = memoryview(memory)
    end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + size
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    view[size - len(data) : size] = data
    return view[size - len(data) : size]


class TestAgreement:
    @pytest.mark.parametrize("library", LIBRARIES)
    @settings(max_examples=100, deadline=None)
    @given(made=MADE, codec=st.sampled_from(CODECS))
    def test_a_foreign_producer_s_records_come_out(
        self, library: str, made: list[Made], codec: int
    ) -> None:
        assert rows_of(build(library, made, codec)) == list(enumerate(made))

    @pytest.mark.parametrize("library", LIBRARIES)
    @settings(max_examples=100, deadline=None)
    @given(
        batches=st.lists(st.tuples(PAIRS, st.sampled_from(CODECS), HEADERS, TIMES), max_size=5),
        gap=st.integers(0, 5),
    )
    def test_what_a_foreign_consumer_reads_comes_out(
        self, library: str, batches: list[Any], gap: int
    ) -> None:
        data = bytearray()
        offset = 0
        for pairs, codec, headers, timestamp in batches:
            offset += gap
            data += encode_batch(
                pairs, timestamp=timestamp, base_offset=offset, codec=codec, headers=headers
            )
            offset += len(pairs)
        assert rows_of(data) == parse(library, bytes(data))

    def test_the_java_client_s_framed_snappy(self) -> None:
        batch = encode_batch([(b"k", b"v" * 1000)] * 3)
        blocks = [batch[HEADER_BYTES:1000], batch[1000:]]
        framed = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
        for block in blocks:
            packed = bytes(cramjam.snappy.compress_raw(bytes(block)))
            framed += len(packed).to_bytes(4, "big") + packed
        framed_batch = bytes(batch[:HEADER_BYTES]) + framed
        length = len(framed_batch) - LENGTH_OVERHEAD
        assert rows_of(changed(framed_batch, length=length, attributes=2)) == rows_of(batch)

    def test_batches_that_compress_ever_better(self) -> None:
        """The guess at the size, made from the batch before, is too small for each."""
        data = bytearray()
        for index, size in enumerate([1, 100, 10_000, 3_000_000, 10]):
            for codec in CODECS:
                value = b"v" * size
                data += encode_batch([(None, value)], base_offset=5 * index + codec, codec=codec)
        sizes = [len(made.value or b"") for _, made in rows_of(data)]
        assert sizes == [size for size in [1, 100, 10_000, 3_000_000, 10] for _ in CODECS]

    def test_many_batches_of_all_codecs_come_out_in_order(self) -> None:
        data = bytearray()
        for codec in CODECS:
            pairs = [(b"k%d" % i if i % 3 else None, b"v" * i) for i in range(100)]
            data += encode_batch(pairs, codec=codec, base_offset=codec * 100)
        rows = rows_of(data)
        assert [offset for offset, _ in rows] == list(range(500))
        assert rows[301][1] == Made(1, b"k1", b"v", ())


class TestColumns:
    def test_null_is_not_empty(self) -> None:
        pairs = [(None, b""), (b"", None), (None, None), (b"", b"")] * 5
        columns = decoded(encode_batch(pairs)).columns
        assert columns["key"].to_pylist() == [key for key, _ in pairs]
        assert columns["value"].to_pylist() == [value for _, value in pairs]
        assert columns["key"].null_count == 10

    def test_headers_may_be_null_empty_or_many(self) -> None:
        headers = [("", None), ("a", b""), ("a", b"2"), ("é☃", b"\xff")]
        data = encode_batch([(None, None)], headers=headers) + encode_batch(
            [(None, None)], base_offset=1
        )
        entries = [{"key": name, "value": value} for name, value in headers]
        assert decoded(data).columns["headers"].to_pylist() == [entries, None]

    def test_a_header_s_name_that_is_no_text_is_mended(self) -> None:
        batch = encode_batch([(None, None)], headers=[("ab", b"\xff"), ("é", b"")])
        at = batch.index(b"ab")
        batch[at] = 0xFF
        (entries,) = decoded(batch, check_crc=False).columns["headers"].to_pylist()
        assert [entry["key"] for entry in entries] == ["\ufffdb", "é"]
        assert entries[0]["value"] == b"\xff"

    def test_time_of_creation_and_of_arrival(self) -> None:
        batch = encode_batch([(None, None)] * 2, timestamp=5)
        stamped = changed(
            batch, base_offset=2, attributes=ATTRIBUTE_LOG_APPEND_TIME, max_timestamp=77
        )
        columns = decoded(batch + stamped).columns
        assert columns["timestampType"].to_pylist() == [0, 0, 1, 1]
        assert columns["timestamp"].cast(pa.int64()).to_pylist() == [5000, 6000, 77_000, 77_000]

    @pytest.mark.parametrize(
        ("milliseconds", "microseconds"),
        [
            (-1, -1000),
            (2**63 // 1000, 2**63 // 1000 * 1000),
            (2**63 // 1000 + 1, 2**63 - 1),
            (2**63 - 1, 2**63 - 1),
            (-(2**63), -(2**63) + 1),
        ],
    )
    def test_a_time_that_microseconds_cannot_hold_is_the_farthest(
        self, milliseconds: int, microseconds: int
    ) -> None:
        batch = changed(encode_batch([(None, None)]), base_timestamp=milliseconds)
        times = decoded(batch).columns["timestamp"].cast(pa.int64())
        assert times.to_pylist() == [microseconds]

    def test_times_may_be_as_far_apart_as_can_be(self) -> None:
        times = pa.array([0, -(2**63), 2**63 - 1, 5])
        (batch,) = encode(
            keys=None,
            values=pa.nulls(4),
            headers=None,
            timestamps=times,
            rows=None,
            codec=0,
            bytes_max=1000,
        )
        found = decoded(batch.data).columns["timestamp"].cast(pa.int64()).to_pylist()
        assert found == [0, -(2**63) + 1, 2**63 - 1, 5000]

    @pytest.mark.parametrize("count", range(len(COLUMNS) + 1))
    def test_any_choice_of_columns_is_the_same_data(self, count: int) -> None:
        data = bytearray()
        for codec in CODECS:
            pairs = [(None, b"1"), (b"a", None), (b"b" * 9, b"2" * 300)]
            data += encode_batch(pairs, base_offset=3 * codec, codec=codec, headers=[("h", b"x")])
        everything = decoded(data, 1, 13).columns
        for columns in itertools.combinations(COLUMNS, count):
            some = decoded(data, 1, 13, columns=columns)
            assert some.rows == 12
            assert some.columns == {name: everything[name] for name in columns}

    def test_counting_does_not_decompress(self) -> None:
        batch = changed(encode_batch([(None, b"v")] * 9, codec=4), attributes=3)
        assert decode(batch, columns=(), start=0, end=9).rows == 9
        with pytest.raises(PenstockError):
            decode(batch, columns=(), start=1, end=9)

    def test_what_it_returns_is_a_copy(self) -> None:
        data = encode_batch([(b"key", b"value")], headers=[("h", b"x")])
        columns = decoded(data).columns
        data[:] = bytes(len(data))
        assert columns["key"].to_pylist() == [b"key"]
        assert columns["value"].to_pylist() == [b"value"]
        assert columns["headers"].to_pylist() == [[{"key": "h", "value": b"x"}]]

    def test_the_types_are_those_of_spark(self) -> None:
        types = pytest.importorskip("pyspark.sql.types")
        pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
        binary = types.BinaryType()
        header = types.StructType().add("key", types.StringType()).add("value", binary)
        schema = (
            types.StructType()
            .add("key", binary)
            .add("value", binary)
            .add("offset", types.LongType())
            .add("timestamp", types.TimestampType())
            .add("timestampType", types.IntegerType())
            .add("headers", types.ArrayType(header))
        )
        assert pandas_types.to_arrow_schema(schema, timezone="UTC") == pa.schema(TYPES)


class TestRange:
    @settings(max_examples=200, deadline=None)
    @given(
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
        start=st.integers(0, 30),
        length=st.integers(0, 30),
        codec=st.sampled_from(CODECS),
    )
    def test_only_the_wanted_offsets_come_out(
        self, sizes: list[int], start: int, length: int, codec: int
    ) -> None:
        end = start + length
        data = bytearray()
        last = 0
        for size in sizes:
            data += encode_batch([(None, b"v")] * size, base_offset=last, codec=codec)
            last += size
        result = decoded(data, start, end)
        expected = list(range(start, min(end, last)))
        assert result.columns["offset"].to_pylist() == expected
        assert result.next_offset == min(end, max(last, start))
        assert decode(data, columns=(), start=start, end=end).rows == len(expected)

    @settings(max_examples=200, deadline=None)
    @given(deltas=st.sets(st.integers(0, 20)), codec=st.sampled_from(CODECS), data=st.data())
    def test_compaction_leaves_gaps(self, deltas: set[int], codec: int, data: Any) -> None:
        batch = sparse(100, sorted(deltas), 20, codec)
        start, end = data.draw(st.integers(95, 125)), data.draw(st.integers(95, 130))
        start, end = min(start, end), max(start, end)
        result = decoded(batch, start, end)
        expected = [100 + delta for delta in sorted(deltas) if start <= 100 + delta < end]
        assert result.columns["offset"].to_pylist() == expected
        assert result.columns["value"].to_pylist() == [b"%d" % (o - 100) for o in expected]
        assert result.next_offset == min(end, max(start, 121))
        assert decode(batch, columns=(), start=start, end=end).rows == len(expected)

    def test_an_emptied_batch_is_passed_over(self) -> None:
        data = sparse(0, [], 9) + sparse(10, [0], 0) + sparse(11, [], 88)
        result = decoded(data)
        assert result.columns["offset"].to_pylist() == [10]
        assert result.next_offset == 100

    def test_a_gap_before_the_end_is_passed_over(self) -> None:
        data = encode_batch([(None, None)]) + encode_batch([(None, None)], base_offset=500)
        assert decoded(data, 0, 100).next_offset == 100
        assert offsets_of(data, 0, 100) == [0]

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_torn_batch_is_ignored(self, codec: int) -> None:
        whole = encode_batch([(b"k", b"v")] * 3, codec=codec)
        torn = encode_batch([(b"k", b"v")] * 3, codec=codec, base_offset=3)
        for size in range(len(torn)):
            result = decoded(guarded(whole + torn[:size]))
            assert result.columns["offset"].to_pylist() == [0, 1, 2]
            assert result.next_offset == 3
            alone = decoded(torn[:size], 2)
            assert (alone.rows, alone.next_offset) == (0, 2)

    def test_what_lies_behind_the_end_is_not_looked_at(self) -> None:
        data = encode_batch([(None, None)]) + encode_batch([(None, None)], base_offset=1)
        damaged = encode_batch([(None, b"v")], base_offset=2)
        damaged[-1] ^= 1
        assert offsets_of(data + damaged, 0, 1) == [0]
        assert offsets_of(data + bytes(100), 0, 1) == [0]


class TestTransactions:
    def test_markers_are_no_records(self) -> None:
        data = in_transaction(0, 7) + marker(1, 7, COMMIT) + in_transaction(2, 7)
        result = decoded(data + marker(3, 7, ABORT))
        assert result.columns["offset"].to_pylist() == [0, 2]
        assert result.next_offset == 4
        assert decode(data, columns=(), start=0, end=9).rows == 2

    def test_data_is_dropped_from_its_first_offset_to_its_marker(self) -> None:
        data = (
            in_transaction(0, 7, 2)
            + marker(2, 7, COMMIT)
            + in_transaction(3, 7, 2)  # given up
            + in_transaction(5, 8, 2)
            + encode_batch([(None, None)], base_offset=7, producer_id=7, producer_epoch=0)
            + marker(8, 7, ABORT)
            + in_transaction(9, 7, 2)
            + marker(11, 7, COMMIT)
            + in_transaction(12, 8)
            + marker(13, 8, COMMIT)
        )
        aborted = [AbortedTransaction(7, 3)]
        kept = [0, 1, 5, 6, 7, 9, 10, 12]
        assert offsets_of(data, aborted=aborted) == kept
        assert decoded(data, aborted=aborted).next_offset == 14
        assert offsets_of(data, 6, 11, aborted=aborted) == [6, 7, 9, 10]
        assert decode(data, columns=(), start=0, end=99, aborted=aborted).rows == len(kept)

    def test_the_fetch_may_begin_inside_a_transaction(self) -> None:
        data = in_transaction(50, 7) + marker(51, 7, ABORT) + in_transaction(52, 7)
        assert offsets_of(data, 50, aborted=[(7, 3)]) == [52]

    def test_a_producer_may_give_up_twice(self) -> None:
        data = in_transaction(0, 7) + marker(1, 7, ABORT) + in_transaction(2, 7)
        data += marker(3, 7, COMMIT) + in_transaction(4, 7) + marker(5, 7, ABORT)
        data += in_transaction(6, 7)
        assert offsets_of(data, aborted=[(7, 4), (7, 0)]) == [2, 6]

    def test_markers_below_the_start_count(self) -> None:
        data = in_transaction(0, 7) + marker(1, 7, ABORT) + in_transaction(2, 7)
        assert offsets_of(data, 2, aborted=[(7, 0)]) == [2]

    def test_an_emptied_marker_ends_nothing(self) -> None:
        empty = changed(marker(1, 7, ABORT)[:HEADER_BYTES], length=49, record_count=0)
        data = in_transaction(0, 7) + empty + in_transaction(2, 7) + marker(3, 7, ABORT)
        assert offsets_of(data, aborted=[(7, 0)]) == []

    def test_a_commit_ends_no_other_transaction(self) -> None:
        data = in_transaction(0, 7) + marker(1, 8, ABORT) + marker(2, 7, COMMIT)
        assert offsets_of(data + in_transaction(3, 7), aborted=[(7, 0)]) == []


class TestDamage:
    @settings(max_examples=600, deadline=None)
    @given(
        data=st.data(),
        codec=st.sampled_from(CODECS),
        columns=st.sets(st.sampled_from(COLUMNS)),
        count=st.integers(1, 3),
    )
    def test_mutated_bytes_never_crash_it(
        self, data: Any, codec: int, columns: set[str], count: int
    ) -> None:
        pairs = [(b"key", b"value" * 5), (None, b""), (b"", None)]
        original = bytearray()
        for index in range(count):
            original += encode_batch(
                pairs, base_offset=3 * index, codec=codec, headers=[("h", b"x"), ("", None)]
            )
        fetched = bytearray(original)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(fetched) - 1))
            fetched[at] = data.draw(st.integers(0, 255))
        with contextlib.suppress(PenstockError):
            result = decoded(guarded(fetched), columns=columns, check_crc=False, aborted=[(-1, 0)])
            if columns:
                assert result.rows <= 3 * count
        with contextlib.suppress(PenstockError):
            decoded(fetched, columns=columns)

    @settings(max_examples=600, deadline=None)
    @given(
        body=st.binary(max_size=120),
        count=st.integers(0, 20),
        columns=st.sampled_from([(), COLUMNS]),
    )
    def test_random_records_never_crash_it(
        self, body: bytes, count: int, columns: tuple[str, ...]
    ) -> None:
        batch = encode_batch([(None, None)])[:HEADER_BYTES] + body
        length = len(batch) - LENGTH_OVERHEAD
        data = changed(batch, length=length, record_count=count, last_offset_delta=100)
        with contextlib.suppress(BadRecordError):
            assert decoded(guarded(data), columns=columns).rows == count

    @pytest.mark.parametrize("columns", [("key", "value"), COLUMNS])
    def test_an_absurd_number_anywhere_never_crashes_it(self, columns: tuple[str, ...]) -> None:
        """Also those that run past the last address there is."""
        sound = encode_batch([(b"k", b"v")], headers=[("h", b"x"), ("", None)])
        near = [edge + change for edge in (2**31, 2**62, 2**63 - 2**47) for change in (-1, 0, 1)]
        for at in range(HEADER_BYTES, len(sound)):
            for number in (*near, 2**63 - 1, -(2**63), -(2**31), -2, 10, 100):
                inner = sound[HEADER_BYTES + 1 : at] + write_varint(number) + sound[at + 1 :]
                whole = write_varint(len(inner)) if at > HEADER_BYTES else b""
                batch = sound[:HEADER_BYTES] + whole + inner
                length = len(batch) - LENGTH_OVERHEAD
                with contextlib.suppress(BadRecordError):
                    decoded(guarded(changed(batch, length=length)), columns=columns)

    @pytest.mark.parametrize("size", range(7, 20))
    def test_a_number_that_never_ends_is_not_followed(self, size: int) -> None:
        batch = encode_batch([(None, None)])[:HEADER_BYTES] + b"\xff" * size
        with pytest.raises(BadRecordError):
            decoded(guarded(changed(batch, length=len(batch) - LENGTH_OVERHEAD)))

    @pytest.mark.parametrize("byte", range(HEADER_BYTES, HEADER_BYTES + 20))
    def test_a_flipped_bit_fails_the_crc(self, byte: int) -> None:
        batch = encode_batch([(b"key", b"value" * 5)])
        batch[byte] ^= 4
        with pytest.raises(CorruptBatchError, match="CRC"):
            decoded(batch)

    @pytest.mark.parametrize(
        "record",
        [
            "0e 00 00 00 08 61 62 01",  # a key of 4 bytes, 2 are there
            "10 00 00 00 02 61 02 62 02",  # a header, but none is there
            "12 00 00 00 02 61 02 62 00 00",  # longer than its fields
            "10 00 00 00 02 61 02 62 00 00",  # a byte behind the last
            "0c 00 00 00 02 61 02",  # shorter than its fields
            "18 00 00 00 02 61 02 62 02 02 68 01 00",  # longer than its headers
            "0c 00 00 00 02 61 01",  # the number of headers is missing
            "10 00 00 02 02 61 02 62 00",  # an offset behind the batch's last
            "10 00 00 01 02 61 02 62 00",  # an offset before its first
            "00 00 00 00 00 00 00 00",  # no bytes at all
            "01 00 00 00 00 00 00 00",  # fewer than none
            "ff ff ff ff ff ff ff ff ff ff ff 01",  # a length that never ends
        ],
    )
    def test_fields_must_fill_their_record(self, record: str) -> None:
        batch = encode_batch([(None, None)])[:61] + bytes.fromhex(record)
        with pytest.raises(BadRecordError):
            decoded(changed(batch, length=len(batch) - LENGTH_OVERHEAD))

    def test_offsets_must_rise(self) -> None:
        with pytest.raises(BadRecordError, match="rise"):
            decoded(sparse(0, [1, 1], 5))

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"magic": 1}, "version 1"),
            ({"length": 48}, "48 bytes follow"),
            ({"length": -1}, "-1 bytes follow"),
            ({"base_offset": -1}, "cannot follow"),
            ({"base_offset": 2**63 - 1, "last_offset_delta": 0}, "cannot follow"),
            ({"last_offset_delta": -1}, "cannot follow"),
            ({"record_count": -1}, "cannot follow"),
        ],
    )
    def test_a_header_that_cannot_be_true_is_refused(
        self, fields: dict[str, int], words: str
    ) -> None:
        batch = encode_batch([(b"key", b"value")])
        with pytest.raises(CorruptBatchError, match=words):
            decoded(changed(batch, **fields), end=2**63 - 1)

    def test_offsets_do_not_go_back(self) -> None:
        data = encode_batch([(None, None)] * 2) + encode_batch([(None, None)], base_offset=1)
        with pytest.raises(CorruptBatchError, match="cannot follow offset 1"):
            decoded(data)

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_claimed_number_of_records_allocates_nothing(self, codec: int) -> None:
        claim = 2**31 - 1
        batch = encode_batch([(None, b"v")] * 5, codec=codec)
        with pytest.raises(BadRecordError):
            decoded(changed(batch, record_count=claim, last_offset_delta=claim))

    def test_no_bytes_are_no_batches(self) -> None:
        assert decoded(b"", 5).next_offset == 5
        assert decoded(memoryview(bytearray()), 5).rows == 0


def test_threads_decode_at_the_same_time() -> None:
    fetched = [
        encode_batch([(b"%d" % i, b"v" * i) for i in range(2000)], codec=codec) for codec in CODECS
    ]
    expected = rows_of(fetched[0])
    with ThreadPoolExecutor(4) as pool:
        assert all(rows == expected for rows in pool.map(rows_of, fetched * 4))
