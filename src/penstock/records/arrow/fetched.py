"""The batches of one Fetch answer: found, checked, and without those that no reader may see.

All of it is per batch: no record is looked at, but for the markers that end transactions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.errors import PenstockError
from penstock.records.arrow import decode_kernels as kernels
from penstock.records.arrow.memory import address_of
from penstock.records.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    read_header,
)
from penstock.records.decode import records_of

_ABORT: Final = 0  # the type of a control record; 1 is a commit
_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type


class CorruptBatchError(PenstockError):
    """Fetched bytes are not the record batches of a partition."""


class AbortedTransaction(NamedTuple):
    """What a Fetch answer says of a transaction that was given up: its data begins at an offset."""

    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """`batches`: a row for each batch with records for readers. `next_offset`: behind all the batches."""

    batches: np.ndarray[Any, Any]
    next_offset: int


def batches_of(
    data: memoryview, end: int, aborted: Sequence[tuple[int, int]], check_crc: bool
) -> Fetched:
    """Every whole batch of `data` up to `end`; a torn one at the end of the data is left out.

    A transaction's data is dropped from its first offset until the marker that aborts it. `aborted`
    must name the transactions that reach into `data`, as a Fetch answer does. The rows point into
    `data`. `next_offset` is 0 if there is no whole batch.
    """
    batches = np.empty((len(data) // HEADER_BYTES, kernels.BATCH_FIELDS), np.int64)
    count, position = kernels.scan_batches(address_of(data), len(data), end, batches)
    batches = batches[:count]
    if not count:
        _refuse_bad_header(data, position, 0)
        return Fetched(batches, 0)
    last = batches[-1]
    next_offset = int(last[kernels.BASE_OFFSET] + last[kernels.LAST_OFFSET_DELTA]) + 1
    if last[kernels.BASE_OFFSET] < end:
        _refuse_bad_header(data, position, next_offset)
    if check_crc:
        _check_crc(data, batches)
    attributes = batches[:, kernels.ATTRIBUTES]
    visible = (attributes & ATTRIBUTE_CONTROL == 0) & (batches[:, kernels.RECORD_COUNT] > 0)
    if aborted:
        visible &= ~_aborted(data, batches, aborted)
    return Fetched(batches if visible.all() else batches[visible], next_offset)


def _refuse_bad_header(data: memoryview, position: int, offset_min: int) -> None:
    """Raise if the scan stopped at a header that cannot be true, rather than at a torn batch."""
    if position + HEADER_BYTES > len(data):
        return
    header = read_header(data, position)
    if header.magic != MAGIC:
        raise CorruptBatchError(f"record batch version {header.magic}; only 2 is read")
    if header.length < HEADER_BYTES - LENGTH_OVERHEAD:
        raise CorruptBatchError(f"a record batch cannot say that {header.length} bytes follow")
    if header.size_bytes <= len(data) - position:
        raise CorruptBatchError(
            f"a batch at offset {header.base_offset} with {header.record_count} records up to "
            f"{header.last_offset} cannot follow offset {offset_min - 1}"
        )


def _check_crc(data: memoryview, batches: np.ndarray[Any, Any]) -> None:
    fields = batches[:, [kernels.POSITION, kernels.SIZE, kernels.CRC]].tolist()
    for position, size, crc in fields:
        if crc32c(data[position + CRC_START : position + size]) != crc:
            offset = read_header(data, position).base_offset
            raise CorruptBatchError(f"the batch at offset {offset} fails its CRC")


def _aborted(
    data: memoryview, batches: np.ndarray[Any, Any], aborted: Sequence[tuple[int, int]]
) -> np.ndarray[Any, Any]:
    """Which batches belong to transactions that were given up."""
    coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    void: set[int] = set()  # producers whose transaction is, at the point that was reached
    result = np.zeros(len(batches), np.bool_)
    for row, (attributes, producer, base, delta, position, size) in enumerate(
        batches[
            :,
            [
                kernels.ATTRIBUTES,
                kernels.PRODUCER_ID,
                kernels.BASE_OFFSET,
                kernels.LAST_OFFSET_DELTA,
                kernels.POSITION,
                kernels.SIZE,
            ],
        ].tolist()
    ):
        while coming and coming[-1][1] <= base + delta:
            void.add(coming.pop()[0])
        if attributes & ATTRIBUTE_CONTROL:
            if producer in void and _is_abort(data[position : position + size]):
                void.discard(producer)
        elif attributes & ATTRIBUTE_TRANSACTIONAL:
            result[row] = producer in void
    return result


def _is_abort(batch: memoryview) -> bool:
    record = next(records_of(batch), None)  # compaction may have emptied the marker's batch
    if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
        return False
    return bool(_CONTROL_KEY.unpack_from(record.key)[1] == _ABORT)
