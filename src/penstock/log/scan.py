"""Walking a segment file batch by batch, checking every one: for recovery, verification and repair.

The file is read in pieces, not mapped: a sector that cannot be read, or a file that is cut while it is
scanned, is an `OSError` or a damaged range here, and the end of the whole process under a mapping.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.files import LogFile
from penstock.records.batch import (
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)

_OFFSET_SPAN: Final = 2**31  # a segment's offsets lie within this of its base
_PIECE_BYTES: Final = 1024 * 1024
_PATTERN_BYTES: Final = 17  # from the base offset to the magic byte


class ScannedBatch(NamedTuple):
    """A sound batch at `position`."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes `[position, end)` are no sound batch.

    `is_torn_tail` is true if nothing sound follows: what a write that was cut short leaves behind.
    """

    position: int
    end: int
    reason: str
    is_torn_tail: bool


def scan(
    path: str,
    *,
    start: int = 0,
    end: int | None = None,
    next_offset: int = 0,
    has_gaps: bool = True,
) -> Iterator[ScannedBatch | Damage]:
    """Every batch of the file from `start` on, and every damaged range in its place.

    Goes on behind damage at the next sound batch, so that a caller sees all there is. A batch's CRC
    does not cover its offset, so that is held against its neighbours': without `has_gaps` it must be
    `next_offset`, then the one behind the batch before; with it, it may be larger if the batch behind
    it agrees.
    """
    bytes_of = _Pieces(path, end)
    limit = next_offset + _OFFSET_SPAN
    position = start
    while position < bytes_of.size:
        found = _check_in_file(bytes_of, position)
        if isinstance(found, BatchHeader):
            wrong = _wrong_offset(bytes_of, position, found, next_offset, limit, has_gaps)
            if wrong is None:
                yield ScannedBatch(position, found)
                next_offset = found.last_offset + 1
            else:
                yield Damage(position, position + found.size_bytes, wrong, False)
            position += found.size_bytes
            continue
        resume = _resume(bytes_of, position, next_offset, limit)
        until = bytes_of.size if resume is None else resume
        yield Damage(position, until, found, resume is None)
        position = until


def _wrong_offset(
    bytes_of: _Pieces,
    position: int,
    header: BatchHeader,
    next_offset: int,
    limit: int,
    has_gaps: bool,
) -> str | None:
    """What is wrong with the offset of a batch that is sound but for that, if anything is."""
    if header.base_offset == next_offset:
        return None
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} where at least {next_offset} is due"
    if not has_gaps or header.base_offset >= limit:
        return f"offset {header.base_offset} where {next_offset} is due"
    following = _check_in_file(bytes_of, position + header.size_bytes)
    if (
        isinstance(following, BatchHeader)
        and next_offset <= following.base_offset <= header.last_offset
    ):
        return f"offset {header.base_offset} before offset {following.base_offset}"
    return None


def check_at(data: memoryview, position: int) -> BatchHeader | str:
    """The header of the batch at `position`, or what is wrong with the bytes there."""
    left = len(data) - position
    header = _check_header(data[position : position + HEADER_BYTES], left)
    if isinstance(header, str):
        return header
    if crc32c(data[position + CRC_START : position + header.size_bytes]) != header.crc:
        return "the batch fails its CRC"
    return header


def _check_header(data: memoryview, left: int) -> BatchHeader | str:
    if left < HEADER_BYTES:
        return f"{left} bytes are too few for a batch"
    header = read_header(data)
    if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
        return "no record batch begins here"
    if header.size_bytes > left:
        return f"the batch needs {header.size_bytes} bytes, {left} are left"
    return header


class _Pieces:
    """A file's bytes, at most a piece or so of them in memory."""

    def __init__(self, path: str, end: int | None) -> None:
        self._file = LogFile(path, os.O_RDONLY)
        self.size = os.fstat(self._file.fd).st_size
        if end is not None:
            self.size = min(self.size, end)
        self._start = 0
        self._data = memoryview(b"")

    def __call__(self, position: int, count: int) -> memoryview:
        """`count` bytes, at most a piece of them; fewer if the file ends, or was cut since."""
        start = position - self._start
        if start < 0 or start + count > len(self._data):
            wanted = min(_PIECE_BYTES, self.size - position)
            self._data = memoryview(self._file.pread(wanted, position))
            self._start = position
            start = 0
        return self._data[start : start + count]


def _check_in_file(bytes_of: _Pieces, position: int) -> BatchHeader | str:
    data = bytes_of(position, HEADER_BYTES)
    left = bytes_of.size - position if len(data) == HEADER_BYTES else len(data)
    header = _check_header(data, left)
    if isinstance(header, str):
        return header
    crc = 0
    at, end = position + CRC_START, position + header.size_bytes
    while at < end:
        piece = bytes_of(at, min(end - at, _PIECE_BYTES))
        if not piece:
            return "the file ends inside the batch"
        crc = crc32c(piece, crc)
        at += len(piece)
    return header if crc == header.crc else "the batch fails its CRC"


def _resume(bytes_of: _Pieces, position: int, next_offset: int, limit: int) -> int | None:
    """Where a sound batch begins behind the damage at `position`, or None.

    Values may hold batches themselves. So if the batch that is due begins here, as far as one can tell,
    what follows it has a larger offset, and most likely begins where its length says.
    """
    data = bytes_of(position, HEADER_BYTES)
    header = read_header(data) if len(data) == HEADER_BYTES else None
    if header is None or header.magic != MAGIC or header.base_offset != next_offset:
        return _next_sound(bytes_of, position + 1, limit, offset_min=0)
    end = position + max(header.size_bytes, HEADER_BYTES)
    following = _check_in_file(bytes_of, end) if end < bytes_of.size else None
    if isinstance(following, BatchHeader) and following.base_offset > next_offset:
        return end
    return _next_sound(bytes_of, position + 1, limit, offset_min=next_offset + 1)


def _next_sound(bytes_of: _Pieces, position: int, limit: int, offset_min: int) -> int | None:
    """Where the next sound batch begins, or None. Its offset is near those of the segment."""
    high_bytes = {
        (offset >> 32).to_bytes(4, "big")
        for offset in (max(0, limit - 2 * _OFFSET_SPAN), limit - _OFFSET_SPAN, limit)
    }
    prefix = b"|".join(re.escape(high) for high in sorted(high_bytes))
    # Any 4 low bytes, length and epoch (12 bytes in all), then the magic byte.
    header = re.compile(b"(?:" + prefix + b")(?s:.{12})\\x02")
    while position + HEADER_BYTES <= bytes_of.size:
        piece = bytes(bytes_of(position, _PIECE_BYTES))
        match = header.search(piece) if b"\x02" in piece else None
        while match is not None:
            candidate = position + match.start()
            found = _check_in_file(bytes_of, candidate)
            if isinstance(found, BatchHeader) and found.base_offset >= offset_min:
                return candidate
            match = header.search(piece, match.start() + 1)
        if len(piece) < _PATTERN_BYTES:
            return None
        position += len(piece) - _PATTERN_BYTES + 1
    return None
