"""Idempotent producers over the wire: sequences, repetitions, and that nothing is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.testing import ProcessBroker, ThreadBroker
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Wire, fetch, only_partition, produce, request


class Producer:
    """A producer with an id that the broker gave it."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.topic = topic
        answer = wire.ask(request("init_producer_id", 4, transactional_id=None))
        assert answer.error_code is ErrorCode.none
        self.id = answer.producer_id
        self.epoch = answer.producer_epoch

    def batch(self, sequence: int, count: int = 1, epoch: int | None = None) -> bytes:
        values = [b"%d" % (sequence + i) for i in range(count)]
        return make_batch(
            *values,
            producer_id=self.id,
            epoch=self.epoch if epoch is None else epoch,
            sequence=sequence,
        )

    def send(self, wire: Wire, sequence: int, count: int = 1, **more: Any) -> tuple[ErrorCode, int]:
        """Error and base offset of the answer."""
        asked = produce(9, self.topic, {0: self.batch(sequence, count, **more)}, acks=-1)
        answer = only_partition(wire.ask(asked))
        return answer.error_code, answer.base_offset


@pytest.fixture
def producer(wire: Wire, topic: str) -> Producer:
    return Producer(wire, topic)


def test_every_producer_gets_an_id_of_its_own(wire: Wire, topic: str) -> None:
    assert len({Producer(wire, topic).id for _ in range(50)}) == 50


def test_a_repeated_batch_is_answered_with_the_offset_it_has(
    wire: Wire, producer: Producer
) -> None:
    assert producer.send(wire, 0, 3) == (ErrorCode.none, 0)
    assert producer.send(wire, 3, 2) == (ErrorCode.none, 3)
    for _ in range(3):
        assert producer.send(wire, 0, 3) == (ErrorCode.none, 0)
        assert producer.send(wire, 3, 2) == (ErrorCode.none, 3)
    found = only_partition(wire.ask(fetch(12, {producer.topic: {0: 0}})))
    assert records_in(found.records) == [(n, b"%d" % n) for n in range(5)]


def test_the_last_five_batches_are_remembered(wire: Wire, producer: Producer) -> None:
    for sequence in range(8):
        assert producer.send(wire, sequence) == (ErrorCode.none, sequence)
    for sequence in range(3, 8):
        assert producer.send(wire, sequence) == (ErrorCode.none, sequence)
    assert producer.send(wire, 2)[0] is ErrorCode.out_of_order_sequence_number


def test_a_gap_is_refused_and_can_be_mended(wire: Wire, producer: Producer) -> None:
    producer.send(wire, 0)
    assert producer.send(wire, 2)[0] is ErrorCode.out_of_order_sequence_number
    assert producer.send(wire, 1) == (ErrorCode.none, 1)
    assert producer.send(wire, 2) == (ErrorCode.none, 2)


def test_a_batch_that_repeats_in_part_is_out_of_order(wire: Wire, producer: Producer) -> None:
    producer.send(wire, 0, 3)
    assert producer.send(wire, 1, 3)[0] is ErrorCode.out_of_order_sequence_number
    assert producer.send(wire, 0, 2)[0] is ErrorCode.out_of_order_sequence_number


def test_an_older_epoch_is_fenced_and_a_newer_begins_at_zero(
    wire: Wire, producer: Producer
) -> None:
    producer.send(wire, 0)
    assert producer.send(wire, 5, epoch=1)[0] is ErrorCode.out_of_order_sequence_number
    assert producer.send(wire, 0, epoch=1) == (ErrorCode.none, 1)
    assert producer.send(wire, 1, epoch=0)[0] is ErrorCode.invalid_producer_epoch


def test_sequences_wrap_around(wire: Wire, producer: Producer) -> None:
    assert producer.send(wire, 2**31 - 2, 2) == (ErrorCode.none, 0)
    assert producer.send(wire, 0) == (ErrorCode.none, 2)
    assert producer.send(wire, 2**31 - 2, 2) == (ErrorCode.none, 0)


def test_producers_and_partitions_do_not_mix(shared: ThreadBroker, wire: Wire) -> None:
    topic = shared.create_topic(partitions=2)
    first, second = Producer(wire, topic), Producer(wire, topic)
    for sequence in range(3):
        assert first.send(wire, sequence)[0] is ErrorCode.none
        assert second.send(wire, sequence)[0] is ErrorCode.none
        asked = produce(9, topic, {1: first.batch(sequence)})
        assert only_partition(wire.ask(asked)).base_offset == sequence


def test_five_requests_in_flight_arrive_in_order(wire: Wire, producer: Producer) -> None:
    for start in range(0, 100, 5):
        sent = [
            produce(9, producer.topic, {0: producer.batch(start + i)}, acks=-1) for i in range(5)
        ]
        wire.send(*sent)
        answers = [only_partition(wire.receive()) for _ in sent]
        assert [answer.base_offset for answer in answers] == list(range(start, start + 5))


@pytest.mark.parametrize("ending", ["restart", "kill -9"])
def test_what_is_known_of_a_producer_survives(process: ProcessBroker, ending: str) -> None:
    topic = process.create_topic()
    with Wire(process.bootstrap) as wire:
        producer = Producer(wire, topic)
        ids = {producer.id}
        for sequence in range(7):
            producer.send(wire, sequence)
    for life in range(1, 4):
        if ending == "restart":
            process.restart()
        else:
            process.kill()
            process.start()
        with Wire(process.bootstrap) as wire:
            last = 6 * life
            for sequence in range(last - 4, last + 1):
                assert producer.send(wire, sequence) == (ErrorCode.none, sequence), "known"
            assert producer.send(wire, last + 2)[0] is ErrorCode.out_of_order_sequence_number
            for sequence in range(last + 1, last + 7):
                assert producer.send(wire, sequence) == (ErrorCode.none, sequence), "new"
            other = Producer(wire, topic)
            assert other.id not in ids, "an id is never given twice"
            ids.add(other.id)
    with Wire(process.bootstrap) as wire:
        found = only_partition(wire.ask(fetch(12, {topic: {0: 0}})))
        assert records_in(found.records) == [(n, b"%d" % n) for n in range(25)]
