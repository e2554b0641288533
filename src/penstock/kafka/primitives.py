"""The few wire primitives that the hand-written codecs need.

Readers take the buffer and a position and return the value with the position behind it. Bytes that end
too early raise `IndexError` or `struct.error`, bad text `UnicodeDecodeError`, bad lengths `ValueError`:
the router answers all of them alike, by closing the connection (`MALFORMED`).
"""

from __future__ import annotations

import functools
import struct
import uuid
from typing import Final

MALFORMED: Final = (IndexError, struct.error, ValueError, OverflowError)

# A request names fewer things than this, however large it is: what costs memory and time when it is
# read is their number, and an array of a hundred million empty names fits a request of 100 MiB.
ELEMENTS_MAX: Final = 150_000
TAGS_MAX: Final = 100

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
UUID_BYTES: Final = 16

Topic = str | uuid.UUID  # a topic as a request names it: from some version on, by its id


def read_uvarint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    value = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ValueError("a varint is too long")


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE: Final = [bytes([value]) for value in range(0x80)]


def skip_tags(data: memoryview, position: int) -> int:
    """The position behind a section of tagged fields, none of which we read."""
    count, position = read_uvarint(data, position)
    if count:
        check_tag_count(count)
        for _ in range(count):
            _, position = read_uvarint(data, position)
            size, position = read_uvarint(data, position)
            position += size
    if position > len(data):
        raise IndexError("tagged fields end too early")
    return position


def check_tag_count(count: int) -> None:
    if count > TAGS_MAX:
        raise ValueError(f"{count} tagged fields are too many")


def check_element_count(count: int) -> None:
    if count > ELEMENTS_MAX:
        raise ValueError(f"a request of {count} elements is too much")


def read_count(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """An array's length, null counting as empty."""
    if flexible:
        count, position = read_uvarint(data, position)
        count -= 1
    else:
        count, position = INT32.unpack_from(data, position)[0], position + 4
    check_element_count(count)
    return max(count, 0), position


def read_size(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """A string's length; -1 is null."""
    if flexible:
        size, position = read_uvarint(data, position)
        size -= 1
    else:
        size, position = INT16.unpack_from(data, position)[0], position + 2
    if size < -1 or position + size > len(data):
        raise ValueError("a length is out of range")
    return size, position


def read_string(data: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    size, position = read_size(data, position, flexible)
    end = position + max(size, 0)
    return str(data[position:end], "utf-8"), end


def write_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = text.encode()
    if flexible:
        return write_uvarint(len(encoded) + 1) + encoded
    return INT16.pack(len(encoded)) + encoded


def write_count(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else INT32.pack(count)


@functools.lru_cache(maxsize=16_384)
def _uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


def read_topic(data: memoryview, position: int, flexible: bool, by_id: bool) -> tuple[Topic, int]:
    if not by_id:
        return read_string(data, position, flexible)
    end = position + UUID_BYTES
    if end > len(data):
        raise IndexError("a topic id ends too early")
    return _uuid(bytes(data[position:end])), end


def write_topic(topic: Topic, flexible: bool) -> bytes:
    return write_string(topic, flexible) if isinstance(topic, str) else topic.bytes
