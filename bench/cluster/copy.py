"""A plain copy over a loopback socket: `python -m bench.cluster.copy --file PATH --bytes N`.

One process sends the file by `sendfile`, the other one writes what it receives to a second file, which
is removed again. `--make` writes the file first, and copies nothing. Prints one JSON object.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

from bench.limit import receive_to_file, send_from_file
from bench.processes import guarded

_CHUNK_BYTES = 1 << 20


def make(path: str, total: int) -> None:
    chunk = os.urandom(_CHUNK_BYTES)
    with open(path, "wb", buffering=0) as file:
        file.writelines(chunk[: total - at] for at in range(0, total, _CHUNK_BYTES))


def copy(path: str, total: int) -> float:
    """MB/s from the start of the sending to the last byte written."""
    command = [sys.executable, "-m", "bench.cluster.copy", "--file", path, "--bytes", str(total)]
    received = f"{path}.received"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with subprocess.Popen(guarded([*command, "--to", str(port)])) as sender:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1, socket.MSG_PEEK)
                start = time.perf_counter()
                receive_to_file(connection, received, total)
                seconds = time.perf_counter() - start
    os.unlink(received)
    if sender.returncode:
        raise ConnectionError("the sender failed")
    return total / 1e6 / seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.copy", description=__doc__)
    parser.add_argument("--file")
    parser.add_argument("--make")
    parser.add_argument("--to", type=int, help="the port of the receiver")
    parser.add_argument("--bytes", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.make, arguments.bytes)
        print("{}")
    elif arguments.to:
        with socket.create_connection(("127.0.0.1", arguments.to)) as connection:
            send_from_file(connection, arguments.file, arguments.bytes)
    else:
        print(json.dumps({"mb_per_s": copy(arguments.file, arguments.bytes)}))


if __name__ == "__main__":
    main()
