"""`penstock topic`."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import uuid
from collections.abc import Callable

import pytest

from penstock.testing import TestBroker, broker
from penstock.testing.proxy import Proxy, proxies
from tests.cli.command import Penstock


def fresh(prefix: str = "t") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def test_create_says_what_it_made(penstock_command: Penstock) -> None:
    topic = fresh()
    assert penstock_command.ok("topic", "create", topic, "-p", "3").out == (
        f"Created {topic} (3 partitions).\n"
    )


def test_create_json_reports_each_topic(penstock_command: Penstock) -> None:
    first, second = fresh(), fresh()
    made = penstock_command.ok("topic", "create", first, second, "--json").json
    assert made == {
        "topics": [
            {"topic": first, "partitions": 1, "created": True},
            {"topic": second, "partitions": 1, "created": True},
        ]
    }


def test_creating_twice_is_refused_unless_asked_for(penstock_command: Penstock) -> None:
    topic = fresh()
    penstock_command.ok("topic", "create", topic)
    assert f"There already is a topic {topic}." in penstock_command.fails("topic", "create", topic)
    again = penstock_command.ok("topic", "create", topic, "--if-not-exists", "--json").json
    assert again["topics"][0]["created"] is False


class Overtaken:
    """Lets another client send the same request to create topics first."""

    def __init__(self, broker: TestBroker) -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        self._address = host, int(port)

    def from_client(self, data: bytes) -> bytes:
        create_topics = 19
        if data[4:6] == create_topics.to_bytes(2, "big"):
            with socket.create_connection(self._address) as other:
                other.sendall(data)
                assert other.recv(1)
        return data

    def from_server(self, data: bytes) -> bytes:
        return data


@pytest.mark.parametrize("command", ["topic create {} --if-not-exists", "produce {} --create"])
def test_a_topic_that_another_client_creates_meanwhile_is_no_failure(command: str) -> None:
    with proxies() as network:
        front = network.add(Proxy(new_filter=lambda: Overtaken(running)))
        with broker(advertise_addr=front.address) as running:
            front.target = running.bootstrap
            Penstock(front.address).ok(*command.format("orders").split(), text="")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/slash"], "cannot be the name of a topic"),
        (["fine", "--set", "retention.ms=soon"], "retention.ms"),
        (["fine", "--set", "no.such.setting=1"], "no.such.setting"),
        (["fine", "--replicas", "7"], "replica"),
    ],
)
def test_create_refuses_in_plain_words(
    penstock_command: Penstock, arguments: list[str], words: str
) -> None:
    name = arguments[0] if arguments[0] != "fine" else fresh()
    assert words in penstock_command.fails("topic", "create", name, *arguments[1:])


def test_a_setting_without_a_value_is_a_usage_error(penstock_command: Penstock) -> None:
    words = penstock_command.fails("topic", "create", fresh(), "--set", "retention.ms", code=2)
    assert "name=value" in words


def test_list_matches_names_and_counts_records(
    penstock_command: Penstock, filled: Callable[..., str]
) -> None:
    topic = filled("a", "b", "c", partitions=2)
    listed = penstock_command.ok("topic", "list", f"{topic[:-3]}*", "--records", "--json").json
    assert listed == {"topics": [{"topic": topic, "partitions": 2, "replicas": 1, "records": 3}]}
    table = penstock_command.ok("topic", "list").out.splitlines()
    assert table[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "2", "1"] in [line.split() for line in table]


def test_list_of_nothing_is_still_json(penstock_command: Penstock) -> None:
    assert penstock_command.ok("topic", "list", fresh(), "--json").json == {"topics": []}


def test_describe_shows_offsets_and_settings(
    penstock_command: Penstock, filled: Callable[..., str]
) -> None:
    topic = filled("a", "b")
    penstock_command.ok("topic", "alter", topic, "--set", "retention.ms=3600000")
    described = penstock_command.ok("topic", "describe", topic, "--json").json["topics"][0]
    assert described["topic"] == topic
    assert described["partitions"] == [
        {
            "partition": 0,
            "leader": 0,
            "replicas": [0],
            "isr": [0],
            "start": 0,
            "end": 2,
            "records": 2,
        }
    ]
    assert described["settings"] == [
        {"name": "retention.ms", "value": "3600000", "source": "topic"}
    ]
    shown = penstock_command.ok("topic", "describe", topic, "--all").out
    assert f"{topic}: 1 partition, 2 records" in shown
    assert "segment.bytes" in shown


def test_describing_an_unknown_topic_does_not_create_it(penstock_command: Penstock) -> None:
    topic = fresh()
    assert f"There is no topic '{topic}'." in penstock_command.fails("topic", "describe", topic)
    assert penstock_command.ok("topic", "list", topic, "--json").json == {"topics": []}


def test_alter_sets_unsets_and_adds_partitions(
    penstock_command: Penstock, filled: Callable[..., str]
) -> None:
    topic = filled()
    changed = penstock_command.ok(
        "topic", "alter", topic, "--set", "retention.bytes=1000000", "--partitions", "4", "--json"
    ).json
    assert changed == {
        "topic": topic,
        "set": {"retention.bytes": "1000000"},
        "unset": [],
        "partitions": 4,
    }
    described = penstock_command.ok("topic", "describe", topic, "--json").json["topics"][0]
    assert len(described["partitions"]) == 4
    assert [s["name"] for s in described["settings"]] == ["retention.bytes"]
    assert (
        penstock_command.ok("topic", "alter", topic, "--unset", "retention.bytes").out
        == f"Altered {topic}.\n"
    )
    described = penstock_command.ok("topic", "describe", topic, "--json").json["topics"][0]
    assert described["settings"] == []


def test_alter_refuses_in_plain_words(
    penstock_command: Penstock, filled: Callable[..., str]
) -> None:
    topic = filled(partitions=2)
    assert "partition" in penstock_command.fails("topic", "alter", topic, "--partitions", "1")
    assert "bla" in penstock_command.fails("topic", "alter", topic, "--set", "bla=1")
    assert "Nothing to change." in penstock_command.fails("topic", "alter", topic, code=2)
    assert "There is no topic" in penstock_command.fails(
        "topic", "alter", fresh(), "--set", "retention.ms=1"
    )


def test_delete_needs_yes_where_nobody_can_be_asked(
    penstock_command: Penstock, filled: Callable[..., str]
) -> None:
    topic = filled("a")
    words = penstock_command.fails("topic", "delete", topic)
    assert "with 1 record?" in words
    assert "--yes" in words
    deleted = penstock_command.ok("topic", "delete", topic, "--yes", "--json").json
    assert deleted == {"topics": [{"topic": topic, "deleted": True}]}
    assert "There is no topic" in penstock_command.fails("topic", "delete", topic, "--yes")


@pytest.mark.parametrize(("answer", "deleted"), [(b"y\n", True), (b"n\n", False), (b"\n", False)])
def test_delete_asks_on_a_terminal(
    penstock_command: Penstock, filled: Callable[..., str], answer: bytes, deleted: bool
) -> None:
    topic = filled()
    controller, terminal = pty.openpty()
    try:
        os.write(controller, answer)
        ended = subprocess.run(
            penstock_command.argv("topic", "delete", topic),
            stdin=terminal,
            capture_output=True,
            env=penstock_command.variables(),
            timeout=30,
            check=False,
        )
    finally:
        os.close(controller)
        os.close(terminal)
    assert (ended.returncode == 0) is deleted
    assert b"[y/N]" in ended.stderr
    left = penstock_command.ok("topic", "list", topic, "--json").json["topics"]
    assert bool(left) is not deleted
