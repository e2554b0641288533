"""`penstock produce`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import TestBroker
from tests.cli.command import Penstock
from tests.cli.test_topic import fresh

Filled = Callable[..., str]


def test_each_line_is_a_record(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled()
    report = penstock_command.ok("produce", topic, "--json", text="a\n\nc d\n").json
    assert report["topic"] == topic
    assert report["records"] == 3
    assert report["partitions"] == [
        {"partition": 0, "records": 3, "first_offset": 0, "last_offset": 2}
    ]
    assert penstock_command.ok("consume", topic).out == "a\n\nc d\n"


def test_the_summary_is_for_people_and_goes_to_stderr(
    penstock_command: Penstock, filled: Filled
) -> None:
    ran = penstock_command.ok("produce", filled(), text="a\nb\n")
    assert ran.out == ""
    assert ran.err.startswith("2 records (4 B) to ")


def test_bytes_survive_as_they_are(penstock_command: Penstock, filled: Filled) -> None:
    topic = filled()
    penstock_command.ok("produce", topic, text=b"\xff\x00\xfe\ncaf\xc3\xa9")
    first, second = penstock_command.ok("consume", topic, "--json").json_lines
    assert first["value_base64"] == "/wD+"
    assert second["value"] == "café"


def test_keys_headers_and_partition_from_the_command_line(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic = filled(partitions=3)
    penstock_command.ok(
        "produce", topic, "-K", "=", "-H", "source=test", "-H", "source=again", "-p", "2",
        text="k1=v1\nk2=a=b\n",
    )  # fmt: skip
    first, second = penstock_command.ok("consume", topic, "--json").json_lines
    assert (first["partition"], first["key"], first["value"]) == (2, "k1", "v1")
    assert (second["key"], second["value"]) == ("k2", "a=b")
    assert first["headers"] == [
        {"key": "source", "value": "test"},
        {"key": "source", "value": "again"},
    ]


def test_bytes_from_the_command_line_survive_as_they_are(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic, odd = filled(), os.fsdecode(b"\xff")
    penstock_command.ok("produce", topic, "-k", odd, "-H", f"h={odd}", text="a\n")
    penstock_command.ok("produce", topic, "-K", odd, text=b"k\xffb\n")
    first, second = penstock_command.ok("consume", topic, "--json").json_lines
    assert (first["key_base64"], first["headers"][0]["value_base64"]) == ("/w==", "/w==")
    assert (second["key"], second["value"]) == ("k", "b")
    ran = penstock_command.ok("consume", topic, "--show", "value,offset", "--separator", odd)
    assert ran.out == "a\N{REPLACEMENT CHARACTER}0\nb\N{REPLACEMENT CHARACTER}1\n"


def test_json_lines_carry_every_part_of_a_record(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic = filled(partitions=2)
    lines = [
        {"key": "k", "value": {"x": [1, 2]}, "partition": 1, "timestamp": 1_700_000_000_000},
        {"value": None, "key": "gone", "partition": 1, "timestamp": "2026-01-01T00:00:00Z"},
        {"value": "v", "headers": {"h": "1"}, "partition": 1},
        {"value_base64": "/w==", "headers": [{"key": "b", "value_base64": "/w=="}], "partition": 1},
    ]
    penstock_command.ok(
        "produce", topic, "-f", "json", text="\n".join(map(json.dumps, lines)) + "\n\n"
    )
    got = penstock_command.ok("consume", topic, "--json").json_lines
    assert [record["partition"] for record in got] == [1, 1, 1, 1]
    assert (got[0]["key"], got[0]["value"], got[0]["timestamp"]) == (
        "k",
        '{"x":[1,2]}',
        1_700_000_000_000,
    )
    assert (got[1]["key"], got[1]["value"], got[1]["timestamp"]) == ("gone", None, 1767225600000)
    assert got[2]["headers"] == [{"key": "h", "value": "1"}]
    assert got[3]["value_base64"] == "/w=="
    assert got[3]["headers"] == [{"key": "b", "value_base64": "/w=="}]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(penstock_command: Penstock, filled: Filled, codec: str) -> None:
    topic = filled()
    lines = "".join(f"line {number} of a text that compresses\n" for number in range(200))
    penstock_command.ok("produce", topic, "-z", codec, text=lines)
    assert penstock_command.ok("consume", topic).out == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acknowledgement(penstock_command: Penstock, filled: Filled, acks: str) -> None:
    topic = filled()
    report = penstock_command.ok("produce", topic, "--acks", acks, "--json", text="a\n").json
    offset = None if acks == "0" else 0
    assert report["partitions"] == [
        {"partition": 0, "records": 1, "first_offset": offset, "last_offset": offset}
    ]
    if acks != "0":  # which promises nothing
        assert penstock_command.ok("consume", topic).out == "a\n"


def test_a_file(penstock_command: Penstock, filled: Filled, tmp_path: Path) -> None:
    topic, file = filled(), tmp_path / "lines.txt"
    file.write_text("".join(f"{number}\n" for number in range(5_000)))
    report = penstock_command.ok("produce", topic, str(file), "--json").json
    assert report["records"] == 5_000
    assert penstock_command.ok("consume", topic).out == file.read_text()


def test_an_unknown_topic_is_not_created_by_chance(penstock_command: Penstock) -> None:
    topic = fresh()
    words = penstock_command.fails("produce", topic, text="a\n")
    assert f"There is no topic '{topic}'." in words
    assert "--create" in words
    assert penstock_command.ok("topic", "list", topic, "--json").json == {"topics": []}
    penstock_command.ok("produce", topic, "--create", text="a\n")
    assert penstock_command.ok("consume", topic).out == "a\n"


@pytest.mark.parametrize(
    ("options", "text", "words"),
    [
        (["-f", "json"], '{"value": "fine"}\nnot json\n', "Line 2 is not JSON"),
        (["-f", "json"], '{"key": "only"}\n', "Line 1 is not a record."),
        (["-f", "json"], "[1]\n", "Line 1 is not a record."),
        (["-f", "json"], '{"value_base64": "%"}\n', "Line 1 is not a record"),
        (
            ["-f", "json"],
            '{"value": "v", "timestamp": "noon"}\n',
            "Line 1 is not a record: 'noon' is",
        ),
        (
            ["-f", "json"],
            '{"value": "v", "timestamp": 1e999}\n',
            "Line 1 is not a record: timestamp",
        ),
        (["-f", "json"], '{"value": "v", "timestamp": "-9999999999999w"}\n', "timestamp -6047"),
        (["-f", "json"], '{"value": "v", "timestamp": 9223372036854775808}\n', "timestamp 9223"),
        (
            ["-f", "json"],
            '{"value": "v", "partition": 2147483648}\n',
            "partition 2147483648 is not",
        ),
        (["-f", "json"], '{"value": "v", "headers": {"\\ud800": "x"}}\n', "Line 1 is not a record"),
        (["-f", "json"], "[" * 100_000 + "\n", "Line 1 is nested too deeply"),
        (["-K", ":"], "k:v\nno separator\n", "Line 2 has no key separator ':'"),
        (["-H", "nothing"], "v\n", "header 'nothing' is not of the form name=value"),
    ],
)
def test_bad_input_is_a_usage_error_that_names_the_line(
    penstock_command: Penstock, filled: Filled, options: list[str], text: str, words: str
) -> None:
    assert words in penstock_command.fails("produce", filled(), *options, text=text, code=2)


def test_what_comes_before_a_bad_line_is_written_and_counted(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic = filled()
    lines = [json.dumps({"value": str(number)}) for number in range(5_000)]
    text = "\n".join([*lines, "not json", *lines])
    words = penstock_command.fails("produce", topic, "-f", "json", text=text, code=2)
    assert "Acknowledged before it: 5,000 records." in words
    assert penstock_command.ok("consume", topic).out.split() == [str(n) for n in range(5_000)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_read_before_a_signal_is_written(
    penstock_command: Penstock, filled: Filled, number: signal.Signals
) -> None:
    topic = filled()
    producing = penstock_command.start("produce", topic, "-X", "linger.ms=10000")
    assert producing.stdin is not None
    producing.stdin.write(b"x" * 99 + b"\n")
    producing.stdin.write(
        (b"y" * 99 + b"\n") * 2_000
    )  # more than a pipe holds: it has read the first
    producing.stdin.flush()
    producing.send_signal(number)
    assert producing.wait(20) == 128 + number
    with contextlib.suppress(BrokenPipeError):
        producing.communicate()
    assert penstock_command.ok("consume", topic, "-n", "1").out == "x" * 99 + "\n"


def test_refusals_in_plain_words(
    penstock_command: Penstock, running_broker: TestBroker, filled: Filled
) -> None:
    topic = filled(partitions=2)
    assert "has no partition 2: it has 2, counted from 0" in penstock_command.fails(
        "produce", topic, "-p", "2", text="a\n"
    )
    elsewhere = '{"value": "a", "partition": 7}\n'
    assert f"{topic} partition 7: there is no such partition." in penstock_command.fails(
        "produce", topic, "-f", "json", text=elsewhere
    )
    assert "Cannot read nowhere.txt" in penstock_command.fails(
        "produce", topic, "nowhere.txt", code=2
    )
    small = running_broker.create_topic(settings={"max.message.bytes": "1000"})
    words = penstock_command.fails("produce", small, text="x" * 5_000 + "\n")
    assert "larger than the topic accepts" in words
    assert "0 of 1 records were acknowledged" in words
