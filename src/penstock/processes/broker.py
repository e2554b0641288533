"""A broker in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.processes.guarded import GuardedProcess
from penstock.processes.ports import free_port, is_free

_READY: Final = re.compile(r"ready in .*: kafka at (\S+), data in ")
START_TIMEOUT_S: Final = 20.0


class BrokerProcess:
    """`penstock serve` as a child process, listening on one port for all of its lives.

    It dies with this process, however this process ends. Its log goes to `log_path`. `program` is
    what runs, where that is not this Python's `penstock`. Not thread-safe.
    """

    def __init__(
        self,
        data_dir: str,
        log_path: str,
        settings: Mapping[str, Any],
        program: Sequence[str] = (sys.executable, "-m", "penstock"),
    ) -> None:
        self.data_dir = data_dir
        self.log_path = log_path
        self.bootstrap = ""  # where it listens; known after the first start, the same ever after
        self._settings = dict(settings)
        self._program = tuple(program)
        self._process: GuardedProcess | None = None
        self._log_start = 0  # where this life's part of the log begins
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def address(self) -> str:
        """Where it listens, or is to listen; empty if that is left to the first start."""
        return self.bootstrap or str(self._settings.get("addr", ""))

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself, as a shell tells it; None if it runs or was stopped by us."""
        return None if self._process is None else self._process.code

    def log_text(self) -> str:
        """All that the broker logged in all of its lives."""
        return self._log_from(0)

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it and return when it serves. `PenstockError` with its log if it does not."""
        if self.address:
            self.launch()
            self.wait_ready(timeout_s)
            return
        for attempt in range(5):
            port = free_port()
            try:
                self._launch(f"127.0.0.1:{port}")
                self.wait_ready(timeout_s)
                return
            except PenstockError:
                if attempt == 4 or is_free(port):  # else someone took it since we looked
                    raise

    def launch(self) -> None:
        """Start it, and do not wait: `wait_ready` does. Its address must be known."""
        self._launch(self.address)

    def move(self, address: str) -> None:
        """Let it listen on another address from its next start on."""
        self.bootstrap = ""
        self._settings["addr"] = address

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when a launched broker serves. `PenstockError` with its log if it does not."""
        assert self._process is not None, "the broker was not launched"
        if self._is_ready:
            return
        ready = _READY.search(self._process.read_line(timeout_s))
        if ready is None:
            self.kill()
            text = self._log_from(self._log_start).strip()
            text = text or f"it said nothing within {timeout_s:.0f} s"
            raise PenstockError(f"the broker did not start: {text}")
        self.bootstrap = ready[1]
        self._is_ready = True

    def kill(self) -> None:
        """End it as a power cut for the process would: SIGKILL, no chance to clean up."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def terminate(self) -> None:
        """Ask it to stop cleanly (SIGTERM), and do not wait: `stop` does."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, timeout_s: float = 20.0) -> int:
        """Stop it cleanly (SIGTERM) and give its exit code; after `timeout_s` it is killed."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        process.wait(timeout_s)
        return process.kill()

    def pause(self) -> None:
        """Let it hang (SIGSTOP). Returns when it does."""
        assert self._process is not None, "the broker is not running"
        self._process.pause()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        assert self._process is not None, "the broker is not running"
        self._process.resume()

    def _launch(self, address: str) -> None:
        assert not self.running, "the broker is running"
        self.kill()  # lets go of one that ended by itself
        self._is_ready = False
        with contextlib.suppress(FileNotFoundError):
            self._log_start = os.path.getsize(self.log_path)
        command = [*self._program, "serve"]
        command += _flags({**self._settings, "data_dir": self.data_dir, "addr": address})
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self._process = GuardedProcess(command, log_path=self.log_path, environment=environment)

    def _log_from(self, position: int) -> str:
        with contextlib.suppress(FileNotFoundError), open(self.log_path, "rb") as file:
            file.seek(position)
            return file.read().decode(errors="replace")
        return ""


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
