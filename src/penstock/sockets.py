"""What every connection of ours is set to, whoever began it: a client, a broker, a peer."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_CONGESTION: Final = getattr(socket, "TCP_CONGESTION", None)  # Linux


def tune(connection: socket.socket) -> None:
    """Send without delay, and to peers on this machine without congestion control's pacing.

    A system set to BBR spaces out packets by timers, also where no network can be congested: on
    loopback that is a third of what an answer costs, and a sink writes a twelfth slower. Reno never waits.
    One that is not TCP, or is lost already, is left as it is: who uses it will find out.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _CONGESTION and is_within_this_machine(connection):
            connection.setsockopt(socket.IPPROTO_TCP, _CONGESTION, b"reno")


def is_within_this_machine(connection: socket.socket) -> bool:
    """Whether both ends are on one machine, as far as their addresses tell. Of a lost one nobody knows."""
    try:
        ours, theirs = connection.getsockname()[0], connection.getpeername()[0]
    except OSError:
        return False
    return bool(theirs == ours or (theirs.startswith("127.") and ours.startswith("127.")))
