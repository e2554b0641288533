"""kcat, as people use it at the prompt."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.testing import ProcessBroker
from tests.clients import kcat
from tests.clients.client import Client, Message, numbered, until

pytestmark = [pytest.mark.kcat, pytest.mark.usefixtures("kcat_command")]

Kcat = Callable[..., str]


@pytest.fixture
def run(server: ProcessBroker) -> Kcat:
    return lambda *arguments, stdin="": kcat.run(server.bootstrap, *arguments, stdin=stdin)


@pytest.fixture
def rdkafka(clients: dict[str, Client]) -> Client:
    """To prepare, and to look at what kcat did."""
    return clients["confluent-kafka"]


@pytest.fixture
def topic(rdkafka: Client, unique: Callable[[str], str]) -> str:
    name = unique("kcat")
    rdkafka.create_topic(name, partitions=2)
    return name


def consumed(run: Kcat, topic: str, *arguments: str) -> list[str]:
    options = ("-e", "-q", "-X", "fetch.wait.max.ms=10", "-f", "%s\n")
    return run("-C", "-t", topic, *options, *arguments).splitlines()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_lines_are_records(run: Kcat, topic: str, acks: str) -> None:
    run("-P", "-t", topic, "-p", "1", "-X", f"acks={acks}", stdin="one\ntwo\nthree\n")
    assert consumed(run, topic, "-p", "1", "-c", "3") == ["one", "two", "three"]


def test_keys_headers_and_nulls(run: Kcat, topic: str) -> None:
    run(
        *("-P", "-t", topic, "-p", "0", "-K", ":", "-Z", "-H", "trace=1", "-H", "trace=2"),
        stdin="key:value\nonly-a-key:\n",
    )
    output = run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", "2", "-q", "-J")
    first, second = kcat.records(output)
    assert (first["key"], first["payload"]) == ("key", "value")
    assert (second["key"], second["payload"]) == ("only-a-key", None)
    assert kcat.header_pairs(first) == [("trace", "1"), ("trace", "2")]


def test_an_idempotent_kcat_writes_in_order(run: Kcat, topic: str) -> None:
    lines = [str(i) for i in range(1_000)]
    run(
        *("-P", "-t", topic, "-p", "0", "-X", "enable.idempotence=true"),
        *("-X", "batch.num.messages=10"),
        stdin="\n".join(lines),
    )
    assert consumed(run, topic, "-p", "0") == lines


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("beginning", ["value-0", "value-1", "value-2", "value-3", "value-4"]),
        ("3", ["value-3", "value-4"]),
        ("-1", ["value-4"]),
        ("s@1600000002000", ["value-2", "value-3", "value-4"]),
    ],
)
def test_reading_starts_where_it_is_told(
    run: Kcat, rdkafka: Client, topic: str, offset: str, expected: list[str]
) -> None:
    start_ms = 1_600_000_000_000
    rdkafka.produce(
        topic,
        [
            Message(value=message.value, timestamp_ms=start_ms + i * 1_000)
            for i, message in enumerate(numbered(5))
        ],
    )
    assert consumed(run, topic, "-p", "0", "-o", offset) == expected


def test_a_query_finds_the_offset_of_a_time(run: Kcat, rdkafka: Client, topic: str) -> None:
    rdkafka.produce(topic, [Message(value=b"v", timestamp_ms=t) for t in (1_000, 2_000, 3_000)])
    assert run("-Q", "-t", f"{topic}:0:1500").strip() == f"{topic} [0] offset 1"
    assert run("-Q", "-t", f"{topic}:0:-1").strip() == f"{topic} [0] offset 3"
    assert run("-Q", "-t", f"{topic}:0:-2").strip() == f"{topic} [0] offset 0"


def test_the_metadata_lists_broker_and_partitions(
    run: Kcat, topic: str, server: ProcessBroker
) -> None:
    metadata = json.loads(run("-L", "-J", "-t", topic))
    assert metadata["brokers"] == [{"id": 0, "name": server.bootstrap}]
    (described,) = metadata["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert {p["leader"] for p in described["partitions"]} == {0}


def test_a_file_over_the_limit_is_refused(
    server: ProcessBroker, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * 1_500_000)
    producing = ("-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=2000000", str(file))
    done = kcat.run_any(server.bootstrap, *producing)
    assert "Message size too large" in done.stderr


def test_an_unknown_topic_is_an_error(server: ProcessBroker, unique: Callable[[str], str]) -> None:
    done = kcat.run_any(server.bootstrap, "-C", "-t", unique("none"), "-p", "0", "-e")
    assert done.returncode != 0
    assert "Unknown topic or partition" in done.stderr


class Member:
    """A kcat that consumes in a group until it is told to go."""

    def __init__(self, bootstrap: str, group: str, topic: str, output: Path, assignor: str) -> None:
        self._output = output
        command = ["kcat", "-b", bootstrap, "-G", group, "-u", "-f", "%p %s\n"]
        for setting in (
            f"partition.assignment.strategy={assignor}",
            "auto.offset.reset=earliest",
            "heartbeat.interval.ms=100",
            "session.timeout.ms=6000",
        ):
            command += ["-X", setting]
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, topic], stdout=file, stderr=subprocess.DEVNULL
            )

    def received(self) -> list[str]:
        return self._output.read_text().splitlines()

    def leave(self) -> None:
        """SIGTERM, on which kcat leaves its group."""
        self._process.terminate()
        self._process.wait(kcat.TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def join(
    server: ProcessBroker, group: str, topic: str, tmp_path: Path
) -> Iterator[Callable[[str], Member]]:
    with ExitStack() as stack:

        def add(assignor: str) -> Member:
            output = tmp_path / os.urandom(4).hex()
            member = Member(server.bootstrap, group, topic, output, assignor)
            stack.callback(member.kill)
            return member

        yield add


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_two_kcats_share_a_topic_until_one_leaves(
    rdkafka: Client, topic: str, group: str, join: Callable[[str], Member], assignor: str
) -> None:
    def shares() -> list[int]:
        described = rdkafka.describe_group(group)
        return [len(a) for a in described.assignments] if described.state == "stable" else []

    first, second = join(assignor), join(assignor)
    until("they share", lambda: shares() == [1, 1])
    for partition in (0, 1):
        rdkafka.produce(topic, numbered(10), partition=partition)
    until("all came", lambda: len(first.received()) + len(second.received()) == 20)
    assert {line.split()[0] for line in first.received()} != {
        line.split()[0] for line in second.received()
    }
    second.leave()
    until("one has all", lambda: shares() == [2])
