"""kcat: librdkafka as the distributions have it, on the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

TIMEOUT_S = 30.0


def is_there() -> bool:
    return shutil.which("kcat") is not None


def run(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    """What kcat prints. It must succeed."""
    done = run_any(bootstrap, *arguments, stdin=stdin)
    assert done.returncode == 0, f"kcat {' '.join(arguments)} failed:\n{done.stderr}"
    return done.stdout


def run_any(bootstrap: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["kcat", "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def records(output: str) -> list[dict[str, Any]]:
    """The records of `kcat -J`: topic, partition, offset, ts, key, payload, headers."""
    return [json.loads(line) for line in output.splitlines()]


def header_pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """kcat prints headers as one flat list."""
    flat: Sequence[str] = record.get("headers", [])
    return list(zip(flat[::2], flat[1::2], strict=True))
