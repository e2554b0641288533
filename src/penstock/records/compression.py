"""The five codecs a batch may be compressed with. The broker never calls this on its hot path."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from penstock.errors import PenstockError
from penstock.records.batch import COMPRESSION_NAMES, Buffer

DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024  # a megabyte may claim to hold gigabytes

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_LZ4_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 3
_FIRST_BUFFER_BYTES: Final = 64 * 1024
_BUFFER_IS_FULL: Final = "failed to write whole buffer"  # how cramjam says it


class CompressionError(PenstockError):
    """The records of a batch cannot be decompressed."""


class TooManyBytesError(CompressionError):
    """They have more bytes than they may."""


def decompress(codec: int, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The records of a batch whose attributes name `codec` (0 to 4), if they fit `bytes_max`."""
    return bytes(decompress_view(codec, data, bytes_max))


def decompress_view(
    codec: int, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX, *, bytes_likely: int = 0
) -> Buffer:
    """The same without a last copy; `data` itself if it is not compressed.

    `bytes_likely` is a guess at the size: one that is large enough saves a second attempt.
    """
    try:
        match codec:
            case 0:
                return data
            case 1:
                return _gzip(data, bytes_max)
            case 2:
                return _snappy(data, bytes_max)
            case 3:
                return _into(cramjam.lz4.decompress_into, data, bytes_max, bytes_likely)
            case 4:
                return _into(cramjam.zstd.decompress_into, data, bytes_max, bytes_likely)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CompressionError(f"{COMPRESSION_NAMES[codec]} data is damaged: {error}") from error
    raise CompressionError(f"unknown compression codec {codec}")


def compress(codec: int, data: Buffer) -> bytes:
    """`data` as a batch whose attributes name `codec` carries it, at the speed Kafka's clients choose."""
    match codec:
        case 0:
            return bytes(data)
        case 1:
            compressor = zlib.compressobj(wbits=31)
            return compressor.compress(data) + compressor.flush()
        case 2:
            return bytes(cramjam.snappy.compress_raw(data))
        case 3:
            return _lz4_packed(data)
        case 4:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise CompressionError(f"unknown compression codec {codec}")


def _lz4_packed(data: Buffer) -> bytes:
    """A frame of independent blocks: the Java client reads no other."""
    compressor = cramjam.lz4.Compressor(
        level=_LZ4_LEVEL, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _gzip(data: Buffer, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    result = decompressor.decompress(data, bytes_max)
    if not decompressor.eof:
        if decompressor.unconsumed_tail or len(result) == bytes_max:
            raise _too_large(bytes_max)
        raise CompressionError("gzip data is damaged: it is cut short")
    return result


def _into(
    decompress_into: Callable[[Buffer, bytearray], int],
    data: Buffer,
    bytes_max: int,
    bytes_likely: int,
) -> bytearray:
    """Decompress into a buffer that grows until the result fits: the data does not say its size."""
    size = bytes_likely or max(_FIRST_BUFFER_BYTES, 4 * len(data))
    while True:
        size = min(size, bytes_max)
        buffer = bytearray(size)
        try:
            del buffer[decompress_into(data, buffer) :]  # gives back what was guessed too much
            return buffer
        except cramjam.DecompressionError as error:
            if _BUFFER_IS_FULL not in str(error):
                raise
        if size == bytes_max:
            raise _too_large(bytes_max)
        size *= 4


def _too_large(bytes_max: int) -> TooManyBytesError:
    return TooManyBytesError(f"the records have more than {bytes_max} bytes")


def _snappy(data: Buffer, bytes_max: int) -> Buffer:
    """Raw snappy, or the framed form of the Java client (xerial): length-prefixed raw blocks."""
    data = memoryview(data)
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, bytes_max)
    blocks: list[Buffer] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        blocks.append(_snappy_block(data[position : position + size], bytes_max))
        bytes_max -= len(blocks[-1])
        position += size
    if position != len(data):
        raise CompressionError("snappy data is damaged: it is cut short")
    return b"".join(blocks)


def _snappy_block(data: memoryview, bytes_max: int) -> memoryview:
    if cramjam.snappy.decompress_raw_len(data) > bytes_max:
        raise _too_large(bytes_max)
    return memoryview(cramjam.snappy.decompress_raw(data))
