"""In a cluster, readers and producers go on with the next leader, and lose and repeat nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client.cluster import Cluster
from penstock.client.fetching import RangeReader
from penstock.client.producing import IdempotentProducer
from penstock.model import TopicPartition
from penstock.testing import TestCluster
from penstock.testing import cluster as running_cluster
from tests.client.support import batch, fill, read_all, records_in

RECORDS = 20_000


@pytest.fixture(scope="module")
def brokers() -> Iterator[TestCluster]:
    with running_cluster(lease_ttl_s=2) as running:
        yield running


@pytest.fixture
def partition(brokers: TestCluster) -> TopicPartition:
    brokers.wait_healthy()
    topic = brokers.create_topic(replicas=3, settings={"min.insync.replicas": "2"})
    return TopicPartition(topic, 0)


def test_a_producer_whose_leader_is_killed_writes_everything_once(
    brokers: TestCluster, partition: TopicPartition
) -> None:
    leader = brokers.leader_of(*partition)
    with Cluster(brokers.bootstrap) as cluster:
        with IdempotentProducer(cluster) as producer:
            for first in range(0, RECORDS, 10):
                producer.send(partition, batch(first, 10), 10)
                if first == RECORDS // 2:
                    leader.kill()
        assert read_all(cluster, partition) == list(range(RECORDS))
    leader.start()


def test_a_range_comes_whole_although_its_leader_is_killed_in_the_middle(
    brokers: TestCluster, partition: TopicPartition
) -> None:
    with Cluster(brokers.bootstrap) as cluster:
        fill(cluster, partition, RECORDS)
        leader = brokers.leader_of(*partition)
        found: list[tuple[int, int]] = []
        for fetched in RangeReader(cluster, partition, 0, RECORDS, fetch_bytes=50_000):
            found += records_in(fetched, 0, RECORDS)
            if leader.running and len(found) > RECORDS // 3:
                leader.kill()
        assert not leader.running
        assert found == [(number, number) for number in range(RECORDS)]
    leader.start()
