"""What a task hands to Spark."""

from __future__ import annotations

from pyspark.sql.types import StructType

from penstock.client.producing import IdempotentProducer
from penstock.model import TopicPartition
from penstock.records.decode import encode_batch
from penstock.spark.connecting import ClusterSettings
from penstock.spark.options import Options
from penstock.spark.planning import Range
from penstock.spark.reading import ReadSettings, Split, read_split
from penstock.spark.schema import COLUMNS
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
