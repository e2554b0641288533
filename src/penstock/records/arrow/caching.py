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

import numba
from numba.core import config as numba_config

config: Any = numba_config  # its settings are made at run time


def compiled(function: Any, **options: Any) -> Any:
    """The function compiled by Numba at its first call, or loaded from where it is kept."""
    if _DIRECTORY is None:
        return numba.njit(function, **options)
    before = config.CACHE_DIR
    config.CACHE_DIR = _DIRECTORY
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # there is no source file: the package is in an archive, say
        return numba.njit(function, **options)
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
    shared = os.path.join(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    # What lies in a cache is executed, and anybody can make a directory of that name first.
    with contextlib.suppress(FileExistsError):
        os.mkdir(shared, mode=0o700)
    status = os.lstat(shared)
    if status.st_uid == os.getuid() and not status.st_mode & 0o022:
        yield shared


def _first_usable() -> str | None:
    """The first directory that can be written."""
    name = f"kernels-{_fingerprint()}"
    with contextlib.suppress(OSError):
        for base in _candidates():
            with contextlib.suppress(OSError):
                directory = os.path.join(base, name)
                os.makedirs(directory, mode=0o700, exist_ok=True)
                with tempfile.TemporaryFile(dir=directory):
                    return directory
    return None


_DIRECTORY = _first_usable()
