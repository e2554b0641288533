"""The Spark job as the demo sees it: a process that is started, tells how far it is, and ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.demo.names import PER_MINUTE, REJECTED
from penstock.errors import PenstockError

_HISTORY: Final = 200


class JobFailed(PenstockError):
    """The Spark job ended before it was done. The text has its reason, if it gave one."""


@dataclass(slots=True)
class Query:
    """What one streaming query told about its batches so far."""

    batches: int = 0
    rows: int = 0
    clean: int = 0  # the first time that their order was seen, and in time
    duplicates: int = 0
    too_late: int = 0
    watermark: str = ""
    milliseconds: deque[int] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def add(self, event: dict[str, Any]) -> None:
        self.batches += 1
        self.rows += event["rows"]
        self.clean += event["clean"]
        self.duplicates += event["duplicates"]
        self.too_late += event["too_late"]
        self.watermark = event["watermark"] or self.watermark
        self.milliseconds.append(event["milliseconds"])


class JobProcess:
    """`penstock.demo.job` as a child in a session of its own. It dies with us, however we end."""

    def __init__(self, *, bootstrap: str, table: str, scratch: str, log_path: str) -> None:
        self.log_path = log_path
        self.phase = "Spark starts Java"
        self.queries = {PER_MINUTE: Query(), REJECTED: Query()}
        self._reason = ""
        self._done = False
        self._is_finishing = False
        self._process: subprocess.Popen[str] | None = None
        self._arguments = (bootstrap, table, scratch)
        self._scratch = scratch
        self._reader = threading.Thread(target=self._read, name="job-events", daemon=True)

    def start(self) -> None:
        os.makedirs(self._scratch, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.demo.job", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._scratch,  # what Spark drops where it runs is dropped there
                env=_environment(self._scratch),
                start_new_session=True,  # Ctrl-C is for us
            )
        self._reader.start()

    @property
    def is_running_queries(self) -> bool:
        """Whether the first batch is done."""
        return self.queries[PER_MINUTE].batches > 0

    @property
    def is_done(self) -> bool:
        """Whether it finished and ended, Java with it. Raises `JobFailed` if it did not get that far."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return False
        self._reader.join()
        if code != 0 or not self._done:
            raise JobFailed(self._reason or f"it ended with code {code}")
        return True

    def finish(self) -> None:
        """Ask it to read what is there, then to end. May be repeated."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._is_finishing = True
        self.phase = "the shop is closed, Spark reads the rest"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("finish\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End it and Java now, whatever they do. May be repeated, and before `start`."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._reader.join()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):
                    self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "session":
                self.phase = f"Spark {event['version']} is up and plans the query"
            case "started":
                self.phase = "Spark reads its first batch"
            case "batch":
                self.queries[event["query"]].add(event)
                if not self._is_finishing:
                    self.phase = "streaming"
            case "failed":
                self._reason = event["reason"]
            case "done":
                self._done = True


def _environment(scratch: str) -> dict[str, str]:
    """Ours, with its temporary files where they are removed, and paths that hold in any directory."""
    paths = [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(":") if one]
    return {**os.environ, "TMPDIR": scratch, "PYTHONPATH": ":".join(paths)}
