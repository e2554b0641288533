"""The official Java client: jars by Maven, scenarios compiled once, and a JVM that runs them.

All of it is kept in the git-ignored `.cache/java/`. Tests in parallel take turns to fill it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCES = Path(__file__).parent / "java"
CACHE = Path(__file__).parents[2] / ".cache" / "java"
SCENARIO_TIMEOUT_S = 45.0
TOOL_TIMEOUT_S = 45.0
# Short-lived programs: do not spend their time on compiling and collecting at its best.
JVM = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")


class JavaMissing(Exception):
    """Java or Maven is not there, or Maven can not fetch the jars."""


class ScenarioFailed(AssertionError):
    """What the Java program said of it."""


def class_path() -> str:
    """The jars and the compiled scenarios, made first if they are not in the cache."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise JavaMissing(f"there is no `{program}` on the PATH")
    with _only_one():
        jars = _in_cache("jars", [SOURCES / "pom.xml"], _fetch)
        sources = sorted(SOURCES.glob("*.java"))
        classes = _in_cache(
            "classes", [SOURCES / "pom.xml", *sources], lambda to: _compile(to, jars, sources)
        )
    return f"{classes}{os.pathsep}{jars}/*"


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _in_cache(name: str, inputs: list[Path], make: Callable[[Path], None]) -> Path:
    """A directory made from these inputs. It gets its name when it is complete, and not before."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:16]
    complete = CACHE / f"{name}-{digest}"
    if not complete.is_dir():
        for stale in CACHE.glob(f"{name}-*"):
            shutil.rmtree(stale)
        partial = CACHE / f"{name}-partial"
        partial.mkdir()
        make(partial)
        partial.rename(complete)
    return complete


def _fetch(to: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(SOURCES / "pom.xml")]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={to}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = next(iter((done.stdout + done.stderr).strip().splitlines()), "no reason given")
        raise JavaMissing(f"Maven could not fetch the jars: {reason}")


def _compile(to: Path, jars: Path, sources: list[Path]) -> None:
    command = ["javac", "-Xlint:all", "-Werror", "-proc:none", "-cp", f"{jars}/*", "-d", str(to)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
    assert done.returncode == 0, f"the scenarios do not compile:\n{done.stdout}{done.stderr}"


class Scenarios:
    """A JVM that runs scenarios of `java/Driver.java`. It ends with its standard input, hence with us."""

    def __init__(self, classes: str) -> None:
        self._classes = classes
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it is there as long as the JVM

    def run(self, scenario: str, *arguments: str, bootstrap: str) -> str:
        """What the scenario returned; `ScenarioFailed` says what did not hold."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\t".join((scenario, bootstrap, *arguments)).encode() + b"\n")
        process.stdin.flush()
        line = self._read_line(process)
        outcome, _, text = line.partition("\t")
        if outcome != "@ok":
            raise ScenarioFailed(text or f"the JVM ended or hung; its log:\n{self._tail()}")
        return text

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [*JVM, "-cp", self._classes, "Driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes]) -> str:
        """One line, or nothing if it does not come in time: then the JVM is killed."""
        assert process.stdout is not None
        received = bytearray()
        deadline = time.monotonic() + SCENARIO_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                ready = selector.select(max(deadline - time.monotonic(), 0))
                data = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
                if not data:
                    self.close()
                    return ""
                received += data
        return received.decode().rstrip("\n")

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4_000:].decode(errors="replace")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def run_tool(classes: str, tool: str, *arguments: str, stdin: str = "") -> str:
    """Run one of Kafka's console tools; its output, of both kinds. It must succeed."""
    done = subprocess.run(
        [*JVM, "-cp", classes, tool, *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOOL_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{tool} {' '.join(arguments)} failed:\n{done.stdout}"
    return done.stdout
