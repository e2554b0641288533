"""Options: every one is known once, checked before use, and described in the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.model import TopicPartition
from penstock.spark.admission import Admission
from penstock.spark.errors import OptionError
from penstock.spark.offsets import (
    EARLIEST,
    LATEST,
    Ago,
    BeforeEnd,
    ByPartition,
    ByTimestamp,
    Everywhere,
    check_order,
    ending_position,
    from_json,
    initial_of,
    parse_assignment,
    starting_position,
    to_json,
)
from penstock.spark.options import HARMLESS, OPTIONS, REFUSED, Options, documentation
from penstock.spark.progress import group_name
from penstock.spark.subscription import Subscription

PAGE = Path(__file__).parents[2] / "docs" / "SPARK.md"


def options(use: Any = "batch", **given: str) -> Options:
    names = {name.replace("__", "."): text for name, text in given.items()}
    return Options({"kafka.bootstrap.servers": "localhost:1", **names}, use)


def test_names_are_taken_in_any_case_and_the_brokers_by_their_short_name() -> None:
    taken = Options({"bootstrap.servers": "a:1", "STARTINGOFFSETS": "earliest"}, "batch")
    assert (taken["kafka.bootstrap.servers"], taken["startingOffsets"]) == ("a:1", "earliest")


def test_without_brokers_there_is_nothing_to_read() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers must say where"):
        Options({}, "batch")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("startingOffset", "earliest", "did you mean 'startingOffsets'"),
        ("kafka.fetch.max.byte", "1", "did you mean 'kafka.fetch.max.bytes'"),
        ("colour", "red", "docs/SPARK.md has a table"),
        ("path", "orders", "topics are named by `subscribe`"),
        ("kafka.auto.offset.reset", "earliest", "use startingOffsets"),
        ("kafka.enable.auto.commit", "true", "see commitProgress"),
        ("kafka.key.deserializer", "x", "keys are bytes"),
        ("kafka.value.deserializer", "x", "values are bytes"),
        ("kafka.interceptor.classes", "x", "no Java client"),
        ("kafka.security.protocol", "SASL_SSL", "only PLAINTEXT is there yet"),
        ("minPartitions", "0", "must be at least 1"),
        ("minPartitions", "many", "must be a whole number"),
        ("maxRecordsPerPartition", "-1", "must be at least 1"),
        ("fetchBytes", "3g", "fetchBytes = '3g': must be at most 268435456"),
        ("kafka.request.timeout.ms", "2147483648", "must be at most 2147483647"),
        ("failOnDataLoss", "maybe", "must be true or false"),
        ("splitBytes", "1 parsec", "must be like"),
        ("maxTriggerDelay", "soon", "must be like 15m"),
        ("startingOffsetsByTimestampStrategy", "guess", "must be error or latest"),
        ("startingTimestamp", "yesterday", "must be a whole number"),
        ("kafka.isolation.level", "any", "must be read_uncommitted or read_committed"),
        ("topic", "x", "topic is for writing"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_hint(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError) as failure:
        options(**{name.replace(".", "__"): value})
    assert words in str(failure.value)


def test_the_largest_values_are_taken() -> None:
    taken = options(fetchBytes="256m", kafka__request__timeout__ms="2147483647")
    assert (taken["fetchBytes"], taken["kafka.request.timeout.ms"]) == (256 << 20, 2**31 - 1)


@pytest.mark.parametrize("name", [name for name in HARMLESS if name != "kafka.security.protocol"])
def test_tuning_of_the_java_client_is_accepted(name: str) -> None:
    options(**{name.replace(".", "__"): "1"})


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_meaning_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="is not supported"):
        options(**{name.replace(".", "__"): "1"})


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("15m", "duration", 900_000), ("500ms", "duration", 500), ("7", "duration", 7),
     ("64m", "bytes", 64 << 20), ("1024", "bytes", 1024), ("1G", "bytes", 1 << 30)],
)  # fmt: skip
def test_durations_and_sizes_have_units(text: str, kind: str, value: int) -> None:
    name = "maxTriggerDelay" if kind == "duration" else "splitBytes"
    assert options("stream", **{name: text})[name] == value


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match="a stream has no end"):
        options("stream", **{name: "1"})


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ({"startingOffsets": "earliest"}, Everywhere(EARLIEST)),
        ({"startingOffsets": " Latest "}, Everywhere(LATEST)),
        ({"startingOffsets": "-10 minutes"}, Ago(600_000)),
        ({"startingOffsets": "-2h"}, Ago(7_200_000)),
        ({"startingOffsets": "- 1 day"}, Ago(86_400_000)),
        ({"startingOffsets": "-1000"}, BeforeEnd(1000)),
        (
            {"startingOffsets": '{"a":{"0":23,"1":-2}}'},
            ByPartition({TopicPartition("a", 0): 23, TopicPartition("a", 1): -2}),
        ),
        (
            {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":5}}'},
            ByTimestamp({TopicPartition("a", 0): 5}),
        ),
        (
            {"startingTimestamp": "7", "startingOffsetsByTimestamp": '{"a":{"0":5}}'},
            ByTimestamp(7),
        ),
        ({}, Everywhere(LATEST)),
    ],
)
def test_a_timestamp_for_all_goes_before_one_for_each_and_that_before_offsets(
    given: dict[str, str], position: Any
) -> None:
    assert starting_position(options("stream", **given), stream=True) == position


@pytest.mark.parametrize(
    "text",
    ["soon", "10 minutes", "-10 fortnights", "{", "[]", '{"a":5}', '{"a":{"0":-3}}',
     '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":true}}'],
)  # fmt: skip
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        starting_position(options(startingOffsets=text), stream=False)


@pytest.mark.parametrize("text", ["latest", '{"a":{"0":-1}}'])
def test_a_batch_does_not_start_at_the_end(text: str) -> None:
    with pytest.raises(OptionError, match="can not be latest"):
        starting_position(options(startingOffsets=text), stream=False)


@pytest.mark.parametrize("text", ["earliest", '{"a":{"0":-2}}'])
def test_a_batch_does_not_end_at_the_start(text: str) -> None:
    with pytest.raises(OptionError, match="can not be earliest"):
        ending_position(options(endingOffsets=text))


def test_start_and_end_name_the_same_partitions_in_order() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("a", 1)
    with pytest.raises(OptionError, match="only one has a-1"):
        check_order(ByPartition({one: 1}), ByPartition({one: 2, two: 2}))
    with pytest.raises(OptionError, match="the start 3 is after the end 2"):
        check_order(ByPartition({one: 3}), ByPartition({one: 2}))
    with pytest.raises(OptionError, match="the start 3 is after the end 2"):
        check_order(ByTimestamp({one: 3}), ByTimestamp({one: 2}))
    check_order(ByPartition({one: 3}), ByPartition({one: LATEST}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "none is given"),
        ({"subscribe": "a", "assign": "{}"}, "not subscribe and assign"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "["}, "subscribePattern = '['"),
        ({"assign": "orders"}, "must be JSON"),
        ({"assign": '{"a":[-1]}'}, "must be JSON"),
        ({"assign": "{}"}, "names no partition"),
    ],
)
def test_exactly_one_option_says_what_to_read(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as failure:
        Subscription.from_options(options(**given))
    assert words in str(failure.value)


def test_what_to_read_is_cleaned_of_spaces_and_repetitions() -> None:
    assert Subscription.from_options(options(subscribe=" a, b,,a")).topics == ("a", "b")
    assert parse_assignment('{"b":[1,0,1],"a":[0]}') == [("a", 0), ("b", 0), ("b", 1)]


def test_the_least_per_trigger_is_not_above_the_most() -> None:
    with pytest.raises(OptionError, match="is above maxOffsetsPerTrigger"):
        Admission(options("stream", minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9"))


def test_offsets_are_json_that_the_kafka_connector_reads_too() -> None:
    offsets = {TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, TopicPartition("a", 0): 1}
    table = to_json(offsets)
    assert str(table) == "{'a': {'0': 1}, 'b': {'9': 2, '10': 3}}"
    assert from_json(table) == offsets
    assert initial_of(table) is None


def test_the_first_batch_says_where_the_query_began() -> None:
    end, begin = {TopicPartition("a", 0): 9}, {TopicPartition("a", 0): 4}
    assert from_json(to_json(end, initial=begin)) == end
    assert initial_of(to_json(end, initial=begin)) == begin
    assert initial_of(to_json(end, initial={})) == {}


def test_a_group_is_named_so_that_a_person_knows_the_query() -> None:
    reading = Subscription(topics=("orders", "refunds"))
    assert group_name(options("stream"), reading, "Night job") == "spark-Night-job-orders,refunds"
    assert group_name(options("stream", groupIdPrefix="x"), reading, "j") == "x-orders,refunds"
    assert group_name(options("stream", kafka__group__id="g"), reading, "j") == "g"
    long = Subscription(topics=tuple(f"topic-{number}" for number in range(50)))
    assert len(group_name(options("stream"), long, "j")) == 120


def test_the_page_has_every_option_with_its_default() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE))
    for line in documentation().splitlines():
        assert line in page, f"docs/SPARK.md lacks or has otherwise: {line}"
    assert rows.keys() >= {option.name for option in OPTIONS}
    for name in (*HARMLESS, *REFUSED):
        assert f"`{name}`" in page, name
