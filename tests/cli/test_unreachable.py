"""Brokers that are not there, or are no brokers: one clear line, soon."""

from __future__ import annotations

import socket
import time

import pytest

from penstock.processes.ports import free_port
from penstock.testing import broker_process
from tests.cli.command import Penstock

COMMANDS = [
    ["topic", "create", "t"],
    ["topic", "list"],
    ["topic", "describe", "t"],
    ["topic", "alter", "t", "--set", "retention.ms=1"],
    ["topic", "delete", "t", "--yes"],
    ["produce", "t"],
    ["consume", "t"],
    ["consume", "t", "--group", "g", "--follow"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "reset", "g", "--to", "latest", "--yes"],
    ["group", "delete", "g", "--yes"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nobody_listens(command: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    words = Penstock(address).fails(*command)
    assert time.monotonic() - began < 5
    assert f"No broker could be reached ({address}: connection refused)." in words
    assert "penstock serve" in words


def test_the_flag_wins_over_the_environment() -> None:
    address = f"127.0.0.1:{free_port()}"
    assert address in Penstock("127.0.0.1:1").fails("topic", "list", "--bootstrap", address)


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[6], COMMANDS[8]], ids=" ".join)
def test_someone_listens_who_is_no_broker(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        words = Penstock(address).fails(*command)
        assert time.monotonic() - began < 10
    assert f"{address} accepts connections but did not answer in time." in words


@pytest.mark.parametrize("address", ["host:port", ":9092", "127.0.0.1:99999", "127.0.0.1:²", ","])
def test_what_is_no_address(address: str) -> None:
    words = Penstock(address).fails("topic", "list", code=2)
    assert "is not the address of a broker" in words


@pytest.mark.parametrize("host", ["no-such-host.invalid", "broker..example", "x" * 64 + ".example"])
def test_a_host_that_nobody_knows(host: str) -> None:
    words = Penstock(f"{host}:9092").fails("topic", "list")
    assert f"{host}:9092: unknown host name" in words


def test_a_comma_at_the_end_is_no_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    words = Penstock(f"{address},").fails("topic", "list")
    assert f"No broker could be reached ({address}: connection refused)." in words


def test_a_broker_that_dies_half_way() -> None:
    with broker_process() as running:
        command = Penstock(running.bootstrap)
        topic = running.create_topic()
        options = ["-X", "message.timeout.ms=5000"]  # enough for the first one on a busy machine
        producing = command.start("produce", topic, *options)
        following = command.start("consume", topic, "--follow")
        assert producing.stdin is not None
        assert following.stdout is not None
        producing.stdin.write(b"a\n")
        producing.stdin.flush()
        assert following.stdout.readline() == b"a\n"
        following.kill()
        following.communicate()
        running.kill()
        _, err = producing.communicate(b"b\n", timeout=20)
    assert producing.returncode == 1
    assert f"No broker could be reached ({running.bootstrap}: connection refused)." in err.decode()
    assert "of 2 records were acknowledged before." in err.decode()
    assert "accepts connections" not in err.decode()
