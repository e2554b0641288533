"""A broker in a process of its own, for the demo and for tests that kill it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import IO, Any, Final

from penstock.errors import PenstockError

_READY: Final = re.compile(r"ready in .*: kafka at (\S+), data in ")
_PORT_MIN: Final = 20_000
_EPHEMERAL_RANGE: Final = "/proc/sys/net/ipv4/ip_local_port_range"


class BrokerProcess:
    """`penstock serve` as a child process, listening on one port for all of its lives.

    It dies with this process, however this process ends. Its log goes to `log_path`. Not
    thread-safe.
    """

    def __init__(self, data_dir: str, log_path: str, settings: Mapping[str, Any]) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.bootstrap = ""  # known after the first start, the same ever after
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_text(self) -> str:
        """All that the broker logged in all of its lives."""
        with contextlib.suppress(FileNotFoundError), open(self.log_path, encoding="utf-8") as file:
            return file.read()
        return ""

    def start(self, timeout_s: float = 20.0) -> None:
        """Start it and return when it serves. `PenstockError` with its log if it does not."""
        assert not self.running, "the broker is running"
        if self.bootstrap or "addr" in self._settings:
            self._launch(self.bootstrap or self._settings["addr"], timeout_s)
            return
        for attempt in range(5):
            port = free_port()
            try:
                self._launch(f"127.0.0.1:{port}", timeout_s)
                return
            except PenstockError:
                if attempt == 4 or is_free(port):  # else someone took it since we looked
                    raise

    def kill(self) -> None:
        """End it as a power cut for the process would: SIGKILL, no chance to clean up."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def stop(self, timeout_s: float = 20.0) -> int:
        """Stop it cleanly (SIGTERM) and give its exit code; after `timeout_s` it is killed."""
        if self._process is None:
            return 0
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._process.kill()
        return self._reap()

    def _launch(self, address: str, timeout_s: float) -> None:
        command = [sys.executable, "-m", "penstock.cli.child", "serve"]
        command += _flags({**self._settings, "data_dir": self.data_dir, "addr": address})
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us; we end the broker ourselves
            )
        line = _read_line(self._process.stdout, timeout_s)
        ready = _READY.search(line)
        if ready is None:
            self._process.kill()
            self._reap()
            text = self.log_text().strip() or f"it said nothing within {timeout_s:.0f} s"
            raise PenstockError(f"the broker did not start: {text}")
        self.bootstrap = ready[1]

    def _reap(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code


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


def is_free(port: int) -> bool:
    """Whether a broker could listen on this port of 127.0.0.1 now."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
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


def _flags(settings: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, Mapping):
            flags += [f"{flag.removesuffix('s')}={key}={item}" for key, item in value.items()]
        else:
            flags.append(f"{flag}={value}")
    return flags


def _read_line(pipe: IO[bytes] | None, timeout_s: float) -> str:
    """The first line that comes within `timeout_s`; empty at the end of the stream or on silence."""
    assert pipe is not None
    deadline_s = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))
        chunk = os.read(pipe.fileno(), 4096) if ready else b""
        if not chunk:
            break
        line += chunk
    return line.decode()
