"""The directory of a local cluster: what is where, who uses it, and how to ask that one for something.

cluster.pid      the process of `penstock cluster up`, which holds a lock on this file
cluster.json     how many brokers, on which ports, with which settings: for the next start
cluster.log      what `up --detach` has to say
etcd/            etcd's data            etcd.pid, etcd.log
broker-0/        a broker's data        broker-0.pid, broker-0.log, and so on
requests/        one file for each part that is to be restarted
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.cli.failure import CommandError, UsageError

ETCD: Final = "etcd"
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a local cluster consists of."""

    brokers: int = 3
    base_port: int = 19_092
    racks: tuple[str, ...] = ()  # given to the brokers in turn
    settings: Mapping[str, str] = field(default_factory=dict)  # of every broker, as text
    etcd_port: int = 0  # 0: not chosen yet
    etcd_peer_port: int = 0

    def address(self, broker: int) -> str:
        return f"127.0.0.1:{self.base_port + broker}"

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.address, range(self.brokers)))


class ClusterDirectory:
    """A directory that `penstock cluster` keeps a local cluster in."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()

    @property
    def option(self) -> str:
        """What to type to name this directory."""
        return f"--data-dir {shlex.quote(_short(self.path))}"

    def pid_file(self, part: str) -> Path:
        return self.path / f"{part}.pid"

    def shown(self, path: Path) -> str:
        return _short(path)

    # What the cluster consists of

    def load(self) -> Plan | None:
        """The plan that was used last; None if there never was a cluster here."""
        file = self.path / "cluster.json"
        try:
            kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return Plan(**{**kept, "racks": tuple(kept["racks"])})
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise UsageError(f"{_short(self.path)} is not a directory.") from None
        except (ValueError, TypeError, KeyError):
            raise CommandError(
                f"{_short(file)} can not be read.",
                "Delete it to choose ports and settings anew; the data stay.",
            ) from None

    def known(self) -> Plan:
        """The plan of a cluster that must have been here."""
        plan = self.load()
        if plan is None:
            raise UsageError(
                f"There is no local cluster in {_short(self.path)}.",
                f"`penstock cluster up {self.option}` starts one; or name its directory with --data-dir.",
            )
        return plan

    def save(self, plan: Plan) -> None:
        content = json.dumps(asdict(plan), indent=2)
        self.write("cluster.json", content + "\n")

    def write(self, name: str, content: str) -> None:
        """A whole file, or what was there before."""
        new = self.path / f"{name}.new"
        new.write_text(content, encoding="utf-8")
        new.replace(self.path / name)

    # Who uses it

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Use it alone. `CommandError` if another process does."""
        with self._lock_file() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(
                    f"A cluster runs in {_short(self.path)} already (process {self.supervisor()}).",
                    f"`penstock cluster down {self.option}` stops it; another --data-dir makes another.",
                ) from None
            self.pid_file("cluster").write_text(f"{os.getpid()}\n", encoding="ascii")
            for stale in (self.path / "requests").glob("*"):
                stale.unlink(missing_ok=True)
            try:
                yield
            finally:
                self.pid_file("cluster").write_text("", encoding="ascii")

    def supervisor(self) -> int | None:
        """The process id of `penstock cluster up` that runs here; None if none does."""
        try:
            with open(self.pid_file("cluster"), encoding="ascii") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(lock.read().strip() or "0") or None
        except (FileNotFoundError, NotADirectoryError, ValueError):
            pass
        return None

    def running(self) -> int:
        """The same; `CommandError` if none does."""
        pid = self.supervisor()
        if pid is None:
            self.known()
            raise CommandError(
                f"The cluster in {_short(self.path)} is not running.",
                f"`penstock cluster up {self.option}` starts it with the data it has.",
            )
        return pid

    def _lock_file(self) -> Any:
        try:
            (self.path / "requests").mkdir(parents=True, exist_ok=True)
            return open(self.pid_file("cluster"), "a", encoding="ascii")
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{_short(self.path)} is not a directory.") from None
        except PermissionError as error:
            raise CommandError(f"{_short(self.path)} can not be used: {error.strerror}.") from None

    # Asking for a restart

    def ask_restart(self, part: str, timeout_s: float) -> None:
        """Have the running cluster restart a part of it; returns when that serves again."""
        request, failed = self.path / "requests" / part, self.path / "requests" / f"{part}.failed"
        failed.unlink(missing_ok=True)
        request.touch()
        os.kill(self.running(), signal.SIGUSR1)
        deadline_s = time.monotonic() + timeout_s
        while request.exists():
            self.running()
            if time.monotonic() > deadline_s:
                raise CommandError(f"{part} was not restarted within {timeout_s:.0f} s.")
            time.sleep(_POLL_S)
        if failed.exists():
            text = failed.read_text(encoding="utf-8")
            failed.unlink(missing_ok=True)
            raise CommandError(f"{part} was not restarted: {text}")

    def requests(self) -> list[str]:
        """The parts that are to be restarted, as the cluster sees them."""
        return sorted(
            file.name for file in (self.path / "requests").glob("*") if file.suffix != ".failed"
        )

    def answer(self, part: str, failure: str = "") -> None:
        if failure:
            self.write(f"requests/{part}.failed", failure)
        (self.path / "requests" / part).unlink(missing_ok=True)


def _short(path: Path) -> str:
    """As one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
