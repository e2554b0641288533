"""`penstock topic move`, `elect` and `describe` in a cluster."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from penstock.processes.inquiry import PartitionKnown
from penstock.testing import TestCluster, cluster
from tests.cli.command import Penstock
from tests.cli.test_topic import fresh


@pytest.fixture(scope="module")
def three() -> Iterator[TestCluster]:
    """Three brokers that copy what is behind slowly; each test leaves them healthy."""
    with cluster(
        lease_ttl_s=2, replica_lag_ms_max=1_000, catch_up_bytes_per_s_max=100_000
    ) as running:
        yield running


@pytest.fixture
def command(three: TestCluster) -> Penstock:
    return Penstock(three.bootstrap)


@pytest.fixture
def two_replicas(three: TestCluster) -> str:
    """A topic with two partitions, each on two brokers."""
    return three.create_topic(partitions=2, replicas=2)


def known(three: TestCluster, topic: str, partition: int = 0) -> PartitionKnown:
    found = three.partition(topic, partition)
    assert found is not None
    return found


def other(found: PartitionKnown) -> int:
    """The broker that does not hold it."""
    return ({0, 1, 2} - set(found.replicas)).pop()


def fill(three: TestCluster, topic: str) -> None:
    """With what takes half a minute to copy."""
    producer = Producer({"bootstrap.servers": three.bootstrap})
    for _ in range(60):
        producer.produce(topic, b"x" * 50_000, partition=0)
    assert producer.flush(20) == 0


def described(command: Penstock, topic: str) -> list[dict[str, object]]:
    rows = command.ok("topic", "describe", topic, "--json").json["topics"][0]["partitions"]
    assert isinstance(rows, list)
    return rows


class TestMove:
    def test_returns_when_the_partition_is_there(
        self, three: TestCluster, command: Penstock, two_replicas: str
    ) -> None:
        before = known(three, two_replicas)
        target = [other(before), before.replicas[0]]
        words = ",".join(map(str, target))
        ran = command.ok("topic", "move", two_replicas, "--partition", "0", "--to", words)
        assert ran.out == f"Moved {two_replicas}-0 to {target[0]}, {target[1]}.\n"
        after = described(command, two_replicas)[0]
        assert after["replicas"] == target
        assert sorted(after["isr"]) == sorted(target)  # type: ignore[call-overload]

    def test_of_a_whole_topic_lets_its_brokers_lead_in_turn(
        self, command: Penstock, two_replicas: str
    ) -> None:
        moved = command.ok("topic", "move", two_replicas, "--to", "0,1,2", "--json").json
        assert [row["replicas"] for row in moved["partitions"]] == [[0, 1, 2], [1, 2, 0]]
        assert [row["replicas"] for row in described(command, two_replicas)] == [
            [0, 1, 2],
            [1, 2, 0],
        ]

    def test_shows_how_far_it_is_goes_on_when_interrupted_and_can_be_cancelled(
        self, three: TestCluster, command: Penstock, two_replicas: str
    ) -> None:
        before = known(three, two_replicas)
        fill(three, two_replicas)
        words = f"{other(before)},{before.replicas[0]}"
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            command.argv("topic", "move", two_replicas, "-p", "0", "--to", words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=follower,
            env=command.variables(),
        )
        os.close(follower)
        shown = ""
        while "Copying" not in shown:
            shown += os.read(leader, 4096).decode()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while more := os.read(leader, 4096).decode():
                shown += more
        os.close(leader)
        assert process.wait(20) == 130
        assert "The move goes on" in re.sub(r"\s+", " ", shown)
        assert set(known(three, two_replicas).replicas) == {0, 1, 2}
        back = command.ok("topic", "move", two_replicas, "--cancel")
        assert back.out == f"Back: {two_replicas}-0.\n"
        assert set(known(three, two_replicas).replicas) == set(before.replicas)
        assert "is being moved" in command.fails("topic", "move", two_replicas, "--cancel")

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            ([], 2, "--to"),
            (["--to", "0", "--cancel"], 2, "--to"),
            (["--to", "a,b"], 2, "no list of different brokers"),
            (["--to", "1,1"], 2, "no list of different brokers"),
            (["--to", "0,9"], 1, "must be different brokers"),
            (["--to", "0", "-p", "7"], 1, "has no partition 7"),
            (["--cancel", "-p", "0"], 1, "nothing to cancel"),
        ],
    )
    def test_is_refused_in_plain_words(
        self, command: Penstock, two_replicas: str, arguments: list[str], code: int, words: str
    ) -> None:
        assert words in command.fails("topic", "move", two_replicas, *arguments, code=code)


class TestElect:
    def test_puts_the_preferred_leaders_back(
        self, three: TestCluster, command: Penstock, two_replicas: str
    ) -> None:
        before = known(three, two_replicas)
        flipped = ",".join(map(str, reversed(before.replicas)))
        command.ok("topic", "move", two_replicas, "-p", "0", "--to", flipped)
        assert command.ok("topic", "elect", two_replicas).out == "Elected 1 leader.\n"
        assert three.leader_of(two_replicas, other_than=before.leader).id == before.replicas[1]
        assert command.ok("topic", "elect", two_replicas, "-p", "0").out == "Elected 0 leaders.\n"

    def test_of_who_is_not_in_sync_needs_a_yes(self, three: TestCluster, command: Penstock) -> None:
        topic = three.create_topic(replicas=2)
        leader = three.leader_of(topic)
        (follower,) = (three.brokers[i] for i in known(three, topic).replicas if i != leader.id)
        follower.kill()
        three.wait_for(lambda: known(three, topic).isr == (leader.id,), "the leader alone")
        leader.kill()
        three.wait_for(lambda: not known(three, topic).is_led, "no leader")
        shown = command.ok("topic", "describe", topic)
        assert "1 without a leader" in shown.err
        assert described(command, topic)[0]["leader"] is None
        follower.start()
        assert "--unclean" in command.fails("topic", "elect", topic)
        assert "Pass --yes" in command.fails("topic", "elect", topic, "--unclean")
        assert not known(three, topic).is_led
        assert command.ok("topic", "elect", topic, "--unclean", "-y").out == "Elected 1 leader.\n"
        assert three.leader_of(topic) is follower
        leader.start()
        three.wait_healthy()


def test_create_takes_a_replication_factor(three: TestCluster, command: Penstock) -> None:
    topic = fresh()
    command.ok("topic", "create", topic, "--replication-factor", "2")
    assert len(known(three, topic).replicas) == 2
    assert "replicas" in command.fails("topic", "create", fresh(), "--replicas", "4")


def test_create_tells_what_it_waited_for_in_vain(three: TestCluster) -> None:
    controller = three.controller()
    hanging = three.brokers[(controller.id + 1) % 3]
    hanging.pause()
    try:
        words = Penstock(controller.address).fails("topic", "create", fresh(), "--replicas", "3")
    finally:
        hanging.resume()
    assert "was not ready within 5 s" in words
    three.wait_healthy()


def test_a_broker_that_is_alone_moves_nothing(penstock_command: Penstock) -> None:
    topic = fresh()
    penstock_command.ok("topic", "create", topic)
    assert (
        penstock_command.ok("topic", "move", topic, "--to", "0").out == f"Moved {topic}-0 to 0.\n"
    )
    assert "not there" in penstock_command.fails("topic", "move", topic, "--to", "1")
    assert penstock_command.ok("topic", "elect", topic).out == "Elected 0 leaders.\n"
