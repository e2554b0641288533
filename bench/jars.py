"""Apache Kafka's jars, fetched once by Maven into the git-ignored `bench/.cache/`."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench import BenchError

BENCH = Path(__file__).parent
POM = BENCH / "pom.xml"
_MAVEN_TIMEOUT_S = 600


class JarsUnavailableError(BenchError):
    """Java or Maven is missing, or Maven could not fetch what the pom names."""


def kafka_version() -> str:
    """The version pinned in the pom, for example `4.3.1`."""
    match = re.search(r"<kafka\.version>(.+?)</kafka\.version>", POM.read_text())
    assert match is not None, "bench/pom.xml names no kafka.version"
    return match[1]


def java_version() -> str:
    """The first line of `java -version`; `none` without Java."""
    if shutil.which("java") is None:
        return "none"
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[0]


def classpath() -> str:
    """A class path with the pinned Kafka, fetched first when it is not in the cache."""
    if shutil.which("java") is None:
        raise JarsUnavailableError("the benchmark needs `java` on the PATH")
    return f"{fetch(POM, f'kafka-{kafka_version()}')}/*"


def fetch(pom: Path, name: str, **properties: str) -> Path:
    """A directory of the cache with the jars that a pom names, with these properties of it.

    A directory only gets its final name when Maven has finished, so that an interrupted
    fetch is never mistaken for a complete one. Several processes may fetch the same.
    """
    complete = BENCH / ".cache" / name
    if complete.is_dir():
        return complete
    if shutil.which("mvn") is None:
        raise JarsUnavailableError("there is no `mvn` on the PATH")
    complete.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=complete.parent) as scratch:
        jars = Path(scratch) / "jars"
        try:
            done = subprocess.run(
                [
                    *("mvn", "--batch-mode", "--quiet", "--file", str(pom)),
                    *("dependency:copy-dependencies", "-DincludeScope=runtime"),
                    f"-DoutputDirectory={jars}",
                    *(f"-D{key}={value}" for key, value in properties.items()),
                ],
                capture_output=True,
                text=True,
                timeout=_MAVEN_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise JarsUnavailableError(f"Maven took more than {_MAVEN_TIMEOUT_S} s") from error
        if done.returncode != 0:
            raise JarsUnavailableError(f"Maven failed:\n{done.stdout}{done.stderr}")
        try:
            jars.rename(complete)
        except OSError:
            if not complete.is_dir():  # else another process was faster
                raise
    return complete
