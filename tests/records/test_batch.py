"""The header of a batch, what a producer may send, and patches that leave the CRC right."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ApiError, ErrorCode
from penstock.records.batch import (
    COMPRESSION_NAMES,
    HEADER,
    HEADER_BYTES,
    assign,
    check_produced,
    crc_of,
    read_header,
    stamp_append_time,
)
from penstock.records.decode import encode_batch, records_of
from tests.records.foreign import Made, build, parse

BYTES_MAX = 1 << 20
Edit = Callable[[bytearray], None]


def sound(count: int = 3) -> bytearray:
    return encode_batch([(b"key", b"value")] * count, timestamp=1000)


def sealed(batch: bytearray) -> bytearray:
    """The batch with the CRC that it should have."""
    batch[17:21] = crc_of(batch).to_bytes(4, "big")
    return batch


def refusal(batch: bytes | bytearray, bytes_max: int = BYTES_MAX) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        check_produced(memoryview(batch), bytes_max)
    assert refused.value.message, "a person has to read this"
    return refused.value.code


class TestHeader:
    def test_it_has_61_bytes(self) -> None:
        assert HEADER_BYTES == HEADER.size == 61

    def test_every_field_is_where_the_protocol_puts_it(self) -> None:
        fields = (2**40, 75, 7, 2, 0xDEADBEEF, 0x0A, 4, 10**12, 10**12 + 9, 2**33, 12, 2**31 - 1, 5)
        data = b"pad" + HEADER.pack(*fields) + bytes(26)
        header = read_header(data, 3)
        assert tuple(header) == fields
        assert struct.unpack_from(">q", data, 3) == (header.base_offset,)
        assert struct.unpack_from(">i", data, 3 + 8) == (header.length,)
        assert struct.unpack_from(">i", data, 3 + 57) == (header.record_count,)
        assert header.size_bytes == 75 + 12
        assert header.last_offset == 2**40 + 4

    @pytest.mark.parametrize("codec", range(5))
    def test_its_attributes_have_names(self, codec: int) -> None:
        header = read_header(encode_batch([(None, b"v")], codec=codec))
        assert header.compression == COMPRESSION_NAMES[codec]
        assert not header.is_control
        assert not header.is_transactional
        marked = header._replace(attributes=header.attributes | 0x30)
        assert marked.is_control
        assert marked.is_transactional

    @pytest.mark.parametrize("library", ["kafka-python", "aiokafka"])
    def test_a_foreign_batch_is_read_as_its_maker_meant_it(self, library: str) -> None:
        batch = build(
            library, [Made(5000, b"k", b"v"), Made(4000, None, b"w"), Made(9000, b"", None)]
        )
        header = read_header(batch)
        assert header.size_bytes == len(batch)
        assert header.crc == crc_of(batch)
        assert (header.record_count, header.last_offset_delta) == (3, 2)
        assert (header.base_timestamp, header.max_timestamp) == (5000, 9000)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert check_produced(memoryview(batch), BYTES_MAX) == header


class TestCheckProduced:
    def test_a_sound_batch_is_taken(self) -> None:
        batch = sound()
        assert check_produced(memoryview(batch), len(batch)) == read_header(batch)

    @pytest.mark.parametrize("size", [0, 1, 12, 60])
    def test_fewer_bytes_than_a_header(self, size: int) -> None:
        assert refusal(sound()[:size]) is ErrorCode.corrupt_message

    @pytest.mark.parametrize("magic", [0, 1, 3, 127])
    def test_another_version(self, magic: int) -> None:
        batch = sound()
        batch[16] = magic
        assert refusal(sealed(batch)) is ErrorCode.invalid_record

    def test_two_batches_at_once(self) -> None:
        assert refusal(sound() + sound()) is ErrorCode.invalid_record

    def test_a_batch_that_was_cut(self) -> None:
        assert refusal(sound()[:-1]) is ErrorCode.corrupt_message

    @pytest.mark.parametrize("length", [-1, 0, 10, 2**31 - 1])
    def test_a_length_that_cannot_be(self, length: int) -> None:
        batch = sound()
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        assert refusal(batch) is ErrorCode.corrupt_message

    def test_one_byte_more_than_the_limit(self) -> None:
        batch = sound()
        assert refusal(batch, len(batch) - 1) is ErrorCode.message_too_large

    @pytest.mark.parametrize("at", [17, 21, 30, 60, 61, -1])
    def test_a_flipped_bit(self, at: int) -> None:
        batch = sound()
        batch[at] ^= 0x10
        assert refusal(batch) is ErrorCode.corrupt_message

    @pytest.mark.parametrize(
        ("count", "last_delta"), [(0, 2), (-1, 2), (0, -1), (4, 2), (2, 2), (3, 3), (3, -1)]
    )
    def test_a_count_that_does_not_fit_its_offsets(self, count: int, last_delta: int) -> None:
        batch = sound(3)
        batch[57:61] = count.to_bytes(4, "big", signed=True)
        batch[23:27] = last_delta.to_bytes(4, "big", signed=True)
        assert refusal(sealed(batch)) is ErrorCode.invalid_record

    @pytest.mark.parametrize("attribute", [0x10, 0x20, 0x30])
    def test_transactional_and_control_batches(self, attribute: int) -> None:
        batch = sound()
        batch[22] |= attribute
        assert refusal(sealed(batch)) is ErrorCode.invalid_record

    def test_a_batch_that_says_the_broker_stamped_it(self) -> None:
        batch = sound()
        batch[22] |= 0x08
        assert refusal(sealed(batch)) is ErrorCode.invalid_timestamp

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_an_unknown_codec(self, codec: int) -> None:
        batch = sound()
        batch[22] |= codec
        assert refusal(sealed(batch)) is ErrorCode.unsupported_compression_type

    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=200), st.integers(0, 300))
    def test_no_bytes_make_it_stumble(self, data: bytes, bytes_max: int) -> None:
        with pytest.raises(ApiError):
            check_produced(memoryview(data), bytes_max)

    @settings(max_examples=300, deadline=None)
    @given(data=st.data())
    def test_what_it_takes_is_what_was_sent(self, data: st.DataObject) -> None:
        """Any change is noticed, but for what the broker itself writes there."""
        batch = sound()
        at = data.draw(st.integers(0, len(batch) - 1))
        batch[at] ^= data.draw(st.integers(1, 255))
        if at < 8 or 12 <= at < 16:
            check_produced(memoryview(batch), BYTES_MAX)
        else:
            refusal(batch)


class TestPatches:
    @pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (2**40, 2**31 - 1), (2**63 - 10, 5)])
    def test_a_place_in_the_log_leaves_the_crc_valid(self, offset: int, epoch: int) -> None:
        batch = sound()
        before = bytes(batch)
        assign(memoryview(batch), offset, epoch)
        header = read_header(batch)
        assert (header.base_offset, header.leader_epoch) == (offset, epoch)
        assert header.crc == crc_of(batch)
        assert batch[8:12] == before[8:12]
        assert batch[16:] == before[16:]

    @pytest.mark.parametrize("library", ["kafka-python", "aiokafka"])
    @pytest.mark.parametrize("codec", range(5))
    def test_stamping_renews_the_crc_and_clients_see_the_stamp(
        self, library: str, codec: int
    ) -> None:
        batch = encode_batch([(b"k", b"v" * 50)] * 3, timestamp=1000, codec=codec)
        header = stamp_append_time(memoryview(batch), read_header(batch), 123_456_789)
        assert header == read_header(batch)
        assert header.crc == crc_of(batch)
        assert header.base_timestamp == 1000
        assert [record.timestamp for record in records_of(batch)] == [123_456_789] * 3
        assert [made.timestamp for _, made in parse(library, bytes(batch))] == [123_456_789] * 3
