"""Idempotent producers: nothing twice, nothing out of turn, and not forgotten in a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ApiError, ErrorCode
from penstock.log.producers import ProducerStates, last_sequence_of
from penstock.records.batch import read_header
from tests.log.support import NOW_MS, Disk, batch, from_producer, offsets

MakeDisk = Callable[..., Disk]
LAST = 2**31 - 1
HOUR_S = 3600.0


def refusal(disk: Disk, produced: memoryview) -> ErrorCode:
    end = disk.log.log_end_offset
    with pytest.raises(ApiError) as refused:
        disk.append(produced)
    assert disk.log.log_end_offset == end, "a refused batch leaves no trace"
    return refused.value.code


class TestSequences:
    def test_batches_in_turn_are_taken(self, disk: Disk) -> None:
        assert [disk.append(from_producer(i, 2)).base_offset for i in (0, 2, 4)] == [0, 2, 4]

    def test_a_gap_is_refused(self, disk: Disk) -> None:
        disk.append(from_producer(0, 2))
        assert refusal(disk, from_producer(3)) is ErrorCode.out_of_order_sequence_number

    def test_producers_do_not_disturb_each_other(self, disk: Disk) -> None:
        disk.append(from_producer(0, producer=1))
        disk.append(from_producer(0, producer=2))
        assert disk.append(from_producer(1, producer=1)).base_offset == 2
        assert disk.append(from_producer(1, producer=2)).base_offset == 3

    def test_a_producer_that_is_not_known_may_begin_anywhere(self, disk: Disk) -> None:
        """Its state may have expired: Kafka takes it, too."""
        assert disk.append(from_producer(1234)).base_offset == 0
        assert disk.append(from_producer(1235)).base_offset == 1

    def test_a_batch_needs_a_sequence(self, disk: Disk) -> None:
        assert refusal(disk, from_producer(-1)) is ErrorCode.invalid_record

    def test_an_id_below_minus_one_is_no_producer(self, disk: Disk) -> None:
        for _ in range(2):
            disk.append(batch(producer_id=-2, producer_epoch=0, base_sequence=0))
        assert disk.log.log_end_offset == 2
        assert disk.log.active_producers() == []

    def test_sequences_wrap_behind_the_largest_integer(self, disk: Disk) -> None:
        disk.append(from_producer(LAST - 1))
        assert disk.append(from_producer(LAST)).base_offset == 1
        assert disk.append(from_producer(0)).base_offset == 2

    def test_they_may_wrap_within_a_batch(self, disk: Disk) -> None:
        disk.append(from_producer(LAST - 1, 5))
        assert disk.log.active_producers()[0].last_sequence == 2
        assert refusal(disk, from_producer(2)) is ErrorCode.out_of_order_sequence_number
        assert disk.append(from_producer(3)).base_offset == 5
        assert disk.append(from_producer(LAST - 1, 5)).base_offset == 0


class TestRepetition:
    def test_a_repeated_batch_gets_the_offset_it_has(self, disk: Disk) -> None:
        first = disk.append(from_producer(0, 3))
        disk.append()
        again = disk.append(from_producer(0, 3))
        assert again == first
        assert offsets(disk.log) == [0, 1, 2, 3]

    def test_the_last_five_are_known(self, disk: Disk) -> None:
        for i in range(7):
            disk.append(from_producer(2 * i, 2))
        for i in range(2, 7):
            assert disk.append(from_producer(2 * i, 2)).base_offset == 2 * i
        for i in range(2):
            assert refusal(disk, from_producer(2 * i, 2)) is ErrorCode.out_of_order_sequence_number

    def test_the_same_start_with_another_length_is_no_repetition(self, disk: Disk) -> None:
        disk.append(from_producer(0, 3))
        assert refusal(disk, from_producer(0, 2)) is ErrorCode.out_of_order_sequence_number

    def test_it_is_told_the_time_it_was_stamped_with_then(self, make_disk: MakeDisk) -> None:
        disk = make_disk(message_timestamp_type="LogAppendTime")
        first = disk.append(from_producer(0))
        disk.clock.advance(60)
        for _ in range(2):
            assert disk.append(from_producer(0)) == first
            disk.restart_after_kill()

    def test_subscribers_are_not_woken_by_it(self, disk: Disk) -> None:
        disk.append(from_producer(0))
        woken: list[int] = []
        disk.log.subscribers[lambda _, size: woken.append(size)] = None
        disk.append(from_producer(0))
        assert woken == []


class TestEpochs:
    def test_an_older_epoch_is_fenced(self, disk: Disk) -> None:
        disk.append(from_producer(0, epoch=3))
        assert refusal(disk, from_producer(1, epoch=2)) is ErrorCode.invalid_producer_epoch

    def test_a_newer_epoch_begins_at_zero(self, disk: Disk) -> None:
        disk.append(from_producer(0, 5, epoch=3))
        assert refusal(disk, from_producer(5, epoch=4)) is ErrorCode.out_of_order_sequence_number
        assert disk.append(from_producer(0, epoch=4)).base_offset == 5
        assert refusal(disk, from_producer(5, epoch=3)) is ErrorCode.invalid_producer_epoch

    def test_batches_of_the_epoch_before_are_no_repetitions(self, disk: Disk) -> None:
        disk.append(from_producer(0, epoch=3))
        assert disk.append(from_producer(0, epoch=4)).base_offset == 1


class TestMemory:
    @pytest.mark.parametrize("restart", ["restart", "restart_after_kill"])
    def test_state_survives(self, disk: Disk, restart: str) -> None:
        for i in range(3):
            disk.append(from_producer(i, epoch=2))
        disk.checkpoint()
        for i in range(3, 6):
            disk.append(from_producer(i, epoch=2))
        before = disk.log.active_producers()
        getattr(disk, restart)()
        assert disk.log.active_producers() == before
        for i in range(1, 6):
            assert disk.append(from_producer(i, epoch=2)).base_offset == i
        assert refusal(disk, from_producer(7, epoch=2)) is ErrorCode.out_of_order_sequence_number
        assert refusal(disk, from_producer(6, epoch=1)) is ErrorCode.invalid_producer_epoch
        assert disk.append(from_producer(6, epoch=2)).base_offset == 6

    def test_state_survives_without_any_checkpoint(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024)
        for i in range(20):
            disk.append(from_producer(i, value_bytes=200))
        disk.restart_after_kill()
        for i in range(15, 20):
            assert disk.append(from_producer(i, value_bytes=200)).base_offset == i

    def test_state_survives_the_removal_of_the_batches(self, make_disk: MakeDisk) -> None:
        disk = make_disk(segment_bytes=1024, retention_bytes=0)
        for i in range(5):
            disk.append(from_producer(i, value_bytes=900))
        removal = disk.log.expire_segments()
        assert removal is not None
        removal.run()
        disk.restart()
        assert disk.log.log_start_offset == 5
        assert disk.append(from_producer(4, value_bytes=900)).base_offset == 4
        assert disk.append(from_producer(5, value_bytes=900)).base_offset == 5

    def test_a_producer_that_wrote_nothing_for_long_is_forgotten(self, disk: Disk) -> None:
        disk.append(from_producer(0, producer=1))
        disk.clock.advance(HOUR_S)
        disk.append(from_producer(0, producer=2))
        disk.log.expire_producers(int(HOUR_S * 1000))
        assert [p.producer_id for p in disk.log.active_producers()] == [1, 2]
        disk.clock.advance(0.001)
        disk.log.expire_producers(int(HOUR_S * 1000))
        assert [p.producer_id for p in disk.log.active_producers()] == [2]

    def test_expiry_counts_from_the_broker_s_clock_across_restarts(self, disk: Disk) -> None:
        disk.append(from_producer(0, timestamp=NOW_MS - 10**9))
        disk.clock.advance(HOUR_S)
        disk.restart()
        disk.log.expire_producers(int(HOUR_S * 1000))
        assert len(disk.log.active_producers()) == 1
        disk.clock.advance(1)
        disk.log.expire_producers(int(HOUR_S * 1000))
        assert disk.log.active_producers() == []

    def test_a_failed_write_is_not_remembered(self, disk: Disk) -> None:
        bad = from_producer(0)
        bad[65] ^= 1
        assert refusal(disk, bad) is ErrorCode.corrupt_message
        assert disk.log.active_producers() == []

    def test_what_describe_producers_shows(self, disk: Disk) -> None:
        disk.append(from_producer(0, 3, producer=9, epoch=2, timestamp=NOW_MS + 5))
        summary = disk.log.active_producers()[0]
        assert (summary.producer_id, summary.producer_epoch) == (9, 2)
        assert (summary.last_sequence, summary.last_timestamp_ms) == (2, NOW_MS + 7)


@settings(max_examples=200, deadline=None)
@given(first=st.integers(0, LAST), count=st.integers(1, 1000))
def test_the_last_sequence_is_reached_by_counting(first: int, count: int) -> None:
    header = read_header(from_producer(first, 1))._replace(last_offset_delta=count - 1)
    expected = first
    for _ in range(count - 1):
        expected = 0 if expected == LAST else expected + 1
    assert last_sequence_of(header) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30))
def test_state_comes_back_from_its_saved_form(writes: list[tuple[int, int]]) -> None:
    states = ProducerStates()
    sequences: dict[int, int] = {}
    for offset, (producer, count) in enumerate(writes):
        header = read_header(from_producer(sequences.get(producer, 0), count, producer=producer))
        states.record(header, offset, NOW_MS)
        sequences[producer] = sequences.get(producer, 0) + count
    again = ProducerStates.from_json(states.to_json())
    assert again.to_json() == states.to_json()
    assert again.summaries() == states.summaries()
    assert len(again) == len(sequences)
