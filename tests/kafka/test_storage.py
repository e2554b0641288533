"""A full disk, a damaged log: what clients see of it, and that it heals or stays where it is."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from penstock.testing import ProcessBroker
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Wire, fetch, frame, only_partition, produce, request
from tests.log.support import damage

STORAGE_ERROR = ErrorCode.kafka_storage_error


@contextlib.contextmanager
def full_disk(process: ProcessBroker, bytes_max: int) -> Iterator[None]:
    """No file of the running broker can grow beyond `bytes_max`: writes fail as on a full disk."""
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)


def send(wire: Wire, topic: str, value: bytes, *, acks: int = -1, **batch: Any) -> Any:
    asked = produce(9, topic, {0: make_batch(value, **batch)}, acks=acks)
    return only_partition(wire.ask(asked))


def read_all(wire: Wire, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    found = only_partition(wire.ask(fetch(12, {topic: {partition: 0}}, partition_bytes=1 << 25)))
    assert found.error_code is ErrorCode.none
    return records_in(found.records)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("fill", ["to the byte", "within a batch"])
def test_a_full_disk_stops_writes_only_and_only_while_it_is_full(
    process: ProcessBroker, acks: int, fill: str
) -> None:
    topic = process.create_topic()
    value = b"x" * 5000
    with Wire(process.bootstrap) as wire:
        for number in range(5):
            assert send(wire, topic, b"%d" % number + value, acks=acks).base_offset == number
        size = os.path.getsize(segment(process, topic))
        with full_disk(process, size if fill == "to the byte" else size + 2500):
            for _ in range(3):
                answer = send(wire, topic, b"lost" + value, acks=acks)
                assert (answer.error_code, answer.base_offset) == (STORAGE_ERROR, -1)
                assert answer.error_message
            assert len(read_all(wire, topic)) == 5, "reads go on"
            found = only_partition(wire.ask(fetch(12, {topic: {0: 5}}, max_wait_ms=50)))
            assert (found.error_code, found.high_watermark) == (ErrorCode.none, 5)
        for number in range(5, 10):
            assert send(wire, topic, b"%d" % number + value, acks=acks).base_offset == number
        expected = [(number, b"%d" % number + value) for number in range(10)]
        assert read_all(wire, topic) == expected
    process.kill()
    process.start()
    with Wire(process.bootstrap) as wire:
        assert read_all(wire, topic) == expected, "and nothing that was acknowledged is lost"
    assert "Traceback" not in process.log_text


def segment(process: ProcessBroker, topic: str, partition: int = 0) -> Path:
    (path,) = Path(process.data_dir, topic, str(partition)).glob("*.log")
    return path


def test_an_idempotent_producer_gets_through_a_full_disk_without_gap_or_double(
    process: ProcessBroker,
) -> None:
    topic = process.create_topic()
    with Wire(process.bootstrap) as wire:
        identity = wire.ask(request("init_producer_id", 4)).producer_id
        for sequence in range(20):
            batch = {"producer_id": identity, "epoch": 0, "sequence": sequence}
            if sequence % 5 == 3:
                with full_disk(process, os.path.getsize(segment(process, topic)) + 10):
                    refused = send(wire, topic, b"%d" % sequence, **batch)
                    assert refused.error_code is STORAGE_ERROR
            assert send(wire, topic, b"%d" % sequence, **batch).base_offset == sequence
        assert read_all(wire, topic) == [(n, b"%d" % n) for n in range(20)]


def test_a_segment_that_cannot_be_begun_is_begun_when_there_is_room(
    process: ProcessBroker,
) -> None:
    topic = process.create_topic(settings={"segment.bytes": "10000", "index.interval.bytes": "0"})
    with Wire(process.bootstrap) as wire:
        number = 0
        for _ in range(12):
            assert send(wire, topic, b"x" * 3000, acks=1).base_offset == number
            number += 1
            with full_disk(process, 1):
                assert send(wire, topic, b"x" * 3000, acks=1).error_code is STORAGE_ERROR
        assert [offset for offset, _ in read_all(wire, topic)] == list(range(12))[:3]
        found = 0
        while found < number:  # segment by segment
            answer = only_partition(wire.ask(fetch(12, {topic: {0: found}}, max_wait_ms=1000)))
            offsets = [offset for offset, _ in records_in(answer.records)]
            assert offsets == list(range(found, found + len(offsets)))
            found += len(offsets)
    assert "Traceback" not in process.log_text


def test_with_acks_0_a_full_disk_closes_the_connection(process: ProcessBroker) -> None:
    topic = process.create_topic()
    with Wire(process.bootstrap) as wire, full_disk(process, 0):
        wire.send_bytes(frame(produce(9, topic, {0: make_batch(b"x")}, acks=0)))
        assert wire.is_closed_by_broker()


def test_what_needs_the_metadata_store_fails_and_recovers_with_the_disk(
    process: ProcessBroker,
) -> None:
    """Topics and group offsets: refused with an error while the disk is full, none half-made."""
    topic = process.create_topic()
    new = {"name": f"{topic}-new", "num_partitions": 1, "replication_factor": 1}
    create = request("create_topics", 5, topics=[new], timeout=5000)
    commit = request(
        "offset_commit",
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1}
                ],
            }
        ],
    )
    with Wire(process.bootstrap) as wire:
        with full_disk(process, 0):
            assert wire.ask(create).topics[0].error_code is not ErrorCode.none
            refused = wire.ask(commit).topics[0].partitions[0].error_code
            assert refused is not ErrorCode.none
        assert wire.ask(create).topics[0].error_code is ErrorCode.none
        assert wire.ask(commit).topics[0].partitions[0].error_code is ErrorCode.none
        assert send(wire, f"{topic}-new", b"x").error_code is ErrorCode.none
    assert "Traceback" not in process.log_text


def test_a_damaged_partition_answers_storage_errors_and_the_others_serve(
    process: ProcessBroker,
) -> None:
    topic = process.create_topic(partitions=3)
    with Wire(process.bootstrap) as wire:
        for number in range(10):
            batch = make_batch(b"%d" % number)
            wire.ask(produce(9, topic, dict.fromkeys(range(3), batch), acks=-1))
    process.kill()
    before = segment(process, topic, 1).read_bytes()
    damage(segment(process, topic, 1), len(before) // 2)
    for name in Path(process.data_dir, topic, "1").glob("checkpoint*"):
        name.unlink()  # so that all of it is checked at the start
    process.start()
    with Wire(process.bootstrap) as wire:
        for _ in range(2):
            asked = wire.ask(produce(9, topic, dict.fromkeys(range(3), make_batch(b"new"))))
            (answer,) = asked.responses
            codes = {item.index: item.error_code for item in answer.partition_responses}
            assert codes == {0: ErrorCode.none, 1: STORAGE_ERROR, 2: ErrorCode.none}
        found = only_partition(wire.ask(fetch(12, {topic: {1: 0}}, max_wait_ms=60_000)))
        assert (found.error_code, found.records) == (STORAGE_ERROR, b"")
        for index in (0, 2):
            values = [value for _, value in read_all(wire, topic, index)]
            assert values == [b"%d" % n for n in range(10)] + [b"new"] * 2
    after = segment(process, topic, 1).read_bytes()
    assert len(after) == len(before), "it is left as it was found, for `penstock log repair`"
    assert "Traceback" not in process.log_text


def test_damage_met_while_reading_is_a_storage_error_and_not_handed_out(
    process: ProcessBroker,
) -> None:
    """An older segment, not looked at since the start."""
    topic = process.create_topic(settings={"segment.bytes": "10000"})
    with Wire(process.bootstrap) as wire:
        for _ in range(10):
            assert send(wire, topic, b"x" * 3000).error_code is ErrorCode.none
    process.stop()
    first = min(Path(process.data_dir, topic, "0").glob("*.log"))
    damage(first, first.stat().st_size // 2)
    process.start()
    with Wire(process.bootstrap) as wire:
        found = only_partition(wire.ask(fetch(12, {topic: {0: 0}}, max_wait_ms=60_000)))
        assert (found.error_code, found.records) == (STORAGE_ERROR, b"")
        other = process.create_topic()
        assert send(wire, other, b"x").base_offset == 0
    assert "Traceback" not in process.log_text


def test_a_segment_that_lost_its_end_is_a_storage_error(process: ProcessBroker) -> None:
    """Somebody cut the file under the broker, which knows how long it was."""
    topic = process.create_topic()
    with Wire(process.bootstrap) as wire:
        send(wire, topic, b"x" * 3000)
        os.truncate(segment(process, topic), 1000)
        found = only_partition(wire.ask(fetch(12, {topic: {0: 0}})))
        assert (found.error_code, found.records) == (STORAGE_ERROR, b"")


def test_a_partition_out_of_service_holds_on_to_no_memory(process: ProcessBroker) -> None:
    """Thousands of refused requests leave nothing behind: no tracebacks, no buffers."""
    import psutil

    topic = process.create_topic()
    with Wire(process.bootstrap) as wire:
        for _ in range(3):
            send(wire, topic, b"x" * 1000)
    process.kill()
    path = segment(process, topic)
    damage(path, path.stat().st_size // 2)
    for name in Path(process.data_dir, topic, "0").glob("checkpoint*"):
        name.unlink()
    process.start()
    asked = frame(produce(9, topic, {0: make_batch(b"x" * 100_000)}))
    looked = frame(fetch(12, {topic: {0: 0}}))
    with Wire(process.bootstrap) as wire:
        before = 0
        for number in range(2_000):
            wire.send_bytes(asked + looked)
            wire.receive_frame()
            wire.receive_frame()
            if number == 200:
                before = psutil.Process(process.pid).memory_info().rss
        grown = psutil.Process(process.pid).memory_info().rss - before
    assert grown < 3 << 20
