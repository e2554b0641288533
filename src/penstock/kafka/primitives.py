"""What the server's hand-written codecs read of a request, and how much of it they believe.

Bytes that are no request raise as the readers of `penstock.wire` do: the router answers all of that
alike, by closing the connection (`MALFORMED`).
"""

from __future__ import annotations

import functools
import struct
import uuid
from typing import Final

from penstock.wire import (
    INT16,
    INT32,
    UUID_BYTES,
    read_length,
    read_uvarint,
    skip_tagged,
    write_string,
)

MALFORMED: Final = (IndexError, struct.error, ValueError, OverflowError)

# A request names fewer things than this, however large it is: what costs memory and time when it is
# read is their number, and an array of a hundred million empty names fits a request of 100 MiB.
ELEMENTS_MAX: Final = 150_000
TAGS_MAX: Final = 100
# As long as a string can be in the versions before the flexible ones, and Kafka's bound for all.
STRING_BYTES_MAX: Final = 32_767
# An error may quote what a client sent, which may be as long as a string can be.
MESSAGE_CHARACTERS_MAX: Final = 1_000

Topic = str | uuid.UUID  # a topic as a request names it: from some version on, by its id


def skip_tags(data: memoryview, position: int) -> int:
    """The position behind a section of tagged fields, none of which we read."""
    if data[position] == 0:  # as almost always
        return position + 1
    count, position = read_uvarint(data, position)
    check_tag_count(count)
    return skip_tagged(data, position, count)


def check_tag_count(count: int) -> None:
    if count > TAGS_MAX:
        raise ValueError(f"{count} tagged fields are too many")


def check_element_count(count: int) -> None:
    if count > ELEMENTS_MAX:
        raise ValueError(f"a request of {count} elements is too much")


def read_count(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """An array's length, null counting as empty."""
    if flexible and 0 < data[position] < 0x80:  # one byte, as almost always
        return data[position] - 1, position + 1
    count, position = read_length(data, position, flexible, INT32)
    check_element_count(count)
    return max(count, 0), position


def read_size(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """A string's length; -1 is null."""
    if flexible and data[position] < 0x80:  # one byte, as almost always
        size, position = data[position] - 1, position + 1
    else:
        size, position = read_length(data, position, flexible, INT16)
    if not -1 <= size <= STRING_BYTES_MAX or position + size > len(data):
        raise ValueError("a length is out of range")
    return size, position


def read_string(data: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    size, position = read_size(data, position, flexible)
    end = position + max(size, 0)
    return str(data[position:end], "utf-8"), end


@functools.lru_cache(maxsize=16_384)
def topic_of_id(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


def read_topic(data: memoryview, position: int, flexible: bool, by_id: bool) -> tuple[Topic, int]:
    if not by_id:
        return read_string(data, position, flexible)
    end = position + UUID_BYTES
    if end > len(data):
        raise IndexError("a topic id ends too early")
    return topic_of_id(bytes(data[position:end])), end


def write_topic(topic: Topic, flexible: bool) -> bytes:
    return write_string(topic, flexible) if isinstance(topic, str) else topic.bytes
