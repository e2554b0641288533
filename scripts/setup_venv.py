# ruff: noqa: T201
"""Create a virtual environment with Penstock and its development tools: `setup_venv.py DIRECTORY`.

Spark needs Java. If the machine has none that is new enough, one is installed from PyPI, into the
environment like everything else.

Runs on any Python 3 that is there, to say clearly when it is too old. Shows what it does
in one changing line on a terminal; pip's own words are shown only when it fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv

OLDEST = (3, 11)
OLDEST_JAVA = 17  # what Spark 4 runs on


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
    pip = [f"{directory}/bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
    extras = "spark,dev" if has_java() else "spark,java,dev"
    failure = run([*pip, "-e", f".[{extras}]"])
    if failure:
        print(f"{failure}\nThe setup failed; pip's words are above.", file=sys.stderr)
        return 1
    print(f"{directory} is ready after {time.monotonic() - began:.0f} s.")
    return 0


def has_java() -> bool:
    """Whether Spark would find a Java here that is new enough: that of JAVA_HOME, or of the PATH."""
    home = os.environ.get("JAVA_HOME")
    candidates = [os.path.join(home, "bin", "java")] if home else []
    candidates.append(shutil.which("java") or "")
    return any(java and java_version(java) >= OLDEST_JAVA for java in candidates)


def java_version(java: str) -> int:
    """The major version: 17 for 17.0.15, 8 for 1.8.0; 0 if this is no Java that runs."""
    try:
        done = subprocess.run(
            [java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(rb'version "(?:1\.)?(\d+)', done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else 0


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
