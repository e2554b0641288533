"""`penstock cluster status`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from penstock.testing import TestBroker, TestCluster, broker, cluster
from tests.cli.command import Penstock


@pytest.fixture(scope="module")
def three() -> Iterator[TestCluster]:
    """Left healthy by every test."""
    with cluster(racks=["a", "b", "c"], lease_ttl_s=2) as running:
        yield running


@pytest.fixture
def command(three: TestCluster) -> Penstock:
    return Penstock(three.bootstrap)


def test_a_broker_alone_is_a_healthy_cluster_of_one(
    penstock_command: Penstock, running_broker: TestBroker
) -> None:
    topic = running_broker.create_topic(partitions=2)
    report = penstock_command.ok("cluster", "status", "--all", "--check", "--json").json
    assert report["healthy"] is True
    assert report["controller"] == 0
    (only,) = report["brokers"]
    assert only["address"] == running_broker.bootstrap
    assert only["state"] == "up"
    mine = [item for item in report["partitions"] if item["topic"] == topic]
    assert [item["partition"] for item in mine] == [0, 1]
    assert mine[0]["replicas"] == mine[0]["isr"] == [0]
    assert mine[0]["lag"] == {"0": 0}
    assert mine[0]["problems"] == []


def test_tables_for_people(command: Penstock, three: TestCluster) -> None:
    topic = three.create_topic(partitions=3)
    shown = command.ok("cluster", "status", "--all").out.splitlines()
    assert shown[0].split("  ")[0] == "BROKER"
    assert sum("(controller)" in line for line in shown) == 1
    for number, rack in enumerate("abc"):
        (line,) = [line for line in shown if re.match(rf"{number}( \(controller\))? +127", line)]
        assert three.brokers[number].address in line
        assert f" {rack} " in line
        assert " up " in line
    assert sum(line.startswith(topic) for line in shown) == 3
    assert shown[-1].startswith("Healthy: ")


def test_only_partitions_in_trouble_are_shown_unless_all_are_asked_for(
    command: Penstock, three: TestCluster
) -> None:
    topic = three.create_topic()
    report = command.ok("cluster", "status", "--json").json
    assert report["partitions"] == []
    assert report["totals"]["partitions"] >= 1
    assert topic not in command.ok("cluster", "status").out


def test_a_dead_broker_its_partitions_and_their_lag(command: Penstock, three: TestCluster) -> None:
    topic = three.create_topic(settings={"min.insync.replicas": "3"})
    on_two = three.create_topic(replicas=2)
    victim = three.leader_of(topic)
    victim.kill()
    three.leader_of(topic, other_than=victim)
    three.wait_for(lambda: _out_of_sync(three, topic, victim.id), "the dead broker out of the ISR")
    ran = command.run("cluster", "status", "--check", "--json")
    assert ran.code == 1
    report = ran.json
    assert report["healthy"] is False
    states = {item["id"]: item for item in report["brokers"]}
    assert states[victim.id]["state"] == "gone"
    assert states[victim.id]["address"] is None
    assert states[victim.id]["out_of_sync"] >= 1
    (mine,) = [item for item in report["partitions"] if item["topic"] == topic]
    assert mine["problems"] == ["under-replicated", "below min ISR"]
    assert mine["lag"][str(victim.id)] is None
    assert mine["leader"] != victim.id
    assert all(lag == 0 for i, lag in mine["lag"].items() if int(i) != victim.id)
    assert report["totals"]["below_min_isr"] >= 1
    people = command.run("cluster", "status")
    assert people.code == 0  # without --check, telling is success
    assert f"Not healthy: broker {victim.id} is gone" in people.out
    assert topic in people.out
    victim.start()
    three.wait_healthy()
    assert command.ok("cluster", "status", "--check", "--json").json["healthy"] is True
    assert on_two


def test_a_broker_that_hangs_is_not_shown_as_up(command: Penstock, three: TestCluster) -> None:
    topic = three.create_topic()
    leader = three.leader_of(topic)
    hanging = three.brokers[(leader.id + 1) % 3]
    hanging.pause()
    report = command.run("cluster", "status", "--json").json
    state = {item["id"]: item["state"] for item in report["brokers"]}[hanging.id]
    assert state in {"silent", "gone"}
    three.wait_for(lambda: hanging.id not in leader.known().brokers, "the end of its lease")
    hanging.resume()
    three.wait_healthy()


def test_a_replica_that_catches_up_shows_how_far_it_is_behind() -> None:
    with cluster(2, catch_up_bytes_per_s_max=1 << 20) as c:
        topic = c.create_topic(replicas=2)
        leader = c.leader_of(topic)
        follower = c.brokers[1 - leader.id]
        follower.kill()
        producer = Producer({"bootstrap.servers": leader.address, "log_level": 0})
        for _ in range(80):
            producer.produce(topic, b"x" * 100_000)
        assert producer.flush(20) == 0
        c.wait_for(lambda: _out_of_sync(c, topic, follower.id), "the dead one out of the ISR")
        follower.start()
        report = Penstock(c.bootstrap).run("cluster", "status", "--json").json
        (mine,) = report["partitions"]
        assert mine["lag"][str(leader.id)] == 0
        assert 0 < mine["lag"][str(follower.id)] <= 80
        assert mine["problems"] == ["under-replicated"]
        c.wait_healthy()


def test_partitions_without_a_leader_come_first() -> None:
    with cluster(2, lease_ttl_s=2) as c:
        alone = c.create_topic("z-alone", replicas=1)
        both = c.create_topic("a-both", replicas=2)
        victim = c.leader_of(alone)
        victim.kill()
        c.wait_for(lambda: _is_leaderless(c, alone), "the end of its leader")
        c.wait_for(lambda: _out_of_sync(c, both, victim.id), "a shrunken ISR")
        command = Penstock(c.bootstrap)
        report = command.run("cluster", "status", "--json").json
        assert [item["topic"] for item in report["partitions"]] == [alone, both]
        assert report["partitions"][0]["leader"] is None
        assert "no leader" in report["partitions"][0]["problems"]
        assert report["totals"]["leaderless"] == 1


def test_nobody_to_ask() -> None:
    with broker() as b:
        address = b.bootstrap
    words = Penstock(address).fails("cluster", "status")
    assert "No broker could be reached" in words


def test_watch_goes_on_until_it_is_interrupted(command: Penstock, three: TestCluster) -> None:
    three.wait_healthy()
    process = command.start("cluster", "status", "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert all(b'"healthy": true' in line for line in lines)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_watch_goes_on_with_other_brokers_when_the_one_that_was_asked_dies(
    three: TestCluster,
) -> None:
    three.wait_healthy()
    victim = three.brokers[0]
    process = Penstock(victim.address).start(
        "cluster", "status", "--watch", "--interval", "0.1", "--json"
    )
    assert process.stdout is not None
    try:
        assert b'"healthy": true' in process.stdout.readline()
        victim.kill()
        for line in process.stdout:
            if b'"healthy": false' in line:
                break
        else:
            raise AssertionError((process.communicate()[1] or b"").decode())
    finally:
        process.kill()
        process.communicate()
        victim.kill()
        victim.start()
        three.wait_healthy()


def _out_of_sync(running: TestCluster, topic: str, broker_id: int) -> bool:
    known = running.partition(topic)
    return known is not None and broker_id not in known.isr


def _is_leaderless(running: TestCluster, topic: str) -> bool:
    return all(
        (item := known.partition(topic, 0)) is not None and not item.is_led
        for known in running.known().values()
    )
