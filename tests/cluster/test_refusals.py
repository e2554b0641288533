"""Who is behind a batch that was refused for a while is refused like it, not as out of turn."""

from __future__ import annotations

from penstock.cluster.refusals import Refusals
from penstock.errors import ApiError, ErrorCode
from tests.kafka.batches import make_batch

TOO_FEW = ApiError(ErrorCode.not_enough_replicas, "1 is in sync, 2 are needed")
OUT_OF_TURN = ApiError(ErrorCode.out_of_order_sequence_number, "sequence 7, not 5")


def batch(sequence: int, *, producer: int = 1, epoch: int = 0) -> memoryview:
    return memoryview(make_batch(b"x", producer_id=producer, epoch=epoch, sequence=sequence))


def answer(
    refusals: Refusals, error: ApiError, records: memoryview, now: float
) -> ErrorCode | None:
    """What is answered instead of `error`, if anything is."""
    refusal = refusals.instead_of(error, records, now)
    return None if refusal is None else refusal.code


def test_the_next_batch_of_the_producer_is_refused_for_the_same_reason() -> None:
    refusals = Refusals()
    refusals.note(batch(5), TOO_FEW, 0)
    refusals.note(batch(6), TOO_FEW, 0.1)
    assert answer(refusals, OUT_OF_TURN, batch(7), 0.2) is ErrorCode.not_enough_replicas


def test_one_that_is_out_of_turn_by_itself_is_told_so() -> None:
    refusals = Refusals()
    assert answer(refusals, OUT_OF_TURN, batch(7), 0) is None
    refusals.note(batch(5), TOO_FEW, 0)
    assert answer(refusals, OUT_OF_TURN, batch(4), 0) is None, "it comes before"
    assert answer(refusals, OUT_OF_TURN, batch(7, producer=2), 0) is None
    assert answer(refusals, OUT_OF_TURN, batch(7, epoch=1), 0) is None


def test_other_errors_stay_what_they_are() -> None:
    refusals = Refusals()
    refusals.note(batch(5), TOO_FEW, 0)
    broken = ApiError(ErrorCode.kafka_storage_error, "no")
    assert answer(refusals, broken, batch(7), 0) is None


def test_it_is_over_when_the_producer_has_come_back() -> None:
    refusals = Refusals()
    refusals.note(batch(5), TOO_FEW, 0)
    refusals.taken(batch(5))
    assert answer(refusals, OUT_OF_TURN, batch(7), 0) is None


def test_a_producer_that_does_not_come_back_is_told_in_the_end() -> None:
    refusals = Refusals()
    refusals.note(batch(5), TOO_FEW, 0)
    refusals.note(batch(6), TOO_FEW, 4)
    assert answer(refusals, OUT_OF_TURN, batch(7), 4.9) is ErrorCode.not_enough_replicas
    assert answer(refusals, OUT_OF_TURN, batch(7), 5.1) is None


def test_batches_without_a_producer_are_not_remembered_and_producers_only_so_many() -> None:
    refusals = Refusals()
    refusals.note(batch(-1, producer=-1), TOO_FEW, 0)
    for producer in range(1_001):
        refusals.note(batch(5, producer=producer), TOO_FEW, 0)
    assert answer(refusals, OUT_OF_TURN, batch(7, producer=0), 0) is None
    assert (
        answer(refusals, OUT_OF_TURN, batch(7, producer=1_000), 0) is ErrorCode.not_enough_replicas
    )


def test_what_is_no_batch_at_all_is_refused_and_not_remembered() -> None:
    refusals = Refusals()
    refusals.note(memoryview(b"short"), TOO_FEW, 0)
    assert answer(refusals, OUT_OF_TURN, batch(7), 0) is None
