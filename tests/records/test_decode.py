"""Records in and out of batches: ours, kafka-python's and aiokafka's agree on every one."""

from __future__ import annotations

import contextlib
import itertools

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import crc_of, read_header
from penstock.records.compression import CompressionError, compress, decompress
from penstock.records.decode import (
    BadRecordError,
    encode_batch,
    read_varint,
    records_of,
    write_varint,
)
from tests.records.foreign import Made, build, parse

LIBRARIES = ["kafka-python", "aiokafka"]
CODECS = range(5)
BYTES = st.one_of(st.none(), st.binary(max_size=100))
PAIRS = st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=4)
TIMES = st.integers(0, 2**42)
MADE = st.lists(
    st.builds(Made, timestamp=TIMES, key=BYTES, value=BYTES, headers=HEADERS.map(tuple)),
    min_size=1,
    max_size=10,
)


class TestVarint:
    @given(st.integers(-(2**63), 2**63 - 1))
    def test_what_is_written_is_read(self, value: int) -> None:
        data = write_varint(value)
        assert read_varint(b"x" + data + b"y", 1) == (value, 1 + len(data))

    @pytest.mark.parametrize(
        ("value", "data"),
        [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")],
    )
    def test_it_is_the_protocol_s_zigzag(self, value: int, data: str) -> None:
        assert write_varint(value).hex() == data

    def test_one_that_never_ends_is_refused(self) -> None:
        with pytest.raises(BadRecordError):
            read_varint(b"\xff" * 11, 0)


class TestRoundTrip:
    @settings(max_examples=100, deadline=None)
    @given(pairs=PAIRS, codec=st.sampled_from(CODECS), timestamp=TIMES, headers=HEADERS)
    def test_ours(
        self,
        pairs: list[tuple[bytes | None, bytes | None]],
        codec: int,
        timestamp: int,
        headers: list[tuple[str, bytes]],
    ) -> None:
        batch = encode_batch(
            pairs, timestamp=timestamp, base_offset=77, codec=codec, headers=headers
        )
        header = read_header(batch)
        assert header.crc == crc_of(batch)
        assert header.size_bytes == len(batch)
        found = list(records_of(batch))
        assert [(record.key, record.value) for record in found] == pairs
        assert [record.offset for record in found] == list(range(77, 77 + len(pairs)))
        assert [record.timestamp for record in found] == [timestamp + i for i in range(len(pairs))]
        assert header.max_timestamp == found[-1].timestamp
        assert all(list(record.headers) == headers for record in found)

    @pytest.mark.parametrize("library", LIBRARIES)
    @settings(max_examples=60, deadline=None)
    @given(made=MADE, codec=st.sampled_from(CODECS))
    def test_from_another_producer(self, library: str, made: list[Made], codec: int) -> None:
        batch = build(library, made, codec)
        found = [
            Made(record.timestamp, record.key, record.value, tuple(record.headers))  # type: ignore[arg-type]
            for record in records_of(batch)
        ]
        assert found == made

    @pytest.mark.parametrize("library", LIBRARIES)
    @settings(max_examples=60, deadline=None)
    @given(pairs=PAIRS, codec=st.sampled_from(CODECS), headers=HEADERS)
    def test_to_another_consumer(
        self,
        library: str,
        pairs: list[tuple[bytes | None, bytes | None]],
        codec: int,
        headers: list[tuple[str, bytes]],
    ) -> None:
        batch = encode_batch(pairs, timestamp=5, base_offset=9, codec=codec, headers=headers)
        expected = [
            (9 + i, Made(5 + i, key, value, tuple(headers))) for i, (key, value) in enumerate(pairs)
        ]
        assert parse(library, bytes(batch)) == expected

    def test_a_header_may_have_no_value(self) -> None:
        batch = encode_batch([(None, None)], headers=[("a", None), ("b", b"")])
        (record,) = records_of(batch)
        assert list(record.headers) == [("a", None), ("b", b"")]


class TestDamage:
    @settings(max_examples=300, deadline=None)
    @given(data=st.data(), codec=st.sampled_from(CODECS))
    def test_damaged_records_are_refused_and_never_crash(
        self, data: st.DataObject, codec: int
    ) -> None:
        batch = encode_batch([(b"key", b"value" * 5)] * 4, codec=codec, headers=[("h", b"x")])
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(61, len(batch) - 1))
            batch[at] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(BadRecordError, CompressionError):
            assert len(list(records_of(batch))) == 4

    @settings(max_examples=200, deadline=None)
    @given(cut=st.integers(1, 120), codec=st.sampled_from(CODECS))
    def test_missing_bytes_are_refused(self, cut: int, codec: int) -> None:
        batch = encode_batch([(b"key", b"value%d" % i) for i in range(10)], codec=codec)
        short = batch[: max(61, len(batch) - cut)]
        with pytest.raises((BadRecordError, CompressionError)):
            list(records_of(short))

    @pytest.mark.parametrize(
        "record",
        [
            "0e 00 00 00 08 61 62 01",  # a key of 4 bytes, 2 are there
            "10 00 00 00 02 61 02 62 02",  # a header, but none is there
            "12 00 00 00 02 61 02 62 00 00",  # longer than its fields
            "10 00 00 00 02 61 02 62 00 00",  # a byte behind the last
            "0c 00 00 00 02 61 02",  # shorter than its fields
            "00",  # no bytes at all
            "01",  # fewer than none
        ],
    )
    def test_fields_must_fill_their_record(self, record: str) -> None:
        batch = encode_batch([(None, None)])[:61] + bytes.fromhex(record)
        with pytest.raises(BadRecordError):
            list(records_of(batch))


