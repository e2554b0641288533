"""A network that loses answers: what makes a producer send a batch again.

A proxy before a broker. It passes frames on, and when it is told to, it waits for the answer to a Produce
request and closes the client's connection in its place: the batch is written, and its producer does not
know. The broker must tell its clients to come here: its `advertise_addr` is the proxy's `address`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

PRODUCE = 0


class LossyProxy:
    """Start it before the broker, whose address is then `target`. `losses` is how many are to come."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        self.losses = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="lossy proxy", daemon=True).start()

    def close(self) -> None:
        _close(self._listener)
        with self._lock:
            for connection in self._open:
                _close(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            host, _, port = self.target.rpartition(":")
            broker = socket.create_connection((host, int(port)))
            with self._lock:
                self._open |= {client, broker}
            lost: set[int] = set()
            for work in (self._pass_requests, self._pass_answers):
                threading.Thread(target=work, args=(client, broker, lost), daemon=True).start()

    def _pass_requests(self, client: socket.socket, broker: socket.socket, lost: set[int]) -> None:
        with _both_closed(client, broker):
            while True:
                frame = _read_frame(client)
                key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if key == PRODUCE and self._takes_a_loss():
                    lost.add(correlation_id)
                broker.sendall(frame)

    def _pass_answers(self, client: socket.socket, broker: socket.socket, lost: set[int]) -> None:
        with _both_closed(client, broker):
            while True:
                frame = _read_frame(broker)
                (correlation_id,) = struct.unpack_from(">i", frame, 4)
                if correlation_id in lost:
                    return
                client.sendall(frame)

    def _takes_a_loss(self) -> bool:
        with self._lock:
            self.losses -= 1
            return self.losses >= 0


@contextlib.contextmanager
def _both_closed(*connections: socket.socket) -> Iterator[None]:
    try:
        yield
    except OSError:
        pass  # one of them was closed
    finally:
        for connection in connections:
            _close(connection)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _read_frame(connection: socket.socket) -> bytes:
    size = _read(connection, 4)
    return size + _read(connection, struct.unpack(">i", size)[0])


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = connection.recv(count - len(data))
        if not received:
            raise ConnectionResetError
        data += received
    return bytes(data)
