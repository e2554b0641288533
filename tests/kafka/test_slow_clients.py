"""Clients that do not read, do not finish, or say nothing: bounded, and nobody else's trouble."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator

import psutil
import pytest

from penstock.testing import ProcessBroker, broker_process
from tests.kafka.batches import make_batch
from tests.kafka.wire import (
    Wire,
    fetch,
    frame,
    only_partition,
    produce,
    request,
    wait_until,
    wires,
)

MIB = 1 << 20


def memory(process: ProcessBroker) -> int:
    """What the broker holds of its own, in bytes: not what the system caches of its files."""
    found = psutil.Process(process.pid).memory_info()
    return int(found.rss - found.shared)


def send_until_stuck(wire: Wire, data: bytes, quiet_s: float = 0.3) -> int:
    """Send as much as the other side takes; how much that was."""
    wire.socket.setblocking(False)
    sent, last_s = 0, time.monotonic()
    while sent < len(data) and time.monotonic() - last_s < quiet_s:
        try:
            sent += wire.socket.send(data[sent : sent + 65_536])
            last_s = time.monotonic()
        except BlockingIOError:
            time.sleep(0.005)
    wire.socket.settimeout(20)
    return sent


@contextlib.contextmanager
def responsive(process: ProcessBroker) -> Iterator[Wire]:
    """A client that is served well within the block: three requests before it and three after."""
    with Wire(process.bootstrap) as wire:
        for _ in range(3):
            wire.ask(request("api_versions", 0))
        yield wire
        for _ in range(3):
            begun = time.monotonic()
            wire.ask(request("api_versions", 0))
            assert time.monotonic() - begun < 2


def settle(bystander: Wire) -> None:
    """Wait until the broker has looked at all that others sent before: it serves everyone by turns."""
    for _ in range(20):
        bystander.ask(request("api_versions", 0))


@pytest.fixture
def topic(process: ProcessBroker) -> str:
    """With 16 MiB in one partition."""
    name = process.create_topic()
    with Wire(process.bootstrap) as wire:
        for _ in range(32):
            wire.ask(produce(9, name, {0: make_batch(b"x" * (MIB // 2))}))
    return name


def test_a_client_that_reads_nothing_is_not_listened_to_until_it_does(
    process: ProcessBroker, topic: str
) -> None:
    one = frame(fetch(12, {topic: {0: 0}}, partition_bytes=4 * MIB))
    data = b"".join(one[:8] + number.to_bytes(4, "big") + one[12:] for number in range(100_000))
    with Wire(process.bootstrap, receive_buffer_bytes=64 * 1024) as slow, responsive(process) as ok:
        before = memory(process)
        sent = send_until_stuck(slow, data)
        assert sent < len(data), "at some point the broker takes no more requests"
        assert memory(process) - before < 8 * MIB
        ok.ask(produce(9, topic, {0: make_batch(b"y")}))
        answers = 0
        while answers < min(sent // len(one), 20):  # and when it reads, all is there and in order
            assert int.from_bytes(slow.receive_frame()[:4], "big") == answers
            answers += 1


def test_many_clients_that_read_nothing_hold_little_memory(process: ProcessBroker) -> None:
    """Small records of many partitions are copied into an answer, but only so many of them."""
    name = process.create_topic(partitions=300)
    with Wire(process.bootstrap) as wire:
        wire.ask(produce(9, name, {i: make_batch(b"x" * 60_000) for i in range(300)}))
    asked = frame(fetch(12, {name: dict.fromkeys(range(300), 0)}))
    with wires(process.bootstrap, 10) as slow, responsive(process) as ok:
        before = memory(process)
        for wire in slow:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.send_bytes(asked * 3)
        settle(ok)
        assert memory(process) - before < 40 * MIB, "of 180 MB asked for"


def test_memory_follows_what_was_sent_not_what_was_announced(process: ProcessBroker) -> None:
    announced = struct.pack(">i", 100 * MIB)
    with wires(process.bootstrap, 100) as slow, responsive(process) as ok:
        before = memory(process)
        for wire in slow:
            wire.send_bytes(announced + b"\x00")
        for wire in slow[:10]:
            wire.send_bytes(bytes(300_000))
        settle(ok)
        assert memory(process) - before < 40 * MIB, "of the 10 GB announced, or the 10 MB sent"


def test_a_large_request_sent_slowly_is_a_request_like_any(process: ProcessBroker) -> None:
    name = process.create_topic(partitions=20)
    batch = make_batch(b"x" * 900_000)
    data = frame(produce(9, name, dict.fromkeys(range(20), batch)))
    with Wire(process.bootstrap) as slow, responsive(process) as other:
        for start in range(0, len(data), MIB):
            slow.send_bytes(data[start : start + MIB])
            other.ask(request("api_versions", 0))
        answer = slow.receive_frame()
        assert len(answer) > 20 * 10
        found = only_partition(other.ask(fetch(12, {name: {19: 0}})))
        assert found.high_watermark == 1


def test_a_thousand_idle_connections_cost_little_and_are_all_served(process: ProcessBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with Wire(process.bootstrap) as first:
        first.ask(request("api_versions", 0))
        files = open_files(process)
        before = memory(process)
        with wires(process.bootstrap, 1_000) as idle:
            for wire in idle:
                wire.send(request("api_versions", 0))
            for wire in idle:
                wire.receive()
            assert memory(process) - before < 25 * MIB
            assert open_files(process) >= files + 1_000
            idle[500].ask(request("api_versions", 0))
        wait_until(lambda: open_files(process) <= files, "their files are closed")
        first.ask(request("api_versions", 0))


def cpu_seconds(process: ProcessBroker) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def open_files(process: ProcessBroker) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def test_a_connection_that_says_nothing_for_long_is_closed() -> None:
    with broker_process(connection_idle_ms_max=1_000) as process:
        name = process.create_topic()
        with Wire(process.bootstrap) as idle, Wire(process.bootstrap) as busy:
            deadline_s = time.monotonic() + 1.6
            while time.monotonic() < deadline_s:
                busy.ask(fetch(12, {name: {0: 0}}, max_wait_ms=200))
            assert idle.is_closed_by_broker()
            busy.ask(request("api_versions", 0))


def test_connections_beyond_the_limit_are_closed_and_the_others_served() -> None:
    with broker_process(connections_max=5) as process, wires(process.bootstrap, 5) as allowed:
        for wire in allowed:
            wire.ask(request("api_versions", 0))
        with Wire(process.bootstrap) as refused:
            assert refused.is_closed_by_broker()
        for wire in allowed:
            wire.ask(request("api_versions", 0))
        allowed[0].close()

        def is_served() -> bool:
            with Wire(process.bootstrap) as again:
                again.send(request("api_versions", 0))
                with contextlib.suppress(ConnectionError):
                    again.receive()
                    return True
            return False

        wait_until(is_served, "a place that became free is taken")


def test_without_file_descriptors_those_connected_are_served(process: ProcessBroker) -> None:
    """The broker does not spin, and takes connections again when it can."""
    with Wire(process.bootstrap) as wire:
        wire.ask(request("api_versions", 0))
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (open_files(process), limits[1]))
        with Wire(process.bootstrap) as waiting:
            waiting.send(request("api_versions", 0))
            assert waiting.is_silent(0.3)
            before = cpu_seconds(process)
            wire.ask(request("api_versions", 0))
            assert waiting.is_silent(1.0)
            assert cpu_seconds(process) - before < 0.3
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
            waiting.receive()
    assert process.log_text.count("cannot accept") == 1, "it is said once"
    assert "Traceback" not in process.log_text
