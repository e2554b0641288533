"""The five codecs a batch may be compressed with. The broker never calls this on its hot path."""

from __future__ import annotations

import zlib
from typing import Final

import cramjam

from penstock.errors import PenstockError
from penstock.records.batch import COMPRESSION_NAMES, Buffer

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16


class CompressionError(PenstockError):
    """The records of a batch cannot be decompressed."""


def decompress(codec: int, data: Buffer) -> bytes:
    """The records of a batch whose attributes name `codec` (0 to 4)."""
    try:
        match codec:
            case 0:
                return bytes(data)
            case 1:
                return zlib.decompress(data, wbits=31)
            case 2:
                return _snappy(bytes(data))
            case 3:
                return bytes(cramjam.lz4.decompress(bytes(data)))
            case 4:
                return bytes(cramjam.zstd.decompress(bytes(data)))
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CompressionError(f"{COMPRESSION_NAMES[codec]} data is damaged: {error}") from error
    raise CompressionError(f"unknown compression codec {codec}")


def compress(codec: int, data: bytes) -> bytes:
    """`data` as a batch whose attributes name `codec` carries it."""
    match codec:
        case 0:
            return data
        case 1:
            compressor = zlib.compressobj(wbits=31)
            return compressor.compress(data) + compressor.flush()
        case 2:
            return bytes(cramjam.snappy.compress_raw(data))
        case 3:
            return bytes(cramjam.lz4.compress(data))
        case 4:
            return bytes(cramjam.zstd.compress(data))
    raise CompressionError(f"unknown compression codec {codec}")


def _snappy(data: bytes) -> bytes:
    """Raw snappy, or the framed form of the Java client (xerial): length-prefixed raw blocks."""
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    blocks: list[bytes] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + size])))
        position += size
    return b"".join(blocks)
