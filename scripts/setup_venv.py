# ruff: noqa: T201
"""Create a virtual environment with Penstock and its development tools: `setup_venv.py DIRECTORY`.

Spark needs Java. If the machine has none that is new enough, one is installed from PyPI, into the
environment like everything else.

Runs on any Python 3 that is there, to say clearly when it is too old. Shows what it does
in one changing line on a terminal; pip's own words are shown only when it fails.
"""

from __future__ import annotations

import subprocess
import sys
import time
import venv

OLDEST = (3, 11)
# Ends with 1 where there is no Java that Spark can run on.
ASK_FOR_JAVA = """
import sys
from penstock.spark.java import JavaNotFoundError, ensure_java
try:
    ensure_java()
except JavaNotFoundError:
    sys.exit(1)
"""


def main() -> int:
    if sys.version_info < OLDEST:
        print(
            "Penstock needs Python {}.{} or newer; this is {}.{}. Try: make PYTHON=python3.12".format(
                *OLDEST, *sys.version_info[:2]
            ),
            file=sys.stderr,
        )
        return 1
    directory = sys.argv[1]
    began = time.monotonic()
    print(f"Setting up {directory} (once; about a minute) …", flush=True)
    venv.create(directory, with_pip=True, clear=False, symlinks=True)
    failure = install(directory)
    if failure:
        print(f"{failure}\nThe setup failed; pip's words are above.", file=sys.stderr)
        return 1
    print(f"{directory} is ready after {time.monotonic() - began:.0f} s.")
    return 0


def install(directory: str) -> str:
    """Install everything; pip's words if it failed, else nothing."""
    python = f"{directory}/bin/python"
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    failure = run([*pip, "-e", ".[spark,dev]"])
    if failure or subprocess.run([python, "-c", ASK_FOR_JAVA]).returncode == 0:
        return failure
    return run([*pip, "-e", ".[java]"])


def run(command: list[str]) -> str:
    """Run pip, showing what it does; its whole output if it failed, else nothing."""
    said = []
    terminal = sys.stdout.isatty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            words = line.split()
            if terminal and words and words[0] in {"Collecting", "Building", "Installing"}:
                step = " ".join(words[: 2 if words[0] == "Collecting" else 3]).rstrip(":")
                print(f"\r\x1b[K  {step}", end="", flush=True)
    if terminal:
        print("\r\x1b[K", end="")
    return "".join(said[-40:]) if process.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
