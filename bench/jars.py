"""Apache Kafka's jars, fetched once by Maven into the git-ignored `bench/.cache/`."""

import re
import shutil
import subprocess
from pathlib import Path

from bench import BenchError

BENCH = Path(__file__).parent
POM = BENCH / "pom.xml"


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
    """A class path with the pinned Kafka, fetched first when it is not in the cache.

    A directory only gets its final name when Maven has finished, so that an interrupted
    fetch is never mistaken for a complete one.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise JarsUnavailableError(f"the benchmark needs `{program}` on the PATH")
    complete = BENCH / ".cache" / f"kafka-{kafka_version()}"
    if not complete.is_dir():
        partial = complete.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        done = subprocess.run(
            [
                *("mvn", "--batch-mode", "--quiet", "--file", str(POM)),
                *("dependency:copy-dependencies", f"-DoutputDirectory={partial}"),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise JarsUnavailableError(f"Maven failed:\n{done.stdout}{done.stderr}")
        partial.rename(complete)
    return f"{complete}/*"
