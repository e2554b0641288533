"""What a partition knows of its idempotent producers.

For each producer id: its epoch and the last five batches it wrote. A batch that repeats one of the
five is answered with that batch's offset and not written again; one that leaves a gap is refused. The
state is part of every recovery point, and batches behind that point are replayed into it, so it is
the same after a restart or a `kill -9`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.records.batch import ATTRIBUTE_LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader

REMEMBERED_BATCHES: Final = 5
_SEQUENCE_MODULUS: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSummary:
    """One producer as DescribeProducers shows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    current_txn_start_offset: int = -1


class RememberedBatch(NamedTuple):
    """A batch as it must be answered if it is sent again."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    append_time: int  # -1 unless it was stamped on arrival


class KnownProducer(NamedTuple):
    """What is expected of a producer next, and where its last batch went; -1: it was cut off."""

    epoch: int
    next_sequence: int
    last_offset: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_timestamp_ms: int
    seen_ms: int  # when it last wrote, by our clock: what expiry goes by
    next_sequence: int = 0
    batches: deque[RememberedBatch] = field(  # oldest first; empty if all of them were cut off
        default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES)
    )


def last_sequence_of(header: BatchHeader) -> int:
    """Sequences count records and wrap from 2**31 - 1 to 0."""
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCE_MODULUS


class ProducerStates:
    """All idempotent producers of one partition."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def find(self, producer_id: int) -> KnownProducer | None:
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        last_offset = producer.batches[-1].base_offset if producer.batches else -1
        return KnownProducer(producer.epoch, producer.next_sequence, last_offset)

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that this one repeats, None if it is new; `ApiError` if out of turn."""
        producer = self._producers.get(header.producer_id)
        if header.base_sequence < 0:
            raise ApiError(
                ErrorCode.invalid_record, "an idempotent batch without a sequence number"
            )
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {producer.epoch} by now",
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise self._out_of_order(header, 0)
            return None
        first, last = header.base_sequence, last_sequence_of(header)
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        if first != producer.next_sequence:
            raise self._out_of_order(header, producer.next_sequence)
        return None

    @staticmethod
    def _out_of_order(header: BatchHeader, expected: int) -> ApiError:
        return ApiError(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, not {expected}",
        )

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch that is in the log now."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = _Producer(header.producer_epoch, header.max_timestamp, now_ms)
            self._producers[header.producer_id] = producer
        producer.last_timestamp_ms = header.max_timestamp
        producer.seen_ms = now_ms
        stamped = header.attributes & ATTRIBUTE_LOG_APPEND_TIME
        last_sequence = last_sequence_of(header)
        producer.next_sequence = (last_sequence + 1) % _SEQUENCE_MODULUS
        producer.batches.append(
            RememberedBatch(
                header.base_sequence,
                last_sequence,
                base_offset,
                header.max_timestamp if stamped else NO_TIMESTAMP,
            )
        )

    def expire(self, now_ms: int, expiry_ms: int) -> None:
        """Forget producers that wrote nothing for `expiry_ms`."""
        oldest = now_ms - expiry_ms
        gone = [key for key, state in self._producers.items() if state.seen_ms < oldest]
        for key in gone:
            del self._producers[key]

    def truncate(self, end_offset: int) -> None:
        """Forget batches at or above `end_offset`, and producers that none are known of below it.

        For a log that a crash took any number of batches from: what a producer wrote last below
        `end_offset` is not known then, and it may go on with any sequence.
        """
        self._forget_from(end_offset, knows_next=False)

    def undo(self, end_offset: int) -> None:
        """The log is cut at `end_offset`: a producer goes on where it was before it wrote behind it.

        One whose remembered batches are all cut off repeats them, beginning with the first: no more
        than those can be unacknowledged. One that began with them is forgotten.
        """
        self._forget_from(end_offset, knows_next=True)

    def _forget_from(self, end_offset: int, *, knows_next: bool) -> None:
        for key, state in list(self._producers.items()):
            kept = [batch for batch in state.batches if batch.base_offset < end_offset]
            if len(kept) == len(state.batches) and (kept or knows_next):
                continue
            if kept:
                state.next_sequence = (kept[-1].last_sequence + 1) % _SEQUENCE_MODULUS
            else:
                if not knows_next or state.batches[0].first_sequence == 0:
                    del self._producers[key]
                    continue
                state.next_sequence = state.batches[0].first_sequence
            state.batches.clear()
            state.batches.extend(kept)

    def summaries(self) -> list[ProducerSummary]:
        return [
            ProducerSummary(
                producer_id=key,
                producer_epoch=state.epoch,
                last_sequence=(state.next_sequence - 1) % _SEQUENCE_MODULUS,
                last_timestamp_ms=state.last_timestamp_ms,
            )
            for key, state in self._producers.items()
        ]

    def to_json(self) -> list[Any]:
        return [
            [
                key,
                state.epoch,
                state.last_timestamp_ms,
                state.seen_ms,
                list(state.batches),
                state.next_sequence,
            ]
            for key, state in self._producers.items()
        ]

    @classmethod
    def from_json(cls, data: Iterable[Any]) -> ProducerStates:
        states = cls()
        for key, epoch, last_timestamp_ms, seen_ms, batches, *rest in data:
            producer = _Producer(epoch, last_timestamp_ms, seen_ms)
            producer.batches.extend(RememberedBatch._make(batch) for batch in batches)
            if rest:
                producer.next_sequence = rest[0]
            else:  # written before there was anything else to go by
                producer.next_sequence = (batches[-1][1] + 1) % _SEQUENCE_MODULUS
            states._producers[key] = producer
        return states
