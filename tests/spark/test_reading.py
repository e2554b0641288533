"""What a task hands to Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from penstock.client.local_files import LocalFiles
from penstock.client.producing import IdempotentProducer
from penstock.model import TopicPartition
from penstock.records.decode import encode_batch
from penstock.spark.connecting import ClusterSettings
from penstock.spark.options import Options
from penstock.spark.planning import Range
from penstock.spark.reading import ReadSettings, Split, read_split
from penstock.spark.schema import COLUMNS
from penstock.wire import FileReference
from tests.spark.harness import Topic

SCHEMA = StructType().add("offset", COLUMNS["offset"]).add("value", COLUMNS["value"])


def test_a_fetch_that_compresses_well_comes_as_several_arrow_batches(topic: Topic) -> None:
    given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
    options = Options({**given, "fetchBytes": "8000"}, "batch")  # about half of it
    where = ClusterSettings.from_options(options)
    partition = TopicPartition(topic.name, 0)
    with where.connect() as cluster, IdempotentProducer(cluster) as producer:
        for _ in range(100):
            producer.send(partition, encode_batch([(None, bytes(800_000))] * 2, codec=4), 2)
    split = Split(Range(partition, 5, 195))
    offsets, sizes = [], []
    for batch in read_split(where, ReadSettings.from_options(options, SCHEMA), split):
        offsets += batch.column("offset").to_pylist()
        sizes.append(batch.nbytes)
    assert offsets == list(range(5, 195))
    assert len(sizes) < 10
    assert max(sizes) <= 32 << 20


@pytest.mark.parametrize("reads_files", [True, False])
def test_a_task_beside_its_broker_reads_files_unless_it_is_told_not_to(
    topic: Topic, reads_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[FileReference] = []
    really = LocalFiles.read

    def watched(files: LocalFiles, reference: FileReference, into: memoryview) -> bool:
        read.append(reference)
        return really(files, reference, into)

    monkeypatch.setattr(LocalFiles, "read", watched)
    given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
    options = Options({**given, "readFiles": str(reads_files).lower()}, "batch")
    where = ClusterSettings.from_options(options)
    partition = TopicPartition(topic.name, 0)
    with where.connect() as cluster, IdempotentProducer(cluster) as producer:
        producer.send(partition, encode_batch([(None, bytes(100_000))] * 2), 2)
    batches = read_split(
        where, ReadSettings.from_options(options, SCHEMA), Split(Range(partition, 0, 2))
    )
    assert sum(batch.num_rows for batch in batches) == 2
    assert bool(read) == reads_files


def test_what_came_before_a_gap_is_handed_over_and_not_called_lost(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
    options = Options({**given, "failOnDataLoss": "false", "retryTimeout": "1s"}, "batch")
    where = ClusterSettings.from_options(options)
    partition = TopicPartition(topic.name, 0)
    with where.connect() as cluster, IdempotentProducer(cluster) as producer:
        for _ in range(3):
            producer.send(partition, encode_batch([(None, b"v")] * 10), 10)
    batches = read_split(
        where, ReadSettings.from_options(options, SCHEMA), Split(Range(partition, 5, 100))
    )
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(5, 30))
    assert "offsets 30 to 100 (exclusive)" in caplog.text


@pytest.mark.parametrize("fetch_bytes", ["1024", "8m"])
def test_every_task_settles_once_be_it_small(
    topic: Topic, fetch_bytes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[None] = []
    monkeypatch.setattr("penstock.spark.reading.settle", lambda: settled.append(None))
    given = {"kafka.bootstrap.servers": topic.broker.bootstrap, "subscribe": topic.name}
    options = Options({**given, "fetchBytes": fetch_bytes}, "batch")
    where = ClusterSettings.from_options(options)
    partition = TopicPartition(topic.name, 0)
    with where.connect() as cluster, IdempotentProducer(cluster) as producer:
        for _ in range(5):
            producer.send(partition, encode_batch([(None, bytes(500))] * 2), 2)
    batches = read_split(
        where, ReadSettings.from_options(options, SCHEMA), Split(Range(partition, 0, 10))
    )
    assert sum(batch.num_rows for batch in batches) == 10
    assert len(settled) == 1
