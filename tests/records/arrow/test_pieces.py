"""The records of one fetch in pieces: the same records, and never more of them in memory than asked for."""

from __future__ import annotations

import bisect
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.arrow.decoding import COLUMNS, Collector, Decoded, TooLargeError
from penstock.records.arrow.memory import address_of
from penstock.records.batch import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    Buffer,
    read_header,
)
from penstock.records.compression import decompress
from penstock.records.decode import encode_batch
from tests.records.arrow.test_decoding import END, changed, decode, decode_in_pieces, marker
from tests.records.test_decode import CODECS

PACKED_CODECS = [codec for codec in CODECS if codec]
PRODUCERS = (7, 8)


@st.composite
def batches(draw: st.DrawFn) -> list[bytearray]:
    """Batches of a partition: all codecs, transactions and their markers, gaps between."""
    result: list[bytearray] = []
    offset = 0
    for _ in range(draw(st.integers(1, 8))):
        offset += draw(st.sampled_from([0, 0, 3]))
        producer = draw(st.sampled_from([None, *PRODUCERS]))
        if producer is not None and draw(st.booleans()):
            result.append(marker(offset, producer, draw(st.integers(0, 1))))
        else:
            codec = draw(st.sampled_from(CODECS))
            value = bytes([len(result)]) * draw(st.sampled_from([0, 10, 1000, 5000]))
            records = [(None, value)] * draw(st.integers(1, 3))
            batch = encode_batch(records, base_offset=offset, codec=codec, headers=[("h", b"x")])
            if producer is not None:
                attributes = codec | ATTRIBUTE_TRANSACTIONAL
                batch = changed(batch, producer_id=producer, attributes=attributes)
            result.append(batch)
        offset = read_header(result[-1]).last_offset + 1
    return result


ABORTED = st.lists(st.tuples(st.sampled_from(PRODUCERS), st.integers(0, 30)), max_size=3)
PIECE_BYTES = st.sampled_from([1, 100, 4_000, 10_000, 12_000, 20_000, 2**31 - 1])


def records_size(batch: bytearray) -> int:
    codec = read_header(batch).attributes & ATTRIBUTE_COMPRESSION
    return len(decompress(codec, memoryview(batch)[HEADER_BYTES:]))


def zeros(count: int, size: int, codec: int = 4) -> bytes:
    """Batches of one record each, which compress as well as can be."""
    return b"".join(
        encode_batch([(None, bytes(size))], base_offset=offset, codec=codec)
        for offset in range(count)
    )


def any_fetch(test: Callable[..., None]) -> Callable[..., None]:
    """Have the test try many fetches, cut anywhere."""
    drawn = given(
        fetched=batches(),
        aborted=ABORTED,
        piece_bytes=PIECE_BYTES,
        start=st.integers(0, 20),
        length=st.integers(0, 40),
    )
    return settings(max_examples=300, deadline=None)(drawn(test))


