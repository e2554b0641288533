"""Batches of idempotent producers that were refused for a while, so that those behind them are, too.

A producer has several batches under way. If one is refused because the lease has run out or too few
replicas are in sync, and a moment later that is over, the next one is out of turn. But that is not the
producer's fault: told so, librdkafka goes on under a new epoch, in which it sends again, to all its
partitions, what may have got through, and nobody can tell that it is the same. So who is behind a batch
that was refused is refused for the same reason; the producer sends both again, in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.records.batch import HEADER_BYTES, NO_PRODUCER, read_header

__all__ = ["Refusals"]

_REMEMBERED_S: Final = 5.0  # a producer that has not come back with it by then will not
_REMEMBERED_MAX: Final = 1_000  # producers


class _Refused(NamedTuple):
    sequence: int
    code: ErrorCode
    message: str
    until_s: float


class Refusals:
    """Of one partition on one broker."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], _Refused] = {}  # by producer id and epoch

    def note(self, records: memoryview, error: ApiError, now: float) -> None:
        """A batch is refused, and may be sent again. Nobody has looked at it yet: it may be anything."""
        if len(records) < HEADER_BYTES:
            return
        header = read_header(records)
        if header.producer_id == NO_PRODUCER:
            return
        key = header.producer_id, header.producer_epoch
        known = self._first.pop(key, None)
        if known is not None and known.until_s > now and known.sequence <= header.base_sequence:
            self._first[key] = known
            return
        while len(self._first) >= _REMEMBERED_MAX:
            del self._first[next(iter(self._first))]
        self._first[key] = _Refused(
            header.base_sequence, error.code, error.message, now + _REMEMBERED_S
        )

    def instead_of(self, error: ApiError, records: memoryview, now: float) -> ApiError | None:
        """Why an earlier batch of the same producer was refused, if that is why this one has failed."""
        if error.code is not ErrorCode.out_of_order_sequence_number:
            return None
        header = read_header(records)
        refused = self._first.get((header.producer_id, header.producer_epoch))
        if refused is None or refused.until_s <= now or refused.sequence >= header.base_sequence:
            return None
        return ApiError(refused.code, refused.message)

    def taken(self, records: memoryview) -> None:
        """A batch was appended: whatever was refused before it has come, too."""
        if self._first:
            header = read_header(records)
            self._first.pop((header.producer_id, header.producer_epoch), None)
