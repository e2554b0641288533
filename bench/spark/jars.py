"""Spark's own Kafka connector, fetched once by Maven into the git-ignored `bench/.cache/`."""

from importlib import metadata
from pathlib import Path

from bench.jars import JarsUnavailableError, fetch

_POM = Path(__file__).parent / "pom.xml"
# The connector's helper for delegation tokens, unused here: where a repository lacks the one of the
# same version, this one does.
_TOKEN_VERSION = "4.0.0"


def spark_version() -> str:
    return metadata.version("pyspark")


def connector() -> list[str]:
    """The jars of the connector for the installed PySpark."""
    version, name = spark_version(), f"spark-kafka-{spark_version()}"
    try:
        found = fetch(_POM, name, **{"spark.version": version, "token.version": version})
    except JarsUnavailableError:
        found = fetch(_POM, name, **{"spark.version": version, "token.version": _TOKEN_VERSION})
    return sorted(str(path) for path in found.glob("*.jar"))
