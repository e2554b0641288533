"""Spark's own Kafka connector, fetched once by Maven into the git-ignored `bench/.cache/`."""

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from bench.jars import BENCH, JarsUnavailableError

_POM = Path(__file__).parent / "pom.xml"
# The connector's helper for delegation tokens, unused here: where a repository lacks the one of the
# same version, this one does.
_TOKEN_VERSION = "4.0.0"


def spark_version() -> str:
    return metadata.version("pyspark")


def connector() -> list[str]:
    """The jars of the connector for the installed PySpark."""
    if shutil.which("mvn") is None:
        raise JarsUnavailableError("the benchmark needs `mvn` on the PATH")
    complete = BENCH / ".cache" / f"spark-kafka-{spark_version()}"
    if not complete.is_dir():
        partial = complete.with_suffix(".partial")
        said = ""
        for token_version in (spark_version(), _TOKEN_VERSION):
            shutil.rmtree(partial, ignore_errors=True)
            done = _fetch(partial, token_version)
            if done.returncode == 0:
                partial.rename(complete)
                break
            said += done.stdout + done.stderr
        else:
            raise JarsUnavailableError(f"Maven failed:\n{said}")
    return sorted(str(path) for path in complete.glob("*.jar"))


def _fetch(directory: Path, token_version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *("mvn", "--batch-mode", "--quiet", "--file", str(_POM)),
            *("dependency:copy-dependencies", "-DincludeScope=runtime"),
            f"-DoutputDirectory={directory}",
            *(f"-Dspark.version={spark_version()}", f"-Dtoken.version={token_version}"),
        ],
        capture_output=True,
        text=True,
    )
