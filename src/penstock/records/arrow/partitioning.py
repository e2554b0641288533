"""Which partition a key belongs to, as the producers of Kafka decide it, for a whole column at once."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from penstock.records.arrow.columns import Span, bytes_column, size_of, start_of
from penstock.records.arrow.memory import byte_at, int32_at, kernel

_WORD: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF
_SEED: Final = 0x9747_B28C
_FACTOR: Final = 0x5BD1_E995
_POLYNOMIAL: Final = 0xEDB8_8320


def partition_of_keys(
    keys: pa.Array, partitions: int, algorithm: Literal["murmur2", "crc32"]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The partition of each key, as int32; -1 for a null key, which has none.

    "murmur2" is what the Java client does, "crc32" what librdkafka does ("consistent").
    """
    assert partitions > 0
    result = np.full(len(keys), -1, np.int32)
    column = bytes_column(keys)
    if algorithm == "murmur2":
        _by_murmur2(column.span, partitions, result)
    else:
        _by_crc32(column.span, partitions, result, _CRC_TABLE)
    return result


@kernel
def _by_murmur2(keys: Span, partitions: int, result: Any) -> None:
    for row in range(len(result)):
        size = size_of(keys, row)
        if size < 0:
            continue
        at = keys[2] + start_of(keys, row)
        end = at + size
        state = _SEED ^ size
        while at + 4 <= end:
            word = ((int32_at(at) & _WORD) * _FACTOR) & _WORD
            word = ((word ^ (word >> 24)) * _FACTOR) & _WORD
            state = ((state * _FACTOR) & _WORD) ^ word
            at += 4
        if at < end:
            for index in range(end - at):
                state ^= byte_at(at + index) << (8 * index)
            state = (state * _FACTOR) & _WORD
        state = ((state ^ (state >> 13)) * _FACTOR) & _WORD
        state ^= state >> 15
        result[row] = (state & _POSITIVE) % partitions


def _crc_table() -> np.ndarray[Any, Any]:
    table = np.arange(256, dtype=np.int64)
    for _ in range(8):
        table = (table >> 1) ^ (_POLYNOMIAL * (table & 1))
    return table


_CRC_TABLE: Final = _crc_table()


@kernel
def _by_crc32(keys: Span, partitions: int, result: Any, table: Any) -> None:
    for row in range(len(result)):
        size = size_of(keys, row)
        if size < 0:
            continue
        at = keys[2] + start_of(keys, row)
        state = _WORD
        for index in range(size):
            state = (state >> 8) ^ table[(state ^ byte_at(at + index)) & 0xFF]
        result[row] = (state ^ _WORD) % partitions
