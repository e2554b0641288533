"""Every batch is in its log once and in order, whatever happens on the way, or the producer says no."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from penstock.client import wire
from penstock.client.cluster import LATEST, Cluster
from penstock.client.errors import (
    BrokerUnreachable,
    DeliveryFailed,
    ProducerClosed,
    UnknownTopic,
)
from penstock.client.lanes import Lane
from penstock.client.produce_link import Batch
from penstock.client.producing import IdempotentProducer
from penstock.errors import ConfigError, ErrorCode
from penstock.model import TopicPartition
from penstock.records.batch import crc_of, read_header
from penstock.testing import ProcessBroker, ThreadBroker
from tests.client.support import batch, cutting_proxy, delete_topic, eventually, read_all


def test_batches_arrive_in_order_and_their_offsets_come_back(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic(partitions=3)
    partitions = [TopicPartition(topic, index) for index in range(3)]
    with IdempotentProducer(cluster) as producer:
        assert producer.flush() == {}
        for first in range(0, 3000, 10):
            producer.send(partitions[first // 10 % 3], batch(first, 10), 10)
        assert producer.flush() == dict.fromkeys(partitions, 999)
        producer.send(partitions[1], batch(3000, 1), 1)
        assert producer.flush()[partitions[1]] == 1000
    for index, partition in enumerate(partitions):
        expected = [n for n in range(3000) if n // 10 % 3 == index] + [3000] * (index == 1)
        assert read_all(cluster, partition) == expected


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_writes_the_same(
    cluster: Cluster, penstock_shared: ThreadBroker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = wire.PRODUCE._replace(version_max=version)
    monkeypatch.setattr("penstock.client.produce_link.PRODUCE", spoken)
    first = TopicPartition(penstock_shared.create_topic(partitions=2), 0)
    second, other = first._replace(partition=1), TopicPartition(penstock_shared.create_topic(), 0)
    with IdempotentProducer(cluster) as producer:
        for start in range(0, 100, 10):
            for partition in (first, second, other):
                producer.send(partition, batch(start, 10), 10)
    for partition in (first, second, other):
        assert read_all(cluster, partition) == list(range(100))
    with closing(IdempotentProducer(cluster)) as producer:
        producer.send(first, batch(0, 1, size=2_000_000), 1)
        with pytest.raises(DeliveryFailed, match=f"for {first}: MESSAGE_TOO_LARGE"):
            producer.flush()


def test_batches_of_several_partitions_share_a_request(
    cluster: Cluster, penstock_shared: ThreadBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.produce_link import ProduceLink

    sizes: list[int] = []
    in_flight: list[int] = []
    submit = ProduceLink.submit

    def watched(link: ProduceLink, batches: list[Batch], acks: int, timeout_ms: int) -> None:
        assert len({item.partition for item in batches}) == len(batches)
        submit(link, batches, acks, timeout_ms)
        sizes.append(len(batches))
        in_flight.append(len(link.in_flight))

    monkeypatch.setattr(ProduceLink, "submit", watched)
    topic = penstock_shared.create_topic(partitions=4)
    with IdempotentProducer(cluster) as producer:
        for first in range(0, 2000, 10):
            producer.send(TopicPartition(topic, first // 10 % 4), batch(first, 10), 10)
    assert max(sizes) == 4
    assert 1 < max(in_flight) <= 5


def test_the_batch_is_stamped_and_its_crc_renewed(
    cluster: Cluster, partition: TopicPartition
) -> None:
    one, two = batch(0, 10), batch(10, 10)
    with IdempotentProducer(cluster) as producer:
        producer.send(partition, one, 10)
        producer.send(partition, two, 10)
    headers = [read_header(one), read_header(two)]
    assert [header.base_sequence for header in headers] == [0, 10]
    assert headers[0].producer_id == headers[1].producer_id >= 0
    assert [header.crc for header in headers] == [crc_of(one), crc_of(two)]


def test_sequence_numbers_begin_again_behind_the_last(
    cluster: Cluster, partition: TopicPartition
) -> None:
    with IdempotentProducer(cluster) as producer:
        producer._places[partition] = 0, 2**31 - 15
        for first in range(0, 100, 10):
            producer.send(partition, batch(first, 10), 10)
    assert read_all(cluster, partition) == list(range(100))


def test_send_blocks_while_too_much_is_in_flight(running: ProcessBroker) -> None:
    partition = TopicPartition(running.create_topic(), 0)
    with Cluster(running.bootstrap) as cluster:
        with IdempotentProducer(cluster, in_flight_bytes_max=100_000) as producer:
            producer.send(partition, batch(0, 1), 1)
            producer.flush()
            os.kill(running.pid, signal.SIGSTOP)
            sent: list[int] = []

            def send() -> None:
                for first in range(1, 301, 10):
                    producer.send(partition, batch(first, 10, size=1_000), 10)
                    sent.append(first)
                    assert producer._unsettled_bytes <= 100_000

            sending = threading.Thread(target=send)
            sending.start()
            eventually(lambda: len(sent) == 9)
            time.sleep(0.2)
            assert len(sent) == 9
            os.kill(running.pid, signal.SIGCONT)
            sending.join()
            # A batch that alone is more than the bound is sent alone.
            producer.send(partition, batch(301, 200, size=1_000), 200)
        assert read_all(cluster, partition) == list(range(501))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_that_restarts_under_a_producer_loses_and_doubles_nothing(
    running: ProcessBroker, how: str
) -> None:
    topic = running.create_topic(partitions=2)
    partitions = [TopicPartition(topic, index) for index in range(2)]
    starting = threading.Thread()
    starting.start()
    with Cluster(running.bootstrap) as cluster:
        with IdempotentProducer(cluster) as producer:
            for first in range(0, 20_000, 10):
                producer.send(partitions[first // 10 % 2], batch(first, 10), 10)
                if first in (5_000, 10_000, 15_000):
                    starting.join()
                    getattr(running, how)()
                    starting = threading.Thread(target=running.start)
                    starting.start()
            starting.join()
        for index, partition in enumerate(partitions):
            expected = [n for n in range(20_000) if n // 10 % 2 == index]
            assert read_all(cluster, partition) == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_network_that_cuts_connections_loses_and_doubles_nothing(
    penstock_broker: Any, seed: int
) -> None:
    with cutting_proxy(seed) as proxy:
        broker = penstock_broker(advertise_addr=proxy.address)
        proxy.target = broker.bootstrap
        topic = broker.create_topic(partitions=3)
        partitions = [TopicPartition(topic, index) for index in range(3)]
        with Cluster(proxy.address) as cluster:
            with IdempotentProducer(cluster) as producer:
                proxy.budget = (300, 30_000)
                for first in range(0, 3_000, 10):
                    producer.send(partitions[first // 10 % 3], batch(first, 10), 10)
                offsets = producer.flush()
            proxy.budget = None
            assert proxy.cuts > 3
            for index, partition in enumerate(partitions):
                expected = [n for n in range(3_000) if n // 10 % 3 == index]
                assert read_all(cluster, partition) == expected
                assert offsets[partition] == 999


def test_what_is_too_large_is_refused_with_advice_and_ends_the_producer(
    cluster: Cluster, partition: TopicPartition
) -> None:
    with closing(IdempotentProducer(cluster)) as producer:
        producer.send(partition, batch(0, 10), 10)
        producer.flush()
        producer.send(partition, batch(10, 1, size=2_000_000), 1)
        with pytest.raises(DeliveryFailed, match=r"MESSAGE_TOO_LARGE.*max.message.bytes") as caught:
            producer.flush()
        assert caught.value.code is ErrorCode.message_too_large
        assert caught.value.partition == partition
        with pytest.raises(DeliveryFailed):
            producer.send(partition, batch(10, 10), 10)
        producer.close()
        with pytest.raises(DeliveryFailed):
            producer.flush()
    assert read_all(cluster, partition) == list(range(10))


def test_damaged_and_senseless_batches_are_refused(
    cluster: Cluster, partition: TopicPartition
) -> None:
    with closing(IdempotentProducer(cluster)) as producer:
        with pytest.raises(ValueError):
            producer.send(partition, bytearray(10), 1)
        damaged = batch(0, 10)
        damaged[22] = 7  # there is no such codec
        producer.send(partition, damaged, 10)
        with pytest.raises(DeliveryFailed, match="UNSUPPORTED_COMPRESSION_TYPE"):
            producer.flush()


def test_a_topic_that_is_not_there_is_an_error_in_a_few_seconds(cluster: Cluster) -> None:
    began = time.monotonic()
    with closing(IdempotentProducer(cluster)) as producer:
        producer.send(TopicPartition("nope", 0), batch(0, 10), 10)
        with pytest.raises(UnknownTopic, match="there is no topic 'nope'"):
            producer.flush()
    assert time.monotonic() - began < 10


def test_a_topic_that_is_deleted_under_a_producer_is_an_error(
    cluster: Cluster, penstock_shared: ThreadBroker, partition: TopicPartition
) -> None:
    with closing(IdempotentProducer(cluster)) as producer:
        producer.send(partition, batch(0, 10), 10)
        producer.flush()
        delete_topic(penstock_shared, partition.topic)
        producer.send(partition, batch(10, 10), 10)
        with pytest.raises(UnknownTopic, match=partition.topic):
            producer.flush()


def test_a_broker_that_hangs_fails_the_delivery_in_time(running: ProcessBroker) -> None:
    partition = TopicPartition(running.create_topic(), 0)
    with Cluster(running.bootstrap, request_timeout_ms=400) as cluster:
        producer = IdempotentProducer(cluster, request_timeout_ms=400, delivery_timeout_ms=1_500)
        producer.send(partition, batch(0, 10), 10)
        producer.flush()
        os.kill(running.pid, signal.SIGSTOP)
        try:
            producer.send(partition, batch(10, 10), 10)
            began = time.monotonic()
            with pytest.raises(DeliveryFailed, match=rf"{partition} were not ack.*did not answer"):
                producer.flush()
            assert 1 < time.monotonic() - began < 8
        finally:
            os.kill(running.pid, signal.SIGCONT)
            producer.close()


def test_a_broker_that_hangs_for_a_while_doubles_nothing(running: ProcessBroker) -> None:
    partition = TopicPartition(running.create_topic(), 0)
    with Cluster(running.bootstrap, request_timeout_ms=300) as cluster:
        with IdempotentProducer(cluster, request_timeout_ms=300) as producer:
            for first in range(0, 1_000, 10):
                producer.send(partition, batch(first, 10), 10)
                if first == 500:
                    os.kill(running.pid, signal.SIGSTOP)
                    threading.Timer(1.2, os.kill, (running.pid, signal.SIGCONT)).start()
        assert read_all(cluster, partition) == list(range(1_000))


def test_batches_that_the_broker_lost_are_an_error_and_not_a_gap(
    cluster: Cluster, partition: TopicPartition
) -> None:
    with closing(IdempotentProducer(cluster)) as producer:
        producer.send(partition, batch(0, 10), 10)
        producer.flush()
        number, sequence = producer._places[partition]
        producer._places[partition] = number, sequence + 5  # as if five records were gone
        producer.send(partition, batch(10, 10), 10)
        with pytest.raises(DeliveryFailed, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER.*write again"):
            producer.flush()
    assert cluster.offsets({partition: LATEST}) == {partition: 10}


def test_a_closed_producer_says_so(cluster: Cluster, partition: TopicPartition) -> None:
    producer = IdempotentProducer(cluster)
    producer.send(partition, batch(0, 10), 10)
    producer.flush()
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosed):
        producer.send(partition, batch(0, 10), 10)
    with pytest.raises(ProducerClosed):
        producer.flush()
    unused = IdempotentProducer(cluster)
    unused.close()


def test_closing_ends_a_blocked_send(running: ProcessBroker) -> None:
    partition = TopicPartition(running.create_topic(), 0)
    with Cluster(running.bootstrap) as cluster:
        producer = IdempotentProducer(cluster, in_flight_bytes_max=1)
        producer.send(partition, batch(0, 10), 10)
        producer.flush()
        os.kill(running.pid, signal.SIGSTOP)
        try:
            producer.send(partition, batch(10, 10), 10)
            closing = threading.Timer(0.3, producer.close)
            closing.start()
            with pytest.raises(ProducerClosed):
                producer.send(partition, batch(20, 10), 10)
            closing.join()
        finally:
            os.kill(running.pid, signal.SIGCONT)


def test_a_forked_process_cannot_use_a_producer_that_has_begun(
    cluster: Cluster, partition: TopicPartition
) -> None:
    with IdempotentProducer(cluster) as producer:
        producer.send(partition, batch(0, 10), 10)
        producer.flush()
        child = os.fork()
        if not child:
            status = 1
            try:
                producer.send(partition, batch(10, 10), 10)
            except ProducerClosed:
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        producer.send(partition, batch(10, 10), 10)
    assert read_all(cluster, partition) == list(range(20))


@pytest.mark.parametrize("acks", [0, 2, -2])
def test_acks_that_promise_nothing_are_refused(cluster: Cluster, acks: int) -> None:
    with pytest.raises(ConfigError, match="acks"):
        IdempotentProducer(cluster, acks=acks)


class TestLane:
    """What may be sent when, and what comes back in which order."""

    def lane(self, count: int) -> Lane:
        lane = Lane(TopicPartition("orders", 0))
        for number in range(count):
            lane.waiting.append(
                Batch(
                    partition=lane.partition,
                    number=number,
                    data=bytearray(),
                    records=1,
                    deadline=9.0,
                )
            )
        return lane

    def sent(self, lane: Lane, now: float = 0.0) -> list[int]:
        numbers = []
        while (item := lane.next(now)) is not None:
            numbers.append(item.number)
        return numbers

    def test_the_first_batch_travels_alone(self) -> None:
        lane = self.lane(9)
        assert self.sent(lane) == [0]
        lane.acknowledged(lane.in_flight[0])
        assert self.sent(lane) == [1, 2, 3, 4, 5]

    def test_what_failed_goes_first_and_alone(self) -> None:
        lane = self.lane(9)
        self.sent(lane)
        lane.acknowledged(lane.in_flight[0])
        self.sent(lane)
        for item in list(lane.in_flight):
            lane.failed(item, BrokerUnreachable("gone"), now=0.0)
        assert self.sent(lane) == []  # not yet
        order = []
        for step in range(5):
            now = 10.0 + step
            order += (numbers := self.sent(lane, now))
            assert len(numbers) == 1
            lane.acknowledged(lane.in_flight[0])
        assert order == [1, 2, 3, 4, 5]
        assert self.sent(lane, 20.0) == [6, 7, 8]

    def test_nothing_overtakes_a_batch_that_failed_among_others(self) -> None:
        lane = self.lane(9)
        self.sent(lane)
        lane.acknowledged(lane.in_flight[0])
        self.sent(lane)
        first, second, *rest = lane.in_flight
        lane.failed(first, BrokerUnreachable("gone"), now=0.0)
        assert self.sent(lane, 10.0) == []  # others are still in flight
        assert not lane.is_oldest(second)
        for item in (second, *rest):
            lane.failed(item, BrokerUnreachable("gone"), now=0.0)
        assert [item.number for item in lane.waiting] == list(range(1, 9))
        assert self.sent(lane, 10.0) == [1]
        assert lane.is_oldest(lane.in_flight[0])
