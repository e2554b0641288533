"""The physical limit: bytes from a loopback socket straight to a file, and back.

`python -m bench.limit` is the simplest program that does it: a plain sender, a plain
`recv_into` + `os.write` receiver, frames of the size of a full produce request; then the file
is sent back by `sendfile`, as a broker answers a fetch. Neither side lets congestion control space out
its packets, which some systems do on loopback, too. It prints one JSON object.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

from bench.processes import cpu_seconds
from penstock.sockets import tune

_FRAME_BYTES = 1 << 20


def receive_to_file(connection: socket.socket, path: str, total: int) -> None:
    buffer = memoryview(bytearray(_FRAME_BYTES))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    left = total
    while left:
        count = connection.recv_into(buffer)
        if not count:
            raise ConnectionError(f"the sender left {left} bytes early")
        os.write(file, buffer[:count])
        left -= count
    os.close(file)


def send_from_file(connection: socket.socket, path: str, total: int) -> None:
    file = os.open(path, os.O_RDONLY)
    sent = 0
    while sent < total:
        sent += os.sendfile(connection.fileno(), file, sent, _FRAME_BYTES)
    os.close(file)


def peer(port: int, total: int) -> None:
    """The other side: send `total` bytes, then read as many."""
    frame = os.urandom(_FRAME_BYTES)
    buffer = bytearray(_FRAME_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        tune(connection)
        for _ in range(total // _FRAME_BYTES):
            connection.sendall(frame)
        left = total
        while left:
            count = connection.recv_into(buffer)
            if not count:
                raise ConnectionError(f"the file ended {left} bytes early")
            left -= count
        connection.sendall(b"!")


def serve(path: str, total: int) -> dict[str, float]:
    """Both directions; rates in MB/s and CPU-seconds of this side for each GB."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    command = [sys.executable, "-m", "bench.limit", "--peer-of", str(port), "--bytes", str(total)]
    child = subprocess.Popen(command)
    connection, _ = listener.accept()
    tune(connection)
    connection.recv(1, socket.MSG_PEEK)
    marks = [(time.perf_counter(), cpu_seconds(os.getpid()))]
    receive_to_file(connection, path, total)
    marks.append((time.perf_counter(), cpu_seconds(os.getpid())))
    send_from_file(connection, path, total)
    connection.recv(1)
    marks.append((time.perf_counter(), cpu_seconds(os.getpid())))
    if child.wait() != 0:
        raise ConnectionError("the peer failed")
    (start, start_cpu), (middle, middle_cpu), (end, end_cpu) = marks
    return {
        "in_mb_per_s": total / 1e6 / (middle - start),
        "in_cpu_s_per_gb": (middle_cpu - start_cpu) / total * 1e9,
        "out_mb_per_s": total / 1e6 / (end - middle),
        "out_cpu_s_per_gb": (end_cpu - middle_cpu) / total * 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.limit", description=__doc__)
    parser.add_argument("--file")
    parser.add_argument("--peer-of", type=int)
    parser.add_argument("--bytes", type=int, required=True)
    arguments = parser.parse_args()
    total = arguments.bytes // _FRAME_BYTES * _FRAME_BYTES
    if arguments.peer_of:
        peer(arguments.peer_of, total)
    else:
        print(json.dumps(serve(arguments.file, total)))


if __name__ == "__main__":
    main()
