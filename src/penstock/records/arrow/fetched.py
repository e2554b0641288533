"""The batches of one Fetch answer: found, checked, and those dropped that no reader may see.

Also what a batch's records are once decompressed. All of it is per batch, not per record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock.errors import PenstockError
from penstock.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_of,
    read_header,
)
from penstock.records.decode import records_of

_ABORT: Final = 0  # the type of a control record; 1 is a commit
_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type
_OFFSET_MAX: Final = 2**63 - 2


class CorruptBatchError(PenstockError):
    """Fetched bytes are not the record batches of a partition."""


class AbortedTransaction(NamedTuple):
    """What a Fetch answer says of a transaction that was given up: its data begins at an offset."""

    producer_id: int
    first_offset: int


class FetchedBatch(NamedTuple):
    """A whole batch. `visible`: its records are for readers, as opposed to markers and aborted data."""

    position: int
    header: BatchHeader
    visible: bool


def batches_of(
    data: memoryview, aborted: Sequence[tuple[int, int]], check_crc: bool
) -> Iterator[FetchedBatch]:
    """Every whole batch of `data` in order; a torn one at its end is left out.

    A transaction's data is dropped from its first offset until the marker that aborts it. `aborted`
    must name the transactions that reach into `data`, as a Fetch answer does.
    """
    transactions = _Transactions(aborted)
    position = 0
    offset_min = 0
    while position + HEADER_BYTES <= len(data):
        header = read_header(data, position)
        _check_header(header, offset_min)
        if position + header.size_bytes > len(data):
            return
        batch = data[position : position + header.size_bytes]
        if check_crc and crc_of(batch) != header.crc:
            raise CorruptBatchError(f"the batch at offset {header.base_offset} fails its CRC")
        dropped = transactions.drop(batch, header)
        yield FetchedBatch(position, header, not (dropped or header.is_control))
        position += header.size_bytes
        offset_min = header.last_offset + 1


def _check_header(header: BatchHeader, offset_min: int) -> None:
    """Check what the CRC does not cover, and what must hold before it can be computed."""
    if header.magic != MAGIC:
        raise CorruptBatchError(f"record batch version {header.magic}; only 2 is read")
    if header.length < HEADER_BYTES - LENGTH_OVERHEAD:
        raise CorruptBatchError(f"a record batch cannot say that {header.length} bytes follow")
    if header.base_offset < offset_min or header.last_offset > _OFFSET_MAX:
        raise CorruptBatchError(f"a batch at offset {header.base_offset} follows {offset_min - 1}")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptBatchError(
            f"the batch at offset {header.base_offset} has less than no records"
        )


class _Transactions:
    """Which producers' transactional batches are void at the point that was reached."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self._void: set[int] = set()

    def drop(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether this batch is void. To be asked of every batch, in order."""
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._void.add(self._coming.pop()[0])
        if header.producer_id not in self._void or not header.is_transactional:
            return False
        if header.is_control and _is_abort(batch):
            self._void.discard(header.producer_id)
        return True


def _is_abort(batch: memoryview) -> bool:
    record = next(records_of(batch), None)  # compaction may have emptied the marker's batch
    if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
        return False
    return bool(_CONTROL_KEY.unpack_from(record.key)[1] == _ABORT)
