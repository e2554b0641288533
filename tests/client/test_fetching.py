"""A range of a partition comes whole, in order, once, byte for byte, and then it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition

from penstock.client import wire
from penstock.client.buffers import BufferPool
from penstock.client.cluster import LATEST, Cluster
from penstock.client.errors import (
    LogEndsEarly,
    OffsetOutOfRange,
    RetriesExhausted,
    UnknownTopic,
)
from penstock.client.fetch_codec import FetchRequest, encode_request, whole_batches
from penstock.client.fetching import RangeReader
from penstock.client.producing import IdempotentProducer
from penstock.model import TopicPartition
from penstock.records.compression import decompress
from penstock.records.decode import records_of
from penstock.settings import TOPIC_SETTINGS, TopicSetting
from penstock.testing import ProcessBroker, ThreadBroker
from tests.client.support import (
    batch,
    batches_of,
    cutting_proxy,
    delete_before,
    delete_topic,
    eventually,
    fill,
    read_all,
    read_range,
    records_in,
)

PREFETCH = pytest.mark.parametrize("prefetch", [0, 2])


READS_FILES = pytest.mark.parametrize("reads_files", [False, True])


def is_reading_ahead() -> bool:
    return any("read ahead" in thread.name for thread in threading.enumerate())


@PREFETCH
@pytest.mark.parametrize(("start", "end"), [(0, 2000), (0, 1), (1999, 2000), (150, 1250), (7, 7)])
def test_exactly_the_range_comes(
    cluster: Cluster, partition: TopicPartition, prefetch: int, start: int, end: int
) -> None:
    fill(cluster, partition, 2000)
    reader = RangeReader(cluster, partition, start, end, fetch_bytes=5_000, prefetch=prefetch)
    assert read_range(reader, start, end) == [(n, n) for n in range(start, end)]


def test_nothing_that_begins_behind_the_range_is_handed_out(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 1000)
    chunks = list(RangeReader(cluster, partition, 250, 700))
    offsets = [r.offset for c in chunks for item in batches_of(c.data) for r in records_of(item)]
    assert offsets == list(range(200, 700))
    assert [chunk.next_offset for chunk in chunks][-1] == 700
    assert {chunk.high_watermark for chunk in chunks} == {1000}
    assert {chunk.log_start for chunk in chunks} == {0}
    assert all(chunk.aborted == [] for chunk in chunks)


@pytest.mark.parametrize("version", range(4, 18))
def test_every_version_of_fetch_reads_the_same(
    cluster: Cluster, partition: TopicPartition, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, partition, 300)
    spoken = wire.FETCH._replace(version_max=version)
    monkeypatch.setattr("penstock.client.fetch_connection.FETCH", spoken)
    reader = RangeReader(cluster, partition, 10, 300, fetch_bytes=2_000, isolation="read_committed")
    assert read_range(reader, 10, 300) == [(n, n) for n in range(10, 300)]
    with pytest.raises(OffsetOutOfRange):
        list(RangeReader(cluster, partition, 301, 400))


@pytest.mark.parametrize("codec", range(5))
async def test_batches_come_byte_for_byte_as_they_are_in_the_log(
    penstock: ThreadBroker, codec: int
) -> None:
    partition = TopicPartition(penstock.create_topic(), 0)
    with Cluster(penstock.bootstrap) as cluster, IdempotentProducer(cluster) as producer:
        for first in range(0, 500, 50):
            producer.send(partition, batch(first, 50, codec=codec), 50)
        producer.flush()
        came = b"".join(bytes(c.data) for c in RangeReader(cluster, partition, 0, 500))
    path = f"{penstock.data_dir}/{partition.topic}/0/{0:020d}.log"
    assert came == Path(path).read_bytes()
    assert {item[22] & 7 for item in batches_of(memoryview(came))} == {codec}
    assert decompress(codec, memoryview(batches_of(memoryview(came))[0])[61:])
    consumer = AIOKafkaConsumer(bootstrap_servers=penstock.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([AioPartition(partition.topic, 0)])
        seen: list[tuple[int, Any]] = []
        while len(seen) < 500:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                seen += [(record.offset, record.value) for record in records]
    finally:
        await consumer.stop()
    ours = [(r.offset, r.value) for item in batches_of(memoryview(came)) for r in records_of(item)]
    assert seen == ours


def test_a_batch_that_is_larger_than_a_fetch_comes_whole(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 200, size=5_000)
    reader = RangeReader(cluster, partition, 0, 200, fetch_bytes=1_000)
    assert read_range(reader, 0, 200) == [(n, n) for n in range(200)]


def test_data_may_be_kept(cluster: Cluster, partition: TopicPartition) -> None:
    fill(cluster, partition, 2000)
    kept = list(RangeReader(cluster, partition, 0, 2000, fetch_bytes=3_000, prefetch=1))
    assert len(kept) > 10
    pairs = [pair for chunk in kept for pair in records_in(chunk, 0, 2000)]
    assert pairs == [(n, n) for n in range(2000)]


def test_a_slow_caller_holds_up_the_reader_and_not_the_memory(
    cluster: Cluster, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, partition, 5000, size=1_000)
    taken: list[int] = []
    take = BufferPool.take

    def counting(pool: BufferPool, size: int) -> memoryview:
        taken.append(size)
        return take(pool, size)

    monkeypatch.setattr(BufferPool, "take", counting)
    reader = RangeReader(
        cluster, partition, 0, 5000, fetch_bytes=100_000, prefetch=3, reads_files=False
    )
    chunks = iter(reader)
    next(chunks)
    # One was handed out, three wait, one waits for its place: and there it stays.
    eventually(lambda: len(taken) == 5)
    time.sleep(0.3)
    assert len(taken) == 5
    for _ in chunks:
        assert len(reader._source._connection._pool._kept) <= 6
    assert len(taken) > 20


def test_buffers_are_used_again_when_nobody_looks_at_them() -> None:
    pool = BufferPool(3)
    first = pool.take(1000)
    first[:3] = b"abc"
    piece = first[:3]
    second = pool.take(1000)
    second[:3] = b"xyz"
    del first, second
    third = pool.take(2000)  # the second's buffer
    assert bytes(third[:3]) == b"xyz"
    assert bytes(piece) == b"abc"
    del piece
    assert bytes(pool.take(10)[:3]) == b"abc"


def test_a_torn_batch_at_the_end_is_left_out() -> None:
    one, two = bytes(batch(0, 10)), bytearray(batch(10, 10))
    two[:8] = (10).to_bytes(8, "big")
    both = memoryview(one + two)
    assert whole_batches(both, 0, 99) == (len(both), 20, 0)
    for cut in (1, 60, len(two) - 1):
        assert whole_batches(both[: len(one) + cut], 0, 99) == (len(one), 10, 0)
    assert whole_batches(both, 0, 10) == (len(one), 10, 0)
    assert whole_batches(both, 0, 15) == (len(both), 15, 0)
    assert whole_batches(both[: len(one) - 1], 0, 99) == (0, 0, len(one))
    assert whole_batches(both[:0], 5, 99) == (0, 5, 0)


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, b"\x00\x00\x00\x00"), (8, b"\xff\xff\xff\xff"), (16, b"\x01"), (23, b"\xff")],
)
def test_bytes_that_are_no_batch_are_refused(at: int, value: bytes) -> None:
    data = batch(0, 10)
    data[at : at + len(value)] = value
    with pytest.raises(ValueError):
        whole_batches(memoryview(data), 0, 99)


def test_a_range_whose_end_is_not_written_yet_is_waited_for(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 100)
    later = threading.Timer(0.7, lambda: fill(cluster, partition, 100, first=100))
    later.start()
    assert read_range(RangeReader(cluster, partition, 0, 200), 0, 200) == [
        (n, n) for n in range(200)
    ]
    later.join()


@PREFETCH
def test_a_log_that_ends_before_the_range_is_an_error_in_time(
    cluster: Cluster, partition: TopicPartition, prefetch: int
) -> None:
    fill(cluster, partition, 100)
    cpu, began = time.process_time(), time.monotonic()
    chunks = iter(RangeReader(cluster, partition, 0, 150, prefetch=prefetch, wait_ms=1500))
    assert len(records_in(next(chunks), 0, 150)) == 100
    with pytest.raises(LogEndsEarly, match=r"to offset 150, but at broker .* it ends at 100"):
        next(chunks)
    assert time.monotonic() - began < 6
    assert time.process_time() - cpu < 1  # the broker's share is in it, too


def hold_back(monkeypatch: pytest.MonkeyPatch, log_end: int) -> threading.Event:
    """Have brokers answer that their log goes on to `log_end`, without a record, until the event is set.

    Tiered storage does so while a remote read is slow; any broker does if it is asked at its log's end.
    """
    is_handed_out = threading.Event()

    def encoded(version: int, request: FetchRequest) -> bytes:
        asked = request if is_handed_out.is_set() else request._replace(offset=log_end)
        return encode_request(version, asked)

    monkeypatch.setattr("penstock.client.fetch_connection.encode_request", encoded)
    return is_handed_out


def test_records_that_are_handed_out_late_are_waited_for(
    cluster: Cluster, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, partition, 300)
    later = threading.Timer(4.0, hold_back(monkeypatch, 300).set)
    later.start()
    assert read_range(RangeReader(cluster, partition, 0, 300), 0, 300) == [
        (n, n) for n in range(300)
    ]
    later.join()


@PREFETCH
def test_records_that_are_never_handed_out_are_an_error_in_time(
    cluster: Cluster, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    fill(cluster, partition, 300)
    hold_back(monkeypatch, 300)
    words = (
        rf"{partition} goes on to offset 300, but had no record of \[100, 250\) for 1 s.*"
        r"the topic is not compacted"
    )
    with pytest.raises(LogEndsEarly, match=words):
        list(RangeReader(cluster, partition, 100, 250, prefetch=prefetch, wait_ms=1_000))


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_range_whose_rest_was_compacted_away_ends_soon(
    penstock: ThreadBroker, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    setting = replace(TOPIC_SETTINGS["cleanup.policy"], check=None)  # else ours refuses to compact
    monkeypatch.setitem(cast(dict[str, TopicSetting], TOPIC_SETTINGS), setting.name, setting)
    partition = TopicPartition(penstock.create_topic(settings={setting.name: policy}), 0)
    with Cluster(penstock.bootstrap) as cluster:
        fill(cluster, partition, 300)
        hold_back(monkeypatch, 300)
        began = time.monotonic()
        assert list(RangeReader(cluster, partition, 100, 250)) == []
        assert time.monotonic() - began < 20  # where one of another topic waits for a minute


def test_a_topic_whose_settings_nobody_tells_is_taken_for_one_that_is_not_compacted(
    cluster: Cluster, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    unspoken = wire.DESCRIBE_CONFIGS._replace(version_min=99)
    monkeypatch.setattr("penstock.client.cluster.DESCRIBE_CONFIGS", unspoken)
    fill(cluster, partition, 300)
    hold_back(monkeypatch, 300)
    with pytest.raises(LogEndsEarly, match=r"nobody tells: broker .* of DescribeConfigs"):
        list(RangeReader(cluster, partition, 100, 250, wait_ms=1_000))


@PREFETCH
def test_offsets_that_are_deleted_while_they_are_read_are_told_with_what_is_left(
    cluster: Cluster, penstock_shared: ThreadBroker, partition: TopicPartition, prefetch: int
) -> None:
    fill(cluster, partition, 4000, size=1_000)
    seen: list[tuple[int, int]] = []

    def read() -> None:
        reader = RangeReader(cluster, partition, 0, 4000, fetch_bytes=100_000, prefetch=prefetch)
        for chunk in reader:
            if not seen:
                delete_before(penstock_shared, partition, 3500)
            seen.extend(records_in(chunk, 0, 4000))

    with pytest.raises(OffsetOutOfRange) as caught:
        read()
    error = caught.value
    assert seen == [(n, n) for n in range(len(seen))]
    assert (error.partition, error.asked) == (partition, len(seen))
    assert (error.log_start, error.high_watermark) == (3500, 4000)
    assert "retention" in str(error)


def test_a_start_behind_the_log_is_told_with_what_there_is(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 100)
    with pytest.raises(OffsetOutOfRange, match=r"\[0, 100\).*never written"):
        list(RangeReader(cluster, partition, 200, 300))


def test_a_topic_that_is_not_there_is_an_error_that_says_so(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'nope'"):
        list(RangeReader(cluster, TopicPartition("nope", 0), 0, 10))


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_it_is_read_is_an_error(
    cluster: Cluster, penstock_shared: ThreadBroker, partition: TopicPartition, again: bool
) -> None:
    fill(cluster, partition, 4000, size=1_000)
    reader = RangeReader(cluster, partition, 0, 4000, fetch_bytes=100_000, prefetch=0)
    chunks = iter(reader)
    next(chunks)
    delete_topic(penstock_shared, partition.topic)
    if again:
        penstock_shared.create_topic(partition.topic)
        fill(cluster, partition, 4000, size=1_000)
    with pytest.raises(UnknownTopic, match="deleted and created again" if again else "no topic"):
        list(chunks)


@PREFETCH
@READS_FILES
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_that_restarts_in_the_middle_loses_and_repeats_nothing(
    running: ProcessBroker, prefetch: int, reads_files: bool, how: str
) -> None:
    partition = TopicPartition(running.create_topic(), 0)
    starting = threading.Thread()
    starting.start()
    with Cluster(running.bootstrap) as cluster:
        fill(cluster, partition, 6000, size=1_000)
        seen: list[tuple[int, int]] = []
        reader = RangeReader(
            cluster,
            partition,
            0,
            6000,
            fetch_bytes=100_000,
            prefetch=prefetch,
            reads_files=reads_files,
        )
        for count, chunk in enumerate(reader):
            seen += records_in(chunk, 0, 6000)
            if count in (5, 20, 30):
                starting.join()
                getattr(running, how)()
                starting = threading.Thread(target=running.start)
                starting.start()
        starting.join()
        assert seen == [(n, n) for n in range(6000)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("reads_files", "bytes_until_cut"), [(False, 400_000), (True, 2_000)])
def test_a_network_that_cuts_connections_loses_and_repeats_nothing(
    penstock_broker: Any, seed: int, reads_files: bool, bytes_until_cut: int
) -> None:
    with cutting_proxy(seed) as proxy:
        broker = penstock_broker(advertise_addr=proxy.address)
        proxy.target = broker.bootstrap
        partition = TopicPartition(broker.create_topic(), 0)
        with Cluster(proxy.address) as cluster:
            fill(cluster, partition, 2000, size=1_000)
            proxy.budget = (500, bytes_until_cut)
            reader = RangeReader(
                cluster, partition, 0, 2000, fetch_bytes=50_000, reads_files=reads_files
            )
            assert read_range(reader, 0, 2000) == [(n, n) for n in range(2000)]
        assert proxy.cuts > 3


@PREFETCH
@READS_FILES
def test_a_broker_that_hangs_is_given_up_in_time_by_name(
    running: ProcessBroker, prefetch: int, reads_files: bool
) -> None:
    partition = TopicPartition(running.create_topic(), 0)
    with Cluster(running.bootstrap, request_timeout_ms=400, retry_timeout_ms=1_000) as cluster:
        fill(cluster, partition, 4000, size=1_000)
        chunks = iter(
            RangeReader(
                cluster,
                partition,
                0,
                4000,
                fetch_bytes=100_000,
                prefetch=prefetch,
                reads_files=reads_files,
            )
        )
        next(chunks)
        os.kill(running.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(RetriesExhausted, match=rf"reading {partition} .*did not answer"):
                list(chunks)
            assert time.monotonic() - began < 10
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert read_all(cluster, partition) == list(range(4000))


def test_a_reader_that_is_closed_early_ends_its_thread_and_connection(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 4000, size=1_000)
    reader = RangeReader(cluster, partition, 0, 4000, fetch_bytes=100_000, reads_files=False)
    chunks = iter(reader)
    next(chunks)
    assert is_reading_ahead()
    connection = reader._source._connection._connection
    assert connection is not None
    reader.close()
    reader.close()
    assert list(chunks) == []
    assert connection.raw.fileno() == -1


def test_closing_ends_a_reader_that_waits(cluster: Cluster, partition: TopicPartition) -> None:
    reader = RangeReader(cluster, partition, 0, 10)
    closing = threading.Timer(0.3, reader.close)
    closing.start()
    began = time.monotonic()
    assert list(reader) == []
    assert time.monotonic() - began < 5
    closing.join()


def test_an_iteration_that_is_dropped_ends_the_thread(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 4000, size=1_000)
    for _ in RangeReader(cluster, partition, 0, 4000, fetch_bytes=100_000, reads_files=False):
        assert is_reading_ahead()
        break
    eventually(lambda: not is_reading_ahead())


def test_a_reader_may_be_made_before_a_fork_and_used_after_it(
    cluster: Cluster, partition: TopicPartition
) -> None:
    fill(cluster, partition, 500)
    assert cluster.offsets({partition: LATEST}) == {partition: 500}
    reader = RangeReader(cluster, partition, 0, 500)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if len(read_range(reader, 0, 500)) == 500 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(read_range(reader, 0, 500)) == 500
