"""Ports of this machine to listen on."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

_PORT_MIN: Final = 20_000
_EPHEMERAL_RANGE: Final = "/proc/sys/net/ipv4/ip_local_port_range"


def free_port() -> int:
    """A TCP port that nobody listens on, outside the range that outgoing connections take from.

    A client that keeps connecting to the port of a dead broker may be given that very port as its own
    end, meet itself there, and keep the broker from coming back. Ports below the range are safe.
    """
    highest = _ephemeral_start() - 1
    if highest < _PORT_MIN + 1_000:
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    choices = random.SystemRandom()
    while True:
        port = choices.randint(_PORT_MIN, highest)
        if is_free(port):
            return port


def free_ports(count: int) -> list[int]:
    """So many of them, no two the same."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a broker could listen on this port now."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return False
        return True


def _ephemeral_start() -> int:
    try:
        with open(_EPHEMERAL_RANGE, encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError):
        return 32_768