class TestCompression:
    @settings(max_examples=100, deadline=None)
    @given(data=st.binary(max_size=5000), codec=st.sampled_from(CODECS))
    def test_what_is_packed_comes_out(self, data: bytes, codec: int) -> None:
        assert decompress(codec, compress(codec, data)) == data

    @pytest.mark.parametrize("codec", CODECS)
    def test_large_and_empty_data(self, codec: int) -> None:
        for data in (b"", b"x", bytes(3_000_000), bytes(range(256)) * 5000):
            assert decompress(codec, memoryview(compress(codec, data))) == data

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.binary(max_size=3000), max_size=5))
    def test_the_java_client_s_framed_snappy(self, blocks: list[bytes]) -> None:
        packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
        framed = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
        framed += b"".join(len(block).to_bytes(4, "big") + block for block in packed)
        assert decompress(2, framed) == b"".join(blocks)

    def test_framed_snappy_of_a_foreign_producer(self) -> None:
        made = [Made(1, None, b"v" * 100_000), Made(2, b"k", b"w" * 100_000)]
        batch = build("kafka-python", made, 2)
        assert [record.value for record in records_of(batch)] == [made[0].value, made[1].value]

    @pytest.mark.parametrize("size", [16, 19, 20, 30])
    def test_framed_snappy_that_was_cut_is_refused(self, size: int) -> None:
        packed = bytes(cramjam.snappy.compress_raw(b"v" * 1000))
        framed = b"\x82SNAPPY\x00" + bytes(8) + len(packed).to_bytes(4, "big") + packed
        assert decompress(2, framed) == b"v" * 1000
        if size == 16:
            assert decompress(2, framed[:16]) == b""
        else:
            with pytest.raises(CompressionError):
                decompress(2, framed[:size])

    @settings(max_examples=300, deadline=None)
    @given(data=st.binary(max_size=300), codec=st.integers(-1, 9))
    def test_no_bytes_make_it_stumble(self, data: bytes, codec: int) -> None:
        try:
            decompress(codec, data)
        except CompressionError:
            return
        assert 0 <= codec < 5

    @pytest.mark.parametrize(
        ("codec", "size"), [*itertools.product([1, 2, 3, 4], [100_000, 2_000_000])]
    )
    def test_it_unpacks_no_more_than_it_may(self, codec: int, size: int) -> None:
        """A kilobyte can claim to hold gigabytes."""
        packed = compress(codec, bytes(size))
        assert decompress(codec, packed, size) == bytes(size)
        with pytest.raises(CompressionError, match=f"more than {size - 1} bytes"):
            decompress(codec, packed, size - 1)

    def test_framed_snappy_is_bounded_as_a_whole(self) -> None:
        block = bytes(cramjam.snappy.compress_raw(bytes(60_000)))
        framed = b"\x82SNAPPY\x00" + bytes(8) + (len(block).to_bytes(4, "big") + block) * 3
        assert len(decompress(2, framed, 180_000)) == 180_000
        with pytest.raises(CompressionError, match="more than"):
            decompress(2, framed, 179_999)

    @pytest.mark.parametrize("codec", [-1, 5, 7])
    def test_an_unknown_codec_is_refused(self, codec: int) -> None:
        with pytest.raises(CompressionError, match="unknown"):
            decompress(codec, b"")
        with pytest.raises(CompressionError, match="unknown"):
            compress(codec, b"")
