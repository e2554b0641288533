"""Where compiled kernels are kept between processes: a Spark worker must not compile at its start.

Numba keeps one file per kernel and compiles again when the kernel's own source file has changed. That
is not enough: a kernel contains the code of those it calls, from other files. So each state of this
package has a directory of its own, and kernels of different versions never meet.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from numba.core import config as numba_config

config: Any = numba_config  # its settings are made at run time


@contextlib.contextmanager
def cache_directory() -> Iterator[str | None]:
    """Let Numba keep what is compiled inside this context: where, or None if nowhere can be written."""
    before = config.CACHE_DIR
    directory = _DIRECTORY
    try:
        if directory is not None:
            config.CACHE_DIR = directory
        yield directory
    finally:
        config.CACHE_DIR = before


def _fingerprint() -> str:
    """What identifies the source of all kernels."""
    sources = (entry for entry in files(__package__).iterdir() if entry.name.endswith(".py"))
    digest = hashlib.sha256()
    for source in sorted(sources, key=lambda entry: entry.name):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _candidates() -> Iterator[str]:
    if config.CACHE_DIR:  # the user's own choice: NUMBA_CACHE_DIR
        yield config.CACHE_DIR
    yield os.path.join(os.path.dirname(__file__), "__pycache__")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield os.path.join(home, "penstock")
    # Others may write here too, and what lies in a cache is executed: hence `_is_private`.
    yield os.path.join(tempfile.gettempdir(), f"penstock-{os.getuid()}")


def _is_private(directory: str) -> bool:
    status = os.lstat(directory)
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


def _usable() -> str | None:
    """The first directory that can be written and that nobody else can have written."""
    name = f"kernels-{_fingerprint()}"
    for base in _candidates():
        try:
            os.makedirs(base, mode=0o700, exist_ok=True)
            directory = os.path.join(base, name)
            os.makedirs(directory, mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
            if _is_private(base) and _is_private(directory):
                return directory
        except OSError:
            continue
    return None


_DIRECTORY = _usable()
