"""Bytes that are no request close their connection, with one log line, and are nobody else's trouble."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.testing import ThreadBroker, broker
from tests.kafka.batches import make_batch
from tests.kafka.tagging import uvarint
from tests.kafka.wire import Wire, encode, fetch, frame, produce, request, sized

METADATA, OFFSET_FETCH = 3, 9
LONG = uvarint(32_769) + b"x" * 32_768  # a compact string, one byte longer than Kafka lets one be
HUGE = b"\xff\xff\xff\xff\x0f"  # the largest unsigned varint of five bytes


def header(key: int, version: int, client_id_size: int = -1) -> bytes:
    return struct.pack(">hhih", key, version, 1, client_id_size)


def flexible(key: int, version: int) -> bytes:
    return header(key, version) + b"\x00"


CASES = {
    "a negative size": struct.pack(">i", -1),
    "the smallest size": struct.pack(">i", -(2**31)),
    "no bytes": struct.pack(">i", 0),
    "too few for a header": sized(bytes(9)),
    "more than the broker takes": struct.pack(">i", 100 * 1024 * 1024 + 1),
    "the largest size": struct.pack(">i", 2**31 - 1),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS handshake": bytes.fromhex("160301020001000001fc0303") + bytes(200),
    "an API that nobody has": sized(header(4242, 0)),
    "a negative API key": sized(header(-1, 0)),
    "an API that is not served": sized(header(4, 0)),
    "a version too new": sized(header(METADATA, 99)),
    "a negative version": sized(header(METADATA, -1)),
    "a Produce that is too old": sized(header(0, 2)),
    "a client id beyond the end": sized(header(METADATA, 1, 500)),
    "a client id of negative length": sized(header(METADATA, 1, -2) + b"\xff" * 4),
    "header tags beyond the end": sized(header(METADATA, 9) + b"\x01\x00\x7f"),
    "header tags without end": sized(header(METADATA, 9) + HUGE),
    "a huge legacy array": sized(header(METADATA, 1) + struct.pack(">i", 2**31 - 1)),
    "a huge compact array": sized(flexible(METADATA, 9) + HUGE),
    "a varint without end": sized(flexible(METADATA, 9) + b"\xff" * 50),
    "a nested huge array": sized(
        header(OFFSET_FETCH, 1) + struct.pack(">h1sih1si", 1, b"g", 1, 1, b"t", 2**31 - 1)
    ),
    "a string longer than one may be": sized(flexible(10, 3) + LONG + b"\x00\x00"),
    "a Produce of a topic whose name is too long": sized(
        flexible(0, 9) + b"\x00" + bytes(6) + b"\x02" + LONG + b"\x01\x00\x00"
    ),
    "a huge string": sized(flexible(18, 3) + HUGE),
    "a string that is no text": sized(header(OFFSET_FETCH, 1) + b"\x00\x01\xff" + bytes(4)),
    "a null where none may be": sized(flexible(18, 3) + b"\x00\x02a\x00"),
    "a body that is not there": sized(header(METADATA, 1)),
    "a Produce without a body": sized(header(0, 8)),
    "a Produce of huge topics": sized(header(0, 8) + b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff"),
    "a Produce of huge records": sized(
        flexible(0, 9) + b"\x00" + bytes(6) + b"\x02\x02t\x02" + bytes(4) + HUGE
    ),
    "a Produce topic that is no text": sized(
        header(0, 8) + b"\xff\xff" + bytes(6) + b"\x00\x00\x00\x01\x00\x01\xff\x00\x00\x00\x00"
    ),
    "a Fetch without a body": sized(header(1, 12) + b"\x00"),
    "a Fetch of huge topics": sized(flexible(1, 12) + bytes(25) + HUGE),
    "a Fetch that forgets too much": sized(
        header(1, 11) + bytes(25) + bytes(4) + b"\x00\x00\x00\x01\x00\x01t\x00\x0f\xff\xff"
    ),
    "an id that is cut off": sized(flexible(1, 13) + bytes(25) + b"\x02" + bytes(10)),
}


class Line:
    """The broker's log lines about one connection."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def about(self, wire: Wire) -> list[logging.LogRecord]:
        peer = f"peer={wire.peer} "
        return [item for item in self._caplog.records if peer in item.getMessage() + " "]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Line:
    caplog.set_level(logging.INFO)
    return Line(caplog)


@pytest.fixture
def bystander(shared: ThreadBroker) -> Iterator[Wire]:
    with Wire(shared.bootstrap) as connection:
        connection.ask(request("api_versions", 0))
        yield connection