class TestCuts:
    @any_fetch
    def test_pieces_are_the_whole_cut_at_batches(
        self,
        fetched: list[bytearray],
        aborted: list[tuple[int, int]],
        piece_bytes: int,
        start: int,
        length: int,
    ) -> None:
        data = b"".join(fetched)
        wanted: Any = {"columns": COLUMNS, "end": start + length, "aborted": aborted}
        whole = decode(data, start=start, **wanted)
        pieces = list(decode_in_pieces(data, start=start, piece_bytes=piece_bytes, **wanted))

        for name in COLUMNS:
            joined = pa.concat_arrays([piece.columns[name] for piece in pieces])
            assert joined.equals(whole.columns[name])
        assert pieces[-1].next_offset == whole.next_offset

        headers = [read_header(batch) for batch in fetched]
        starts = [header.base_offset for header in headers]
        seen: set[int] = set()
        for piece in pieces:
            offsets = piece.columns["offset"].to_pylist()
            held = {bisect.bisect_right(starts, offset) - 1 for offset in offsets}
            assert not held & seen
            seen |= held
            assert len(held) <= 1 or sum(records_size(fetched[i]) for i in held) <= piece_bytes
            if piece is not pieces[-1]:
                assert piece.next_offset == headers[max(held)].last_offset + 1

    @any_fetch
    def test_behind_each_piece_the_rest_can_be_read_anew(
        self,
        fetched: list[bytearray],
        aborted: list[tuple[int, int]],
        piece_bytes: int,
        start: int,
        length: int,
    ) -> None:
        data = b"".join(fetched)
        wanted: Any = {"end": start + length, "aborted": aborted}
        offsets = decode(data, columns=["offset"], start=start, **wanted).columns["offset"]
        for columns in (["value"], []):
            left = len(offsets)
            for piece in decode_in_pieces(
                data, columns=columns, start=start, piece_bytes=piece_bytes, **wanted
            ):
                left -= piece.rows
                rest = decode(data, columns=["offset"], start=piece.next_offset, **wanted)
                assert rest.columns["offset"].equals(offsets[len(offsets) - left :])
            assert left == 0

    @pytest.mark.parametrize("codec", CODECS)
    def test_pieces_are_not_smaller_than_they_must_be(self, codec: int) -> None:
        data = zeros(100, 20_000, codec)
        pieces = list(
            decode_in_pieces(data, columns=["value"], start=0, end=100, piece_bytes=500_000)
        )
        assert len(pieces) == 5
        assert all(piece.columns["value"].nbytes <= 500_000 for piece in pieces)

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_batch_that_is_larger_than_expected_begins_a_piece(self, codec: int) -> None:
        data = zeros(1, 1, codec)
        data += encode_batch([(None, bytes(50_000))], base_offset=1, codec=codec)
        pieces = decode_in_pieces(data, columns=["value"], start=0, end=9, piece_bytes=49_000)
        assert [piece.rows for piece in pieces] == [1, 1]

    def test_a_fetch_that_is_not_compressed_is_one_piece_up_to_32_mib(self) -> None:
        def rows(count: int) -> list[int]:
            data = zeros(count, 1 << 20, codec=0)
            pieces = decode_in_pieces(data, columns=["offset"], start=0, end=count)
            return [piece.rows for piece in pieces]

        assert rows(8) == [8]
        assert rows(31) == [31]
        assert len(rows(33)) == 2


def collected(fetches: list[bytes], batch_bytes: int, **options: Any) -> list[Decoded]:
    """All results for the values and offsets of `fetches`, which are not to be written to.

    Each is overwritten when it was added.
    """
    collector = Collector(["value", "offset"], 0, END, batch_bytes=batch_bytes, **options)
    results: list[Decoded] = []
    for fetch in fetches:
        data = bytearray(fetch)
        results += collector.add(memoryview(data).toreadonly())
        data[:] = b"\xff" * len(data)
    return [*results, *collector.rest()]


