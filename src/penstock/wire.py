"""The bytes of Kafka's protocol that every codec of ours is made of, whichever side it is on.

Readers take the buffer and a position and return the value with the position behind it. Bytes that end
too early raise `IndexError` or `struct.error`, bad text `UnicodeDecodeError`, bad lengths `ValueError`.
How long an array may be is each side's own matter: a server believes less than a client.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
UUID_BYTES: Final = 16

# Of every request: key, version, correlation id, length of the client id. The client id follows.
REQUEST_HEADER: Final = struct.Struct(">hhih")
BROKER_REPORT: Final = (
    12_001  # the key of a request of our own, far from Kafka's: `cluster.report_codec`
)

# A tagged field of our own, in Fetch. Who asks with the boot id of the broker's machine in it is answered
# with a `FileReference`, in the same field of a partition, in place of many records. Others skip it.
BY_REFERENCE: Final = 12_001
_REFERENCE: Final = struct.Struct(">QQqi61s")


class FileReference(NamedTuple):
    """Whole batches of a segment, as where they are: for a client on the broker's own machine.

    Whether that is the same file for the client, too, can be told by its device and inode, and by the
    header of the first batch.
    """

    device: int
    inode: int
    position: int
    size: int
    header: bytes
    path: bytes  # as the system has it

    def behind(self, size: int) -> FileReference | None:
        """What follows behind the first `size` bytes of it, if anything. Its first header is not known."""
        if size >= self.size:
            return None
        return self._replace(position=self.position + size, size=self.size - size, header=b"")

    def encode(self) -> bytes:
        return _REFERENCE.pack(*self[:5]) + self.path

    @classmethod
    def decode(cls, data: memoryview) -> FileReference:
        device, inode, position, size, header = _REFERENCE.unpack_from(data)
        if position < 0 or size < len(header):
            raise ValueError(f"{size} bytes of a file at {position}")
        return cls(device, inode, position, size, header, bytes(data[_REFERENCE.size :]))


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


def skip_tagged(data: memoryview, position: int, count: int) -> int:
    """The position behind `count` tagged fields, none of which is read."""
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    if position > len(data):
        raise IndexError("tagged fields end too early")
    return position


def read_tagged(data: memoryview, position: int, count: int) -> tuple[dict[int, memoryview], int]:
    """`count` tagged fields by their tags, and the position behind them."""
    fields: dict[int, memoryview] = {}
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        fields[tag] = data[position : position + size]
        position += size
    if position > len(data):
        raise IndexError("tagged fields end too early")
    return fields, position


def skip_tags(data: memoryview, position: int) -> int:
    """The position behind a section of tagged fields, none of which is read."""
    count, position = read_uvarint(data, position)
    return skip_tagged(data, position, count)


def read_length(
    data: memoryview, position: int, flexible: bool, fixed: struct.Struct
) -> tuple[int, int]:
    """A length as it stands there, below zero for null. Versions that are not flexible have it `fixed`."""
    if flexible:
        length, position = read_uvarint(data, position)
        return length - 1, position
    return fixed.unpack_from(data, position)[0], position + fixed.size


def read_count(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """An array's length, null counting as empty. It is not longer than the message."""
    count, position = read_length(data, position, flexible, INT32)
    if count > len(data) - position:
        raise ValueError("an array is longer than its message")
    return max(count, 0), position


def read_bytes_size(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The length of the bytes that follow, all of which are there; null counts as empty."""
    size, position = read_length(data, position, flexible, INT32)
    size = max(size, 0)
    if position + size > len(data):
        raise IndexError("bytes end too early")
    return size, position


def write_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = text.encode()
    if flexible:
        return write_uvarint(len(encoded) + 1) + encoded
    return INT16.pack(len(encoded)) + encoded


def write_count(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else INT32.pack(count)