@pytest.mark.parametrize("case", CASES)
def test_it_closes_its_connection_with_one_log_line_and_nothing_else(
    shared: ThreadBroker, bystander: Wire, log: Line, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    with Wire(shared.bootstrap) as wire:
        wire.send_bytes(CASES[case])
        assert wire.is_closed_by_broker()
        bystander.ask(request("api_versions", 0))
        (line,) = log.about(wire)
    assert line.levelno == logging.WARNING
    assert "closing" in line.getMessage()
    assert len(line.getMessage()) < 600
    assert not [item for item in caplog.records if item.exc_info]


def test_requests_before_the_malformed_one_are_answered(
    shared: ThreadBroker, topic: str, log: Line
) -> None:
    with Wire(shared.bootstrap) as wire:
        wire.send(produce(9, topic, {0: make_batch(b"x")}), request("api_versions", 0))
        wire.send_bytes(CASES["an API that nobody has"])
        assert wire.receive().responses[0].partition_responses[0].base_offset == 0
        wire.receive()
        assert wire.is_closed_by_broker()
        assert len(log.about(wire)) == 1


def test_a_request_that_is_too_large_is_refused_by_its_size_alone(shared: ThreadBroker) -> None:
    """Before a byte of it is received, let alone kept."""
    with broker(request_bytes_max=100_000) as running, Wire(running.bootstrap) as wire:
        topic = running.create_topic()
        fits = frame(produce(9, topic, {0: make_batch(b"x" * 99_000)}))
        assert len(fits) < 100_000
        wire.send_bytes(fits)
        wire.receive_frame()
        wire.send_bytes(struct.pack(">i", 100_001))
        assert wire.is_closed_by_broker()


def test_bytes_behind_a_request_are_left_alone(wire: Wire) -> None:
    """As in Kafka. What a version does not know, it does not read."""
    asked = request("heartbeat", 4, group_id="g")
    data = frame(asked)[4:] + b"more"
    wire.send_bytes(sized(data))
    wire.receive_frame()


def test_a_tagged_field_that_nobody_knows_is_ignored(wire: Wire) -> None:
    tags = uvarint(1) + uvarint(999) + uvarint(2) + b"ab"
    body = encode(request("heartbeat", 4, group_id="g"))
    assert body[-1:] == b"\x00"
    wire.send_bytes(sized(flexible(12, 4) + body[:-1] + tags))
    wire.receive_frame()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_error_that_quotes_a_long_name_is_answered(wire: Wire, topic: str, version: int) -> None:
    """Nothing is wrong with the request, and the answer must fit a string as well."""
    config = {"name": "x" * 32_767, "value": "1"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    answer = wire.ask(request("alter_configs", version, resources=[resource]))
    (result,) = answer.responses
    assert result.error_code is ErrorCode.invalid_config
    assert result.error_message.startswith("unknown topic setting 'xxx")
    assert len(result.error_message) < 32_767


def test_a_group_has_no_name_that_older_versions_can_not_tell(own: ThreadBroker) -> None:
    """One that is too long for them would keep every other group from being listed."""
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": own.create_topic(), "partitions": [partition]}]
    values = {"generation_id_or_member_epoch": -1, "topics": topics}
    with Wire(own.bootstrap) as wire, Wire(own.bootstrap) as other:
        wire.send(request("offset_commit", 8, group_id="g" * 32_768, **values))
        assert wire.is_closed_by_broker()
        other.ask(request("offset_commit", 8, group_id="g" * 32_767, **values))
        assert len(other.ask(request("list_groups", 0)).groups) == 1


def test_a_frame_cut_off_by_the_client_is_no_event(
    shared: ThreadBroker, log: Line, bystander: Wire
) -> None:
    with Wire(shared.bootstrap) as wire:
        wire.send_bytes(frame(request("api_versions", 0))[:-3])
        assert wire.is_silent(0.05)
    bystander.ask(request("api_versions", 0))
    assert log.about(wire) == []


def test_a_client_that_resets_its_connection_is_no_event(
    shared: ThreadBroker, bystander: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with Wire(shared.bootstrap) as wire:
            wire.send(*(request("metadata", 9, topics=None) for _ in range(50)))
            linger = struct.pack("ii", 1, 0)
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    bystander.ask(request("api_versions", 0))
    assert not [item for item in caplog.records if item.levelno >= logging.WARNING]


def test_garbage_of_every_kind_leaves_the_broker_as_it_was(
    shared: ThreadBroker, bystander: Wire, topic: str
) -> None:
    """All of it at once, from many connections, beside a client that goes on with its work."""
    garbage: list[Any] = list(CASES.values())
    for number in range(100):
        with Wire(shared.bootstrap) as wire:
            wire.send_bytes(garbage[number % len(garbage)])
        bystander.ask(produce(9, topic, {0: make_batch(b"x")}))
    answer = bystander.ask(fetch(12, {topic: {0: 0}}))
    assert answer.responses[0].partitions[0].high_watermark == 100


def test_an_announced_request_that_never_comes_waits_without_harm(
    shared: ThreadBroker, bystander: Wire
) -> None:
    with Wire(shared.bootstrap) as wire:
        wire.send_bytes(struct.pack(">i", 50_000_000) + b"\x00\x00")
        begun = time.monotonic()
        bystander.ask(request("api_versions", 0))
        assert time.monotonic() - begun < 5
        assert wire.is_silent(0.05)
