"""Child processes and what the kernel knows about them (Linux)."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(*pids: int) -> float:
    """User plus system time of processes, all their threads (also ended ones) included."""
    ticks = 0
    for pid in pids:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / _TICKS_PER_S


def memory_mb(pid: int) -> tuple[float, float]:
    """(VmRSS, RssAnon) in MB (10^6 bytes).

    VmRSS also counts the pages of mapped files that happen to be in memory; RssAnon is what
    the process itself needs.
    """
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return _kib_to_mb(fields["VmRSS"]), _kib_to_mb(fields["RssAnon"])


def _kib_to_mb(field: str) -> float:
    return int(field.split()[0]) * 1024 / 1e6


def guarded(command: list[str]) -> list[str]:
    """The command, killed by the kernel when this process dies, however it dies."""
    return ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command


def spawn(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a guarded child that writes all it says to one file."""
    return subprocess.Popen(
        guarded(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )


def run(
    command: list[str], *, timeout_s: float, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a guarded child to its end, with additional environment settings."""
    return subprocess.run(
        guarded(command),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(settings or {})},
    )


def stop(child: subprocess.Popen[bytes], *, grace_s: float = 30.0) -> None:
    """SIGTERM, then SIGKILL after the grace; the child is reaped on return."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()


def settle(memory_bytes: int = 0) -> None:
    """Bring the machine to rest before a load that is going to write `memory_bytes`.

    What earlier rounds left dirty is written out, so that no round pays for another's bytes.
    Then twice as much memory, and some more, is touched and freed again by a short-lived child: on a
    virtual machine a page that the host has to supply first costs more than everything the
    broker does with it, and whether a free page is such a page is a matter of luck.
    """
    os.sync()
    if memory_bytes:
        subprocess.run(
            [sys.executable, "-c", _TOUCH, str(2 * memory_bytes + (1 << 30))], check=True
        )


def bring_in(files: Iterable[Path]) -> None:
    """Have the contents of files in the page cache, whoever reads them first.

    A machine that gives memory back to its host forgets what was not used for a minute.
    """
    into = bytearray(4 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(into):
                pass


_TOUCH = """
import mmap, sys
size = int(sys.argv[1])
memory = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
memory[::mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
"""
