"""Spark Connect: the same lines, with the session on the other side of a wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.cluster import Cluster
from penstock.model import TopicPartition
from tests.spark.harness import Topic

pytestmark = pytest.mark.spark


def test_a_connected_session_reads_and_writes_batch_and_stream(
    topic: Topic, tmp_path: Path
) -> None:
    target = Topic(topic.broker, topic.broker.create_topic(partitions=2))
    topic.write(range(10))
    command = [sys.executable, "-m", "tests.spark.connect_job", topic.broker.bootstrap]
    done = subprocess.run(
        [*command, topic.name, target.name, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    values = sorted(int(record.value()) for record in target.read(15))
    assert values == sorted([*range(5, 10), *range(10)])
    with Cluster(topic.broker.bootstrap) as cluster:
        where = TopicPartition(topic.name, 0)
        group = f"spark-connected-{topic}"
        assert cluster.committed_offsets(group, [where]) == {where: 10}
