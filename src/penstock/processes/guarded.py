"""A process that never outlives the one that started it, however that one ends.

Between the two stands a shell that holds the other end of a pipe of ours. When the pipe closes, because
we closed it or died by whatever signal, the shell kills the process, even one that is stopped.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Runs a command, tells its process id, and ends as it ends, with its exit code (128 + a signal's number).
_GUARD: Final = """
exec 3<&0
"$@" 3<&- & child=$!
echo $child
{ read -r _ <&3; kill -9 $child; } 2>/dev/null & reader=$!
wait $child
code=$?
kill -9 $reader 2>/dev/null
exit $code
"""
_POLL_S: Final = 0.01


class GuardedProcess:
    """A running command; what it says on stderr goes to the end of `log_path`. Not thread-safe."""

    def __init__(
        self, command: Sequence[str], *, log_path: str, environment: Mapping[str, str]
    ) -> None:
        with open(log_path, "ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is for us; we end the process ourselves
            )
        self._unread = b""
        self.pid = int(self.read_line(60.0) or "0")  # of the command itself
        assert self.pid, "/bin/sh does not run"

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code, as a shell has it; None while it runs."""
        return self._guard.poll()

    def read_line(self, timeout_s: float) -> str:
        """The next line on stdout; empty if it ends or says nothing within `timeout_s`."""
        assert self._guard.stdout is not None
        said = self._guard.stdout.fileno()
        poll = select.poll()  # unlike select, it takes descriptors of any number
        poll.register(said, select.POLLIN)
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline_s - time.monotonic())
            chunk = os.read(said, 4096) if poll.poll(1000 * left_s) else b""
            if not chunk:
                return ""
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._send(signal.SIGTERM)

    def pause(self) -> None:
        """Let it hang (SIGSTOP): its connections stay, nothing is answered. Returns when it does."""
        os.kill(self.pid, signal.SIGSTOP)
        for _ in range(100):  # a thread may run on for a moment
            if not any(map(_is_running, Path(f"/proc/{self.pid}/task").glob("*/stat"))):
                break
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._send(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None if it still runs after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._guard.wait(timeout_s)
        return None

    def kill(self) -> int:
        """End it by SIGKILL if it runs, forget it, and give its exit code. May be repeated."""
        self._send(signal.SIGKILL)
        code = self._guard.wait()
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code

    def _send(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def describe_end(code: int) -> str:
    """An exit code of a shell in words: `was ended by SIGKILL`, `ended with exit code 1`."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"


def _is_running(stat: Path) -> bool:
    try:
        state = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:  # the thread is gone
        return False
    return state not in "TtZX"
