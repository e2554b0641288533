"""`penstock consume`."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import IO

import pytest
from confluent_kafka import Consumer, Producer

from penstock.testing import TestBroker, broker_process
from tests.cli.command import Penstock
from tests.cli.test_topic import fresh

Filled = Callable[..., str]


def test_everything_up_to_the_end(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled("a", "b", "c", partitions=3)
    assert sorted(penstock_command.ok("consume", topic).out.split()) == ["a", "b", "c"]


def test_an_empty_topic_ends_at_once(penstock_command: Penstock, filled: Filled) -> None:
    assert penstock_command.ok("consume", filled(partitions=3)).out == ""


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("beginning", "abcde"),
        ("earliest", "abcde"),
        ("end", ""),
        ("latest", ""),
        ("0", "abcde"),
        ("3", "de"),
        ("5", ""),
        ("-2", "de"),
        ("-99", "abcde"),
        ("1960-01-01", "abcde"),
        ("1969-12-31T23:59:59.999", "abcde"),
        ("-999999999999999999999w", "abcde"),
    ],
)
def test_from_a_position(
    penstock_command: Penstock, filled: Filled, start: str, expected: str
) -> None:
    topic = filled(*"abcde")
    out = penstock_command.ok("consume", topic, "--from", start).out
    assert out.split() == list(expected)


def test_from_a_time(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled()
    records = [
        {"value": "old", "timestamp": "2025-01-01"},
        {"value": "new", "timestamp": "2025-06-01T12:00:00+02:00"},
        {"value": "now"},
    ]
    penstock_command.ok("produce", topic, "-f", "json", text="\n".join(map(json.dumps, records)))

    def from_(start: str) -> list[str]:
        return penstock_command.ok("consume", topic, "--from", start).out.split()

    assert from_("2025-01-01") == ["old", "new", "now"]
    assert from_("2025-06-01T10:00") == ["new", "now"]  # UTC
    assert from_("2025-06-01T10:00:00.001") == ["now"]
    assert from_("-10m") == ["now"]
    assert from_("2100-01-01") == []


def test_max_and_partition(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled("a", "b", "c")
    penstock_command.ok("topic", "alter", topic, "--partitions", "2")
    penstock_command.ok("produce", topic, "-p", "1", text="x\ny\n")
    assert penstock_command.ok("consume", topic, "-p", "0", "-n", "2").out == "a\nb\n"
    assert penstock_command.ok("consume", topic, "-p", "1").out == "x\ny\n"
    assert "has no partition 2" in penstock_command.fails("consume", topic, "-p", "2")


def test_show_chooses_and_orders_the_parts(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled()
    line = {"key": "k", "value": None, "headers": {"a": "1", "b": None}, "timestamp": "2025-01-01"}
    penstock_command.ok("produce", topic, "-f", "json", text=json.dumps(line))
    shown = penstock_command.ok(
        "consume", topic, "--show", "topic,partition,offset,timestamp,key,value,headers",
        "--separator", "|",
    ).out  # fmt: skip
    assert shown == f"{topic}|0|0|2025-01-01T00:00:00.000Z|k|null|a=1,b=null\n"


def test_json_lines_copy_a_topic(penstock_command: Penstock, filled: Filled) -> None:
    source, copy = filled(partitions=2), fresh("copy")
    records = [
        {"key": f"k{number}", "value": f"v{number}", "timestamp": 1_700_000_000_000 + number,
         "headers": [{"key": "n", "value": str(number)}], "partition": number % 2}
        for number in range(10)
    ]  # fmt: skip
    records.append({"value_base64": "gIE=", "partition": 0, "timestamp": 1})
    penstock_command.ok("produce", source, "-f", "json", text="\n".join(map(json.dumps, records)))
    lines = penstock_command.ok("consume", source, "--json").out
    penstock_command.ok("topic", "create", copy, "-p", "2")
    penstock_command.ok("produce", copy, "-f", "json", text=lines)
    copied = penstock_command.ok("consume", copy, "--json").out
    order = sorted  # partitions may come in any order
    assert order(copied.replace(copy, source).splitlines()) == order(lines.splitlines())


def test_a_group_goes_on_where_it_stopped(penstock_command: Penstock, filled: Filled) -> None:
    topic, group = filled(*"abcde"), fresh("g")
    assert penstock_command.ok("consume", topic, "-g", group, "-n", "2").out == "a\nb\n"
    assert (
        penstock_command.ok("consume", topic, "-g", group, "-n", "1", "--json").json["value"] == "c"
    )
    assert penstock_command.ok("consume", topic, "-g", group).out == "d\ne\n"
    assert penstock_command.ok("consume", topic, "-g", group).out == ""
    again = penstock_command.ok("consume", topic, "-g", group, "--from", "1", "-n", "2").out
    assert again == "b\nc\n"
    assert penstock_command.ok("consume", topic, "-g", group, "-n", "1").out == "d\n"


@contextlib.contextmanager
def followed(penstock_command: Penstock, topic: str) -> Iterator[IO[bytes]]:
    """What `consume --follow` prints; Ctrl-C must end it, with nothing more to say."""
    following = penstock_command.start("consume", topic, "--follow")
    assert following.stdout is not None
    yield following.stdout
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=20)
    assert (following.returncode, out, err) == (0, b"", b"")


def test_following_shows_what_arrives_and_ctrl_c_ends_it(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic = filled("before")
    with followed(penstock_command, topic) as printed:
        assert printed.readline() == b"before\n"
        penstock_command.ok("produce", topic, text="after\n")
        assert printed.readline() == b"after\n"


def test_following_takes_partitions_that_come_to_the_topic(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic = filled("before")
    with followed(penstock_command, topic) as printed:
        assert printed.readline() == b"before\n"
        penstock_command.ok("topic", "alter", topic, "--partitions", "3")
        penstock_command.ok("produce", topic, "--partition", "2", text="there\n")
        assert printed.readline() == b"there\n"


def test_a_group_member_that_is_terminated_commits_and_leaves(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic, group = filled(*"abc"), fresh("g")
    following = penstock_command.start("consume", topic, "-g", group, "--follow")
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    penstock_command.ok("produce", topic, text="d\n")
    assert following.stdout.readline() == b"d\n"
    following.terminate()
    _, err = following.communicate(timeout=20)
    assert (following.returncode, err) == (128 + signal.SIGTERM, b"")
    described = penstock_command.ok("group", "describe", group, "--json").json
    assert described["state"] == "empty"
    assert described["partitions"][0]["committed"] >= 3  # d may come again, a to c may not


def test_a_group_member_goes_on_while_others_come_and_go(
    penstock_command: Penstock, running_broker: TestBroker
) -> None:
    topic, group = running_broker.create_topic(partitions=8), fresh("g")
    place = {"bootstrap.servers": running_broker.bootstrap}
    producer = Producer({**place, "linger.ms": 0})
    often = ["-X", "heartbeat.interval.ms=100"]
    member = penstock_command.start("consume", topic, "-g", group, "--follow", *often)
    assert member.stdout is not None
    producer.produce(topic, "first")
    assert member.stdout.readline() == b"first\n"
    drained = threading.Thread(target=member.stdout.read, daemon=True)
    drained.start()
    for _ in range(10):
        other = Consumer({**place, "group.id": group})
        other.subscribe([topic])
        while not other.assignment():
            for number in range(8):
                producer.produce(topic, "more", partition=number)
            producer.poll(0)
            other.poll(0.002)
        other.close()
    assert producer.flush(20) == 0
    member.terminate()
    assert member.wait(20) == 128 + signal.SIGTERM
    drained.join()
    assert member.stderr is not None
    assert member.stderr.read() == b""


def test_a_signal_ends_it_quietly_while_the_broker_is_away() -> None:
    ends = {signal.SIGINT: 0, signal.SIGTERM: 128 + signal.SIGTERM}
    with broker_process() as running:
        command = Penstock(running.bootstrap)
        topic = running.create_topic()
        command.ok("produce", topic, text="a\n")
        following = {number: command.start("consume", topic, "--follow") for number in ends}
        for process in following.values():
            assert process.stdout is not None
            assert process.stdout.readline() == b"a\n"
        running.kill()
        for number, process in following.items():
            assert process.stderr is not None
            assert b"waiting for the broker to come back" in process.stderr.readline()
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
            assert (process.returncode, err) == (ends[number], b"")


def test_a_closed_pipe_ends_it_quietly(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled(*(f"a line that is long enough to fill a pipe {n}" for n in range(5_000)))
    ran = subprocess.run(
        f"{' '.join(penstock_command.argv('consume', topic))} | head -1",
        shell=True,
        capture_output=True,
        env=penstock_command.variables(),
        timeout=30,
        check=False,
    )
    assert ran.stdout == b"a line that is long enough to fill a pipe 0\n"
    assert ran.stderr == b""


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--from", "99"], 1, "Offset 99 is not in"),
        (["--from", "yesterday"], 2, "'yesterday' is not a position in a topic."),
        (["--show", "colour"], 2, "Choose from topic, partition"),
        (["--group", "g", "--partition", "0"], 2, "exclude each other"),
        (["-X", "no.such.property=1"], 1, "no.such.property"),
    ],
)
def test_bad_options_in_plain_words(
    penstock_command: Penstock, filled: Filled, options: list[str], code: int, words: str
) -> None:
    assert words in penstock_command.fails("consume", filled("a"), *options, code=code)


def test_an_unknown_topic(penstock_command: Penstock) -> None:
    topic = fresh()
    assert f"There is no topic '{topic}'." in penstock_command.fails("consume", topic)
    assert penstock_command.ok("topic", "list", topic, "--json").json == {"topics": []}
