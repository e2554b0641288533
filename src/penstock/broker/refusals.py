"""Batches of idempotent producers that come too early, because one before them was refused for a while.

A producer has several batches under way. If one is refused, because the lease has run out, too few
replicas are in sync or the disk is full, and a moment later that is over, the next one is out of turn. The
same happens when another broker begins to lead: one is refused by the leader before, and the next comes here.
But that is not the producer's fault: told so, librdkafka goes on under a new epoch, in which it sends again,
to all its partitions, what may have got through, and nobody can tell that it is the same. And in a log that
does not know the producer, the next one would be taken for its first. So who is behind a batch that was
refused is refused for the same reason; the producer sends both again, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.records.batch import HEADER_BYTES, NO_PRODUCER, BatchHeader, read_header

if TYPE_CHECKING:
    from penstock.log import PartitionLog

__all__ = ["NEW_S", "Refusals"]

# For so long after an election, a producer's first batch may be one that the leader before refused.
NEW_S: Final = 60.0

# What a producer answers by sending the same batch again.
_FOR_A_WHILE: Final = frozenset({
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.not_enough_replicas,
    ErrorCode.kafka_storage_error,
})  # fmt: skip
_ELSEWHERE: Final = ApiError(
    ErrorCode.not_leader_or_follower, "a batch before it was on its way to the leader before"
)
_REMEMBERED_S: Final = 10.0  # a producer that has not come back with it by then will not
_REMEMBERED_MAX: Final = 1_000  # producers


class _Refused(NamedTuple):
    sequence: int
    code: ErrorCode
    message: str
    until_s: float


class Refusals:
    """Of one partition on one broker, while it leads.

    What it leads from `epoch_start` on; producers may be strange to it until `new_until_s`.
    """

    __slots__ = ("_epoch_start", "_first", "_new_until_s")

    def __init__(self, *, epoch_start: int = 0, new_until_s: float = 0.0) -> None:
        self._epoch_start = epoch_start
        self._new_until_s = new_until_s
        # By producer id and epoch: the first batch that was refused and has not come since.
        self._first: dict[tuple[int, int], _Refused] = {}

    def check(self, records: memoryview, log: PartitionLog | None, now: float) -> None:
        """Refuse a batch that the log would take only because it does not know the producer."""
        if log is None or (not self._first and now >= self._new_until_s):
            return
        header = _header_of(records)
        if header is None or log.find_producer(header.producer_id) is not None:
            return
        refusal = self._refusal_before(header, 0, now, is_new=now < self._new_until_s)
        if refusal is not None:
            raise refusal

    def instead_of(
        self, error: ApiError, records: memoryview, log: PartitionLog | None, now: float
    ) -> ApiError | None:
        """A batch has failed: why one before it was refused, if that is why."""
        header = _header_of(records)
        if header is None:
            return None
        if error.code in _FOR_A_WHILE:
            self._note(header, error, now)
        if error.code is not ErrorCode.out_of_order_sequence_number or log is None:
            return None
        producer = log.find_producer(header.producer_id)
        if producer is None:
            return None
        is_next = producer.epoch == header.producer_epoch
        return self._refusal_before(
            header,
            producer.next_sequence if is_next else 0,
            now,
            is_new=producer.last_offset < self._epoch_start,
        )

    def taken(self, records: memoryview) -> None:
        """A batch is in the log: if it is the one that was refused, or comes behind it, that is over."""
        if not self._first:
            return
        header = _header_of(records)
        if header is not None:
            key = header.producer_id, header.producer_epoch
            refused = self._first.get(key)
            if refused is not None and refused.sequence <= header.base_sequence:
                del self._first[key]

    def _refusal_before(
        self, header: BatchHeader, expected: int, now: float, *, is_new: bool
    ) -> ApiError | None:
        """Why the batch `expected` was refused; by the leader before, if the producer is new to us."""
        key = header.producer_id, header.producer_epoch
        if is_new and key not in self._first:
            self._put(
                key, _Refused(expected, _ELSEWHERE.code, _ELSEWHERE.message, now + _REMEMBERED_S)
            )
        refused = self._first.get(key)
        if refused is None or refused.until_s <= now or refused.sequence >= header.base_sequence:
            return None
        return ApiError(refused.code, refused.message)

    def _note(self, header: BatchHeader, error: ApiError, now: float) -> None:
        key = header.producer_id, header.producer_epoch
        known = self._first.pop(key, None)
        sequence = header.base_sequence
        if known is not None:
            sequence = min(sequence, known.sequence)
        self._put(key, _Refused(sequence, error.code, error.message, now + _REMEMBERED_S))

    def _put(self, key: tuple[int, int], refused: _Refused) -> None:
        while len(self._first) >= _REMEMBERED_MAX:
            del self._first[next(iter(self._first))]
        self._first[key] = refused


def _header_of(records: memoryview) -> BatchHeader | None:
    """Of an idempotent batch. Nobody may have looked at it yet: it may be anything."""
    if len(records) < HEADER_BYTES:
        return None
    header = read_header(records)
    return None if header.producer_id == NO_PRODUCER else header
