"""A network that loses answers: what makes a producer send a batch again.

A proxy before a broker. It passes frames on, and when it is told to, it waits for the answer to a Produce
request and closes the client's connection in its place: the batch is written, and its producer does not
know. The broker must tell its clients to come here: its `advertise_addr` is the proxy's `address`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from penstock.testing.proxy import Cut, Proxies, Proxy, proxies

PRODUCE = 0


class LossyProxy:
    """Start it before the broker, whose address is then `target`. `losses` is how many are to come."""

    def __init__(self, network: Proxies) -> None:
        self._proxy = network.add(Proxy(new_filter=lambda: _LosesAnswers(self)))
        self.address = self._proxy.address
        self.losses = 0

    @property
    def target(self) -> str:
        return self._proxy.target

    @target.setter
    def target(self, address: str) -> None:
        self._proxy.target = address

    def takes_a_loss(self) -> bool:
        self.losses -= 1
        return self.losses >= 0


class _LosesAnswers:
    """Reads frames in both directions, and cuts where the answer to a chosen request would come."""

    def __init__(self, proxy: LossyProxy) -> None:
        self._proxy = proxy
        self._requests = bytearray()
        self._answers = bytearray()
        self._lost: set[int] = set()

    def from_client(self, data: bytes) -> bytes:
        passing = b""
        for frame in _frames(self._requests, data):
            key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            if key == PRODUCE and self._proxy.takes_a_loss():
                self._lost.add(correlation_id)
            passing += frame
        return passing

    def from_server(self, data: bytes) -> bytes:
        passing = b""
        for frame in _frames(self._answers, data):
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            if correlation_id in self._lost:
                raise Cut(passing)
            passing += frame
        return passing


def _frames(unread: bytearray, data: bytes) -> Iterator[bytes]:
    """The frames that are complete with `data`; the rest stays in `unread`."""
    unread += data
    while len(unread) >= 4:
        end = 4 + struct.unpack_from(">i", unread)[0]
        if len(unread) < end:
            return
        frame = bytes(unread[:end])
        del unread[:end]
        yield frame


@contextlib.contextmanager
def lossy_proxy() -> Iterator[LossyProxy]:
    with proxies() as network:
        yield LossyProxy(network)
