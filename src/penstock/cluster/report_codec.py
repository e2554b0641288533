"""A broker's report to the controller on the wire: a request of our own, which no client is told of.

The body is JSON, by topic, for it may name thousands of partitions:

    {"broker": 2, "incarnation": "…", "log_ends": {"orders": {"0": 17}},
     "high_watermarks": {"orders": {"0": 15}}, "opened": {"orders": {"0": null}}}

The answer is an error code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from penstock.cluster.controller import BrokerReport
from penstock.errors import ErrorCode
from penstock.model import TopicPartition, is_legal_topic_name
from penstock.wire import BROKER_REPORT, INT16

KEY: Final = BROKER_REPORT
VERSION: Final = 0
PARTITIONS_MAX: Final = 1_000_000  # of one report

T = TypeVar("T")


def encode_report(report: BrokerReport) -> bytes:
    value = {
        "broker": report.broker,
        "incarnation": report.incarnation,
        "log_ends": _by_topic(report.log_ends),
        "high_watermarks": _by_topic(report.high_watermarks),
        "opened": _by_topic(report.opened),
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_report(data: bytes) -> BrokerReport:
    """Raises `ValueError` if it is none."""
    try:
        value = json.loads(data)
        return BrokerReport(
            broker=_whole(value["broker"]),
            incarnation=str(value["incarnation"]),
            log_ends={p: _whole(end) for p, end in _flat(value["log_ends"]).items()},
            high_watermarks={p: _whole(hw) for p, hw in _flat(value["high_watermarks"]).items()},
            opened={
                p: None if error is None else str(error)
                for p, error in _flat(value["opened"]).items()
            },
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a report that can not be read: {error!r}") from error


def encode_answer(code: ErrorCode) -> bytes:
    return INT16.pack(int(code))


def decode_answer(data: memoryview) -> ErrorCode:
    code = INT16.unpack_from(data)[0]
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    topics: dict[str, dict[int, T]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, {})[partition] = value
    return topics


def _flat(topics: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    values: dict[TopicPartition, Any] = {}
    for topic, partitions in topics.items():
        if not is_legal_topic_name(topic):
            raise ValueError("a report names what is no topic")
        for index, value in partitions.items():
            values[TopicPartition(topic, int(index))] = value
        if len(values) > PARTITIONS_MAX:
            raise ValueError(f"a report of more than {PARTITIONS_MAX} partitions")
    return values


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value
