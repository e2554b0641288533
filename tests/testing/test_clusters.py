"""`penstock.testing.cluster`: real brokers that are killed, paused and cut off, and end with their test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.errors import PenstockError
from penstock.processes.inquiry import PartitionKnown
from penstock.testing import TestCluster, cluster
from tests.testing.test_brokers import QUIET, read, wait_until_gone, write

# Where a broker that a cluster was cut off from must be missed soon.
HASTY: dict[str, Any] = {"replica_lag_ms_max": 1_000, "lease_ttl_s": 2}


@pytest.fixture(scope="module")
def shared() -> Iterator[TestCluster]:
    """One for tests that leave it healthy."""
    with cluster(partitionable=True, **HASTY) as running:
        yield running


@pytest.fixture
def three(shared: TestCluster) -> Iterator[TestCluster]:
    yield shared
    shared.heal()
    shared.wait_healthy()


def newest(running: TestCluster, topic: str) -> PartitionKnown:
    found = running.partition(topic)
    assert found is not None
    return found


def test_it_serves_and_leaves_nothing_behind() -> None:
    with cluster(2, racks=["a", "b"], default_partitions=2) as c:
        assert [broker.id for broker in c.brokers] == [0, 1]
        assert c.bootstrap == f"{c.brokers[0].address},{c.brokers[1].address}"
        topic = c.create_topic(replicas=2)
        write(c.bootstrap, topic, "a", "b")
        assert read(c.bootstrap, topic, 2) == ["a", "b"]
        known = c.brokers[1].known()
        assert [known.brokers[i].rack for i in (0, 1)] == ["a", "b"]
        assert c.controller() in c.brokers
        pids = [broker.pid for broker in c.brokers] + [c.etcd.members[0].pid]
        directories = [broker.data_dir for broker in c.brokers]
        assert all(map(os.path.isdir, directories))
    for pid in pids:
        wait_until_gone(pid)
    assert not any(map(os.path.exists, directories))


def test_a_killed_leader_is_replaced_and_comes_back_with_its_data(three: TestCluster) -> None:
    topic = three.create_topic()
    write(three.bootstrap, topic, "a")
    old = three.leader_of(topic)
    first_pid, directory = old.pid, old.data_dir
    old.kill()
    assert not old.running
    new = three.leader_of(topic, other_than=old)
    assert new is not old
    write(three.bootstrap, topic, "b")
    old.start()
    assert old.pid != first_pid
    assert old.data_dir == directory
    three.wait_healthy()
    assert set(newest(three, topic).isr) == {0, 1, 2}
    assert read(three.bootstrap, topic, 2) == ["a", "b"]


def test_a_paused_leader_is_replaced_and_follows_when_it_wakes_up(three: TestCluster) -> None:
    topic = three.create_topic()
    old = three.leader_of(topic)
    old.pause()
    assert old.running
    assert not old.responsive
    assert three.leader_of(topic, other_than=old) is not old
    old.resume()
    three.wait_healthy()
    assert old.known() is not None


def test_a_clean_stop_hands_the_lead_over_at_once(three: TestCluster) -> None:
    topic = three.create_topic()
    old = three.leader_of(topic)
    old.terminate()
    assert not old.running
    assert three.leader_of(topic, other_than=old, timeout_s=1.5) is not old
    old.start(wait=False)
    old.wait_ready()
    old.wait_ready()  # harmless
    three.wait_healthy()


def test_a_leader_that_is_isolated_is_replaced_while_clients_still_reach_it(
    three: TestCluster,
) -> None:
    topic = three.create_topic(settings={"min.insync.replicas": "2"})
    old = three.leader_of(topic)
    three.isolate(old)
    new = three.leader_of(topic, other_than=old)
    assert old.known().cluster_id == new.known().cluster_id
    others = ",".join(broker.address for broker in three.brokers if broker is not old)
    write(others, topic, "a")
    three.heal()
    three.wait_healthy()
    assert read(three.bootstrap, topic, 1) == ["a"]


def test_a_broker_that_is_isolated_from_clients_too_answers_none(three: TestCluster) -> None:
    victim = three.brokers[2]
    three.isolate(victim, clients=True, reset=True)
    producer = Producer({**QUIET, "bootstrap.servers": victim.address})
    assert producer.poll(0) == 0
    with pytest.raises(Exception, match=r"metadata|Local"):
        producer.list_topics(timeout=1)
    three.heal()
    assert producer.list_topics(timeout=20).brokers


def test_a_broker_without_etcd_loses_its_lead_and_takes_part_again_after_that(
    three: TestCluster,
) -> None:
    topic = three.create_topic()
    old = three.leader_of(topic)
    three.isolate_from_etcd(old, reset=True)
    assert three.leader_of(topic, other_than=old) is not old
    three.heal()
    three.wait_healthy()
    assert old.id in newest(three, topic).isr


def test_two_brokers_that_are_cut_off_from_each_other_do_not_replicate(three: TestCluster) -> None:
    topic = three.create_topic()
    leader = three.leader_of(topic)
    follower = three.brokers[(leader.id + 1) % 3]
    three.cut(leader, follower)
    write(three.bootstrap, topic, "a")
    three.wait_for(
        lambda: follower.id not in newest(three, topic).isr, "the follower out of the ISR"
    )
    assert three.leader_of(topic) is leader
    assert set(leader.known().brokers) == {0, 1, 2}  # etcd still hears of both
    three.heal()
    three.wait_healthy()


def test_waiting_in_vain_says_for_what() -> None:
    with cluster(2, lease_ttl_s=2) as c:
        topic = c.create_topic(replicas=2)
        c.brokers[1].kill()
        with pytest.raises(TimeoutError, match=rf"{topic}-0 .*broker 1"):
            c.wait_healthy(timeout_s=1)
        with pytest.raises(TimeoutError, match="the moon"):
            c.wait_for(lambda: False, "the moon", timeout_s=0.1)
        with pytest.raises(AssertionError, match="partitionable"):
            c.heal()


def test_what_keeps_a_broker_from_starting_is_told() -> None:
    with pytest.raises(PenstockError, match="lease_ttl_s"), cluster(1, lease_ttl_s=1):
        pass


def test_an_error_in_the_block_carries_the_ends_of_the_logs() -> None:
    with pytest.raises(KeyError) as caught, cluster(1):
        raise KeyError("mine")
    assert "the log of broker 0 ends with" in caught.value.__notes__[0]


def test_processes_die_with_their_parent_even_paused_ones(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from penstock.testing import cluster\n"
        "with cluster(2) as c:\n"
        "    c.brokers[1].pause()\n"
        "    print(*(b.pid for b in c.brokers), c.etcd.members[0].pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    for pid in pids:
        wait_until_gone(pid)
