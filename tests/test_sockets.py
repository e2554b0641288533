"""How connections are tuned: at once, and on this machine without timers between packets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from penstock.client.connection import Connection, parse_bootstrap
from penstock.client.errors import BrokerUnreachable
from penstock.sockets import is_within_this_machine, tune
from penstock.testing import TestBroker

if not hasattr(socket, "TCP_CONGESTION"):
    pytest.skip("this system has no congestion control to choose", allow_module_level=True)

_NAME_BYTES = 16


@pytest.fixture
def connected() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        yield connection


class Elsewhere(socket.socket):
    """As if the other end were on another machine."""

    def getpeername(self) -> tuple[str, int]:
        return ("192.0.2.1", 9092)


def congestion_control(connection: socket.socket) -> str:
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    return name.rstrip(b"\0").decode()


def is_undelayed(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def reset(connection: socket.socket) -> None:
    """Hang up without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def use_another(connection: socket.socket) -> str:
    """Have it begin with anything but Reno, as far as the system has something else."""
    for name in ("bbr", "cubic"):
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            continue
        return name
    pytest.skip("this system allows Reno alone")


def test_a_peer_on_this_machine_is_sent_to_without_pacing_or_delay(
    connected: socket.socket,
) -> None:
    use_another(connected)
    tune(connected)
    assert congestion_control(connected) == "reno"
    assert is_undelayed(connected)


def test_a_peer_elsewhere_is_sent_to_as_the_system_says_but_without_delay(
    connected: socket.socket,
) -> None:
    with Elsewhere(fileno=connected.detach()) as connection:
        before = use_another(connection)
        tune(connection)
        assert congestion_control(connection) == before
        assert is_undelayed(connection)


def test_a_connection_that_is_not_tcp_is_left_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        tune(ours)
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"


def test_a_connection_that_is_lost_already_is_left_to_who_uses_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        reset(other)
    with connection:
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        with pytest.raises(OSError, match="not connected"):
            connection.getpeername()
        tune(connection)


def test_a_connection_that_is_lost_is_within_no_machine(connected: socket.socket) -> None:
    assert is_within_this_machine(connected)
    connected.close()
    assert not is_within_this_machine(connected)


def test_a_server_that_hangs_up_at_once_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lost(address: tuple[str, int], timeout: float) -> socket.socket:
            connection = socket.socket()
            connection.settimeout(timeout)
            connection.connect(address)
            other, _ = server.accept()
            reset(other)
            return connection

        monkeypatch.setattr(socket, "create_connection", lost)
        [address] = parse_bootstrap("{}:{}".format(*server.getsockname()))
        with pytest.raises(BrokerUnreachable):
            Connection(address, client_id="lost", timeout_ms=10_000)


def test_our_client_tunes_its_connections(penstock: TestBroker) -> None:
    [address] = parse_bootstrap(penstock.bootstrap)
    connection = Connection(address, client_id="tuned", timeout_ms=10_000)
    try:
        assert congestion_control(connection.raw) == "reno"
        assert is_undelayed(connection.raw)
    finally:
        connection.close()