class TestCollecting:
    @settings(max_examples=200, deadline=None)
    @given(
        fetched=batches(),
        batch_bytes=st.sampled_from([0, 1, 3_000, 20_000, 2**31 - 1]),
        piece_bytes=PIECE_BYTES,
        data=st.data(),
    )
    def test_what_is_put_together_is_what_the_fetches_have(
        self, fetched: list[bytearray], batch_bytes: int, piece_bytes: int, data: st.DataObject
    ) -> None:
        end = read_header(fetched[-1]).last_offset + 1
        start, stop = data.draw(st.integers(0, end)), data.draw(st.integers(0, end + 3))
        for columns in (["key", "value", "offset"], COLUMNS, []):
            whole = decode(b"".join(fetched), columns=columns, start=start, end=stop)
            collector = Collector(
                columns, start, stop, batch_bytes=batch_bytes, piece_bytes=piece_bytes
            )
            results = [one for batch in fetched for one in collector.add(bytearray(batch))]
            results += collector.rest()
            assert sum(one.rows for one in results) == whole.rows
            for name in columns:
                joined = pa.concat_arrays([one.columns[name] for one in results])
                joined.validate(full=True)
                assert joined.equals(whole.columns[name])
            assert results[-1].next_offset == whole.next_offset
            assert [one.next_offset for one in results] == sorted(
                one.next_offset for one in results
            )

    def test_small_fetches_come_together_up_to_what_is_wanted(self) -> None:
        fetches = [
            bytes(encode_batch([(None, bytes(990))] * 2, base_offset=2 * n)) for n in range(50)
        ]
        results = collected(fetches, 10_000)
        assert [one.rows for one in results] == [10] * 10
        assert [one.next_offset for one in results] == list(range(10, 101, 10))

    def test_room_is_made_for_sixteen_times_the_first_at_most(self) -> None:
        fetches = [bytes(encode_batch([(None, b"")], base_offset=n)) for n in range(40)]
        assert [one.rows for one in collected(fetches, 1 << 30)] == [16, 16, 8]

    def test_what_is_enough_is_not_held_until_more_comes(self) -> None:
        fetch = bytes(encode_batch([(None, bytes(9_000))]))
        collector = Collector(["value"], 0, END, batch_bytes=10_000)
        assert [one.rows for one in collector.add(fetch)] == [1]
        assert list(collector.rest()) == []

    def test_larger_fetches_behind_a_small_one_begin_anew(self) -> None:
        sizes = [10, 5_000, 5_000, 30_000, 10]
        fetches = [
            bytes(encode_batch([(None, bytes(size))], base_offset=n))
            for n, size in enumerate(sizes)
        ]
        results = collected(fetches, 12_000)
        found = [[len(value) for value in one.columns["value"].to_pylist()] for one in results]
        assert found == [[10], [5_000, 5_000], [30_000], [10]]

    def test_headers_are_not_looked_for_in_a_fetch_that_is_gone(self) -> None:
        collector = Collector(["headers"], 0, END, batch_bytes=1 << 20)
        found = []
        for n in range(3):
            data = bytearray(encode_batch([(None, b"")], base_offset=n, headers=[("h", b"%d" % n)]))
            for one in collector.add(data):
                found += one.columns["headers"].to_pylist()
            data[:] = b"\xff" * len(data)
        assert [headers[0]["value"] for headers in found] == [b"0", b"1", b"2"]


class TestInPlace:
    """What may be written to becomes the column of values itself."""

    RECORDS = tuple((b"key %d" % n, b"value %d" % n * 20) for n in range(300))

    def fetched(self) -> bytearray:
        return bytearray(encode_batch(list(self.RECORDS)))

    def test_values_are_moved_together_where_they_lie(self) -> None:
        data = self.fetched()
        (found,) = Collector(["value", "key"], 0, END).add(data)
        assert found.columns["value"].to_pylist() == [value for _, value in self.RECORDS]
        assert found.columns["key"].to_pylist() == [key for key, _ in self.RECORDS]
        assert found.columns["value"].buffers()[2].address == address_of(data)

    def test_the_memory_is_the_columns_for_as_long_as_they_are_there(self) -> None:
        data = self.fetched()
        found = list(Collector(["value"], 0, END).add(data))
        with pytest.raises(BufferError):
            data.pop()
        del found
        data.pop()

    def test_what_may_not_be_written_to_stays_as_it_is(self) -> None:
        data = self.fetched()
        list(Collector(["value"], 0, END).add(memoryview(data).toreadonly()))
        assert data == self.fetched()

    def test_a_small_piece_is_put_together_with_others(self) -> None:
        data = self.fetched()
        collector = Collector(["value"], 0, END, batch_bytes=17 * len(data))
        assert list(collector.add(data)) == []
        collector = Collector(["value"], 0, END, batch_bytes=15 * len(data))
        assert [one.rows for one in collector.add(data)] == [len(self.RECORDS)]

    def test_what_was_put_together_comes_before_it(self) -> None:
        small = encode_batch([(None, bytes(1_000))], base_offset=0)
        collector = Collector(["value", "offset"], 0, END, batch_bytes=20_000)
        assert list(collector.add(bytearray(small))) == []
        large = bytearray(encode_batch([(None, bytes(5_000))], base_offset=1))
        results = list(collector.add(large))
        assert [one.columns["offset"].to_pylist() for one in results] == [[0], [1]]
        assert [one.next_offset for one in results] == [1, 2]


