"""What people type, as values."""

from __future__ import annotations

import os
import time

import pytest

from penstock.cli.failure import UsageError
from penstock.cli.values import Position, iso, pairs, timestamp_ms, topic_partitions
from tests.cli.command import Penstock


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-02T00:00", 86_400_000),
        ("1970-01-01T00:00:01.5", 1_500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:01Z", 1_000),
    ],
)
def test_a_time_is_iso_8601_and_utc_unless_it_names_a_zone(text: str, milliseconds: int) -> None:
    assert timestamp_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("-90s", 90), ("-10m", 600), ("-1.5h", 5_400), ("-2d", 172_800), ("-1w", 604_800)],
)
def test_a_time_ago(text: str, seconds: float) -> None:
    before = (time.time() - seconds) * 1000
    assert before - 1 <= timestamp_ms(text) <= (time.time() - seconds) * 1000 + 1


@pytest.mark.parametrize("text", ["", "10m", "-10y", "noon", "-m", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        timestamp_ms(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("Beginning", Position("earliest")),
        ("end", Position("latest")),
        ("latest", Position("latest")),
        ("0", Position("offset", 0)),
        ("-7", Position("before_end", 7)),
        ("1970-01-01", Position("time", 0)),
    ],
)
def test_positions(text: str, position: Position) -> None:
    assert Position.parse(text) == position


def test_iso_shows_milliseconds() -> None:
    assert iso(1_500) == "1970-01-01T00:00:01.500Z"
    assert timestamp_ms(iso(1_700_000_000_123)) == 1_700_000_000_123
    assert timestamp_ms(iso(-1)) == -1


@pytest.mark.parametrize("milliseconds", [10**15, 10**18, 2**63 - 1, -(10**15), -(2**63)])
def test_what_no_calendar_has_is_shown_as_the_number(milliseconds: int) -> None:
    assert iso(milliseconds) == str(milliseconds)


def test_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "thing") == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1", ""):
        with pytest.raises(UsageError, match="name=value"):
            pairs([bad], "thing")


@pytest.mark.parametrize(
    "command",
    [
        "topic create",
        "topic create t -X client.id=",
        "produce --create",
        "consume t --group",
        "group describe",
        "group delete --yes",
        "group reset --to latest --topic t --yes",
        "produce t --header",
    ],
)
def test_names_that_are_no_text(command: str, penstock_command: Penstock) -> None:
    *words, last = command.split(" ")
    odd = os.fsdecode(b"\xff=v")
    typed = [*words, last + odd] if last.endswith("=") else [*words, last, odd]
    assert "is not UTF-8" in penstock_command.fails(*typed, code=2)


def test_topics_with_partitions() -> None:
    assert topic_partitions(["a", "b:0,2", "b:1"]) == {"a": None, "b": {0, 1, 2}}
    assert topic_partitions(["a:1", "a", "a:2"]) == {"a": None}
    with pytest.raises(UsageError):
        topic_partitions(["a:x"])
