"""Batches that a replica fetched from its leader: trusted no more than any bytes from the network."""

from __future__ import annotations

from typing import Final

from penstock.errors import ApiError, ErrorCode
from penstock.log.scan import check_at
from penstock.records.batch import BatchHeader

NO_EPOCH: Final = -1


def check_fetched(
    records: memoryview, position: int, next_offset: int, last_epoch: int
) -> BatchHeader:
    """The header of the batch at `position`, if it can come behind what ends at `next_offset`.

    Offsets may be missing, because the leader's log lacks them; none may come twice, and epochs do not
    go back. `ApiError` (corrupt_message) says what is wrong.
    """
    header = check_at(records, position)
    if isinstance(header, str):
        raise _refused(position, header)
    if header.base_offset < next_offset:
        raise _refused(position, f"offset {header.base_offset} where {next_offset} is due")
    if header.leader_epoch < last_epoch or header.leader_epoch < 0:
        raise _refused(position, f"epoch {header.leader_epoch} behind epoch {last_epoch}")
    if not 0 < header.record_count <= header.last_offset_delta + 1:
        raise _refused(
            position,
            f"{header.record_count} records for {header.last_offset_delta + 1} offsets",
        )
    return header


def _refused(position: int, reason: str) -> ApiError:
    return ApiError(ErrorCode.corrupt_message, f"fetched records, at byte {position}: {reason}")
