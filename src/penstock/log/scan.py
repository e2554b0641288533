"""Walking a segment file batch by batch, checking every one: for recovery, verification and repair."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.records.batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    crc_of,
    read_header,
)

_OFFSET_SPAN: Final = 2**31  # a segment's offsets lie within this of its base


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
    path: str, *, start: int = 0, end: int | None = None, next_offset: int = 0
) -> Iterator[ScannedBatch | Damage]:
    """Every batch of the file from `start` on, and every damaged range in its place.

    Goes on behind damage at the next sound batch, so that a caller sees all there is.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        size = size if end is None else min(size, end)
        if start >= size:
            return
        with (
            mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            yield from _walk(data, mapped, start, next_offset)


def _walk(
    data: memoryview, mapped: mmap.mmap, position: int, next_offset: int
) -> Iterator[ScannedBatch | Damage]:
    size = len(data)
    while position < size:
        found = check_at(data, position, next_offset)
        if isinstance(found, BatchHeader):
            yield ScannedBatch(position, found)
            position += found.size_bytes
            next_offset = found.last_offset + 1
            continue
        resume = _next_sound(data, mapped, position + 1, next_offset)
        end = size if resume is None else resume
        yield Damage(position, end, found, resume is None)
        position = end


def check_at(data: memoryview, position: int, next_offset: int) -> BatchHeader | str:
    """The header of a sound batch at `position`, or what is wrong with the bytes there."""
    left = len(data) - position
    if left < HEADER_BYTES:
        return f"{left} bytes are too few for a batch"
    header = read_header(data, position)
    if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
        return "no record batch begins here"
    if header.size_bytes > left:
        return f"the batch needs {header.size_bytes} bytes, {left} are left"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} where at least {next_offset} is due"
    if crc_of(data[position : position + header.size_bytes]) != header.crc:
        return "the batch fails its CRC"
    return header


def _next_sound(data: memoryview, mapped: mmap.mmap, position: int, next_offset: int) -> int | None:
    """Where the next sound batch begins, or None."""
    high_bytes = {
        (offset >> 32).to_bytes(4, "big") for offset in (next_offset, next_offset + _OFFSET_SPAN)
    }
    prefix = b"|".join(re.escape(high) for high in sorted(high_bytes))
    # Any 4 low bytes, length and epoch (12 bytes in all), then the magic byte.
    candidate = re.compile(b"(?=(?:" + prefix + b")[\\x00-\\xff]{12}\\x02)")
    for match in candidate.finditer(mapped, position):
        if isinstance(check_at(data, match.start(), next_offset), BatchHeader):
            return match.start()
    return None
