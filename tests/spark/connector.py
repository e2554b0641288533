"""Spark's own Kafka connector, by Maven, of the version of Spark that runs here."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark

CACHE = Path(__file__).parents[2] / ".cache" / "java"
TIMEOUT_S = 180
TOKENS_VERSION = "4.0.0"  # of the part that is for Kerberos, which hardly ever changes
SPARK_HAS = (
    "org.apache.hadoop,org.scala-lang,org.scala-lang.modules,org.slf4j,com.google.code.findbugs"
)

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>connector</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{version}</version>
      <exclusions>
        <exclusion>
          <groupId>org.apache.spark</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
      <version>{tokens}</version>
      <exclusions>
        <exclusion>
          <groupId>*</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""


class ConnectorMissing(Exception):
    """Maven is not there, or can not fetch the connector."""


def jars() -> list[Path]:
    """The connector and what it needs besides Spark. They are kept in `.cache/java/`."""
    complete = CACHE / f"connector-{pyspark.__version__}"
    if not complete.is_dir():
        if shutil.which("mvn") is None:
            raise ConnectorMissing("there is no `mvn` on the PATH")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            try:
                _fetch(Path(scratch), tokens=pyspark.__version__)
            except ConnectorMissing:  # not every mirror has every part of every version
                _fetch(Path(scratch), tokens=TOKENS_VERSION)
            try:
                (Path(scratch) / "jars").rename(complete)
            except OSError:
                if not complete.is_dir():  # else another process was faster
                    raise
    return sorted(complete.glob("*.jar"))


def _fetch(scratch: Path, tokens: str) -> None:
    (scratch / "pom.xml").write_text(_POM.format(version=pyspark.__version__, tokens=tokens))
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(scratch / "pom.xml")]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}"]
    done = subprocess.run(
        [*command, "-DincludeScope=runtime", f"-DexcludeGroupIds={SPARK_HAS}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = next((line for line in lines if "ERROR" in line), "no reason given")
        raise ConnectorMissing(f"Maven could not fetch the connector: {reason[:300]}")
