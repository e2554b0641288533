"""The proxies that tests put into the network."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.testing.proxy import Cut, Proxies, Proxy, proxies, proxy


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it receives."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(4096):
                connection.sendall(data)
        connection.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def network() -> Iterator[Proxies]:
    with proxies() as running:
        yield running


def connected(front: Proxy, *, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = front.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0))


def echoes(client: socket.socket, data: bytes = b"hello") -> bool:
    client.settimeout(0.3)
    try:
        client.sendall(data)
        return client.recv(100) == data
    except TimeoutError:
        return False


def test_silence_holds_bytes_back_and_delivers_them_later(network: Proxies, echo: str) -> None:
    front = network.add(Proxy(echo))
    client = connected(front)
    assert echoes(client)
    network.do(lambda: setattr(front, "silent", True))
    assert not echoes(client, b"late")
    network.do(lambda: setattr(front, "silent", False))
    client.settimeout(20)
    assert client.recv(100) == b"late"
    client.close()


def test_one_source_is_silenced_and_others_are_not(network: Proxies, echo: str) -> None:
    front = network.add(Proxy(echo))
    victim, other = connected(front, source="127.0.0.10"), connected(front, source="127.0.0.11")
    network.do(lambda: setattr(front, "silenced", frozenset({"127.0.0.10"})))
    assert echoes(other)
    assert not echoes(victim)
    assert not echoes(connected(front, source="127.0.0.10"))  # a new connection, too
    network.do(lambda: front.cut(frozenset({"127.0.0.10"})))
    victim.settimeout(20)
    with pytest.raises(ConnectionResetError):
        victim.recv(1)
    assert echoes(other)


def test_a_filter_changes_what_passes_and_cuts(network: Proxies, echo: str) -> None:
    class Shouts:
        def from_client(self, data: bytes) -> bytes:
            if data == b"bye":
                raise Cut
            return data.upper()

        def from_server(self, data: bytes) -> bytes:
            return data + b"!"

    front = network.add(Proxy(echo, new_filter=Shouts))
    client = connected(front)
    client.sendall(b"hello")
    assert client.recv(100) == b"HELLO!"
    client.sendall(b"bye")
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_target_that_is_away_resets_the_client(network: Proxies) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        target = f"127.0.0.1:{closed.getsockname()[1]}"
    front = network.add(Proxy(target))
    with pytest.raises(ConnectionResetError):
        connected(front).recv(1)


async def test_it_listens_on_the_same_port_in_all_of_its_lives(echo: str) -> None:
    async with proxy(echo) as front:
        address = front.address
        await front.stop()
        host, port = address.split(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
        await front.start()
        assert front.address == address
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello")
        assert await reader.read(100) == b"hello"
        writer.close()