@dataclass(frozen=True, slots=True)
class Memory:
    """What decoding took: at its most, and while the caller had a piece."""

    peak: int
    held_max: int


def memory_of(data: Buffer, piece_bytes: int) -> Memory:
    decode(zeros(1, 1), columns=["value"], start=0, end=END)  # loads the kernels, which take memory
    held_max = 0
    tracemalloc.start()
    try:
        for piece in decode_in_pieces(
            data, columns=["value"], start=0, end=END, piece_bytes=piece_bytes
        ):
            held_max = max(held_max, tracemalloc.get_traced_memory()[0])
            del piece
        return Memory(tracemalloc.get_traced_memory()[1], held_max)
    finally:
        tracemalloc.stop()


class TestMemory:
    def test_it_is_bound_by_a_piece_however_well_the_fetch_compresses(self) -> None:
        size = 4 << 20
        memory = memory_of(zeros(150, 800_000), size)
        assert memory.peak < 4 * size  # a piece's records, its columns, and those of the one before
        assert memory.held_max < 1.5 * size  # its columns

    def test_a_wrong_guess_at_a_batch_s_size_is_not_kept(self) -> None:
        """Batches that compress well and not at all take turns."""
        noise = random.Random(1).randbytes(10_000)
        data = bytearray()
        for offset in range(0, 600, 2):
            data += encode_batch([(None, bytes(10_000))], base_offset=offset, codec=4)
            data += encode_batch([(None, noise)], base_offset=offset + 1, codec=4)
        size = 4 << 20
        assert memory_of(data, size).peak < 4 * size


class TestTooLarge:
    @pytest.mark.parametrize("codec", PACKED_CODECS)
    def test_a_batch_with_too_much_is_named(
        self, codec: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.records.arrow.decoding.DECOMPRESSED_BYTES_MAX", 1 << 20)
        data = zeros(41, 100_000, codec)
        data += encode_batch([(None, bytes(2 << 20))] * 2, base_offset=41, codec=codec)
        read = []
        with pytest.raises(  # noqa: PT012
            TooLargeError, match=r"the batch at offset 41 .* more than 1 MiB .* decompressed"
        ):
            for piece in decode_in_pieces(data, columns=["value"], start=0, end=99):
                read.append(piece.rows)
        assert read == [41]

    def test_more_than_256_mib_are_too_much(self) -> None:
        claim = bytes([0x81, 0x80, 0x80, 0x80, 0x01])  # snappy: 2**28 + 1 bytes follow
        batch = encode_batch([(None, b"v")])[:HEADER_BYTES] + claim + bytes(50)
        length = len(batch) - LENGTH_OVERHEAD
        data = changed(batch, length=length, attributes=2, base_offset=7)
        with pytest.raises(TooLargeError, match=r"offset 7 .* more than 256 MiB"):
            list(decode_in_pieces(data, columns=["value"], start=0, end=9))

    def test_what_is_not_compressed_never_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.records.arrow.decoding.DECOMPRESSED_BYTES_MAX", 1 << 20)
        data = encode_batch([(None, b"v")], codec=4)
        data += encode_batch([(None, bytes(2 << 20))], base_offset=1)
        pieces = decode_in_pieces(data, columns=["value"], start=0, end=9, piece_bytes=1000)
        assert [piece.rows for piece in pieces] == [1, 1]
