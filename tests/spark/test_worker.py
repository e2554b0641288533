"""What is done in a worker of Spark's around our tasks."""

from __future__ import annotations

import pickle
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from penstock.spark.worker import Travels

_UNACKNOWLEDGED = struct.Struct("=24xI")  # tcpi_unacked in the struct tcp_info of <linux/tcp.h>


class Task(Travels):
    def __init__(self) -> None:
        self.number = 7


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Spark's end of a connection and ours, which have talked for a while."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sparks = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with sparks, ours:
        for _ in range(32):  # a fresh connection acknowledges all at once by itself
            sparks.sendall(b"task")
            ours.recv(4, socket.MSG_WAITALL)
            ours.sendall(b"done")
            sparks.recv(4, socket.MSG_WAITALL)
        yield sparks, ours


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let us ask for it")
def test_the_arrival_of_a_task_is_acknowledged_at_once(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    sparks, ours = ends
    sent, waiting = pickle.dumps(Task()), []
    for _ in range(20):
        sparks.sendall(sent)
        task = pickle.loads(ours.recv(len(sent), socket.MSG_WAITALL))
        assert task.number == 7
        info = sparks.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKNOWLEDGED.size)
        waiting.append(_UNACKNOWLEDGED.unpack(info)[0])
        ours.sendall(b"done")
        sparks.recv(4, socket.MSG_WAITALL)
    assert waiting.count(0) > 15  # all of them, if nobody kept the system from its work in between
