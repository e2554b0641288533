"""What a broker knows of the cluster: what is gone leaves nothing behind, and does not come back."""

from __future__ import annotations

import uuid

import pytest

from penstock.cluster import view as module
from penstock.cluster.state import (
    PartitionState,
    TopicState,
    encode_partition,
    encode_topic,
    partition_cluster_id,
    partition_key,
    topic_key,
)
from penstock.cluster.view import ClusterView
from penstock.model import TopicPartition

ORDERS = TopicPartition("orders", 0)
TOPIC = TopicState(name="orders", id=uuid.uuid4(), partition_count=1)


def test_where_the_logs_of_a_deleted_partition_ended_is_forgotten() -> None:
    view = ClusterView()
    state = PartitionState(cluster_id=partition_cluster_id(TOPIC.id, 0), replicas=(1, 2))
    view.apply(partition_key(ORDERS), encode_partition(state), 1)
    view.log_ends[1][ORDERS] = view.log_ends[2][ORDERS] = 7
    view.apply(partition_key(ORDERS), None, 2)
    assert [view.log_end(broker, ORDERS) for broker in (1, 2)] == [-1, -1]
    assert not any(view.log_ends.values())


def test_late_news_of_a_deleted_key_does_not_bring_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DELETED_KEYS_MAX", 2)
    view = ClusterView()
    for number in range(3):
        view.apply(topic_key(f"t{number}"), encode_topic(TOPIC), 10 + number)
        view.apply(topic_key(f"t{number}"), None, 20 + number)
    for number in (1, 2):
        assert view.apply(topic_key(f"t{number}"), encode_topic(TOPIC), 10 + number) is None
    assert not view.topics


def test_not_every_key_that_was_ever_deleted_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DELETED_KEYS_MAX", 2)
    view = ClusterView()
    for number in range(3):
        view.apply(topic_key(f"t{number}"), None, 20 + number)
    assert view.apply(topic_key("t0"), encode_topic(TOPIC), 10) is not None
