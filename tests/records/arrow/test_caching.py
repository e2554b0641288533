"""Compiled kernels are kept wherever that can be done safely, and work where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import penstock

# Decodes in a copy of the package; says where kernels were kept and whether they were found there.
PROGRAM = """
from penstock.records.arrow import caching, decode_kernels
from penstock.records.arrow.decoding import Collector
from penstock.records.decode import encode_batch
batch = encode_batch([(b"k", b"v")])
assert [piece.rows for piece in Collector(["key"], 0, 9).add(batch)] == [1]
statistics = decode_kernels.decode_records.stats
print(caching._DIRECTORY, sum(statistics.cache_hits.values()), sep="\\n")
"""


def run(root: Path, **environment: str) -> tuple[str, int]:
    """The directory and the number of hits of a fresh process that uses the copy under `root`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "PYTHONPATH": str(root),
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    directory, hits = done.stdout.split()
    return directory, int(hits)


def copy_package(root: Path) -> Path:
    """A copy of the package; the directory of its kernels."""
    source = Path(penstock.__file__).parent
    shutil.copytree(source, root / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "home").mkdir()
    (root / "tmp").mkdir()
    return root / "penstock" / "records" / "arrow"


def test_the_second_process_does_not_compile_unless_a_source_changed(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    first, hits = run(tmp_path)
    assert first.startswith(str(package))
    assert hits == 0
    assert run(tmp_path) == (first, 1)
    with (package / "memory.py").open("a") as file:
        file.write("# another version\n")
    second, hits = run(tmp_path)
    assert second != first
    assert hits == 0


def test_a_package_that_cannot_be_written_keeps_kernels_elsewhere(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    (package / "__pycache__").touch()  # no directory can be made there, not even by root
    at_home, _ = run(tmp_path)
    assert at_home.startswith(str(tmp_path / "home" / ".cache" / "penstock"))
    homeless, _ = run(tmp_path, HOME="/dev/null")
    assert homeless.startswith(str(tmp_path / "tmp"))
    assert Path(homeless).stat().st_mode & 0o777 == 0o700


def test_what_others_can_write_is_no_cache(tmp_path: Path) -> None:
    """What lies there is executed."""
    package = copy_package(tmp_path)
    (package / "__pycache__").touch()
    open_to_all = tmp_path / "tmp" / f"penstock-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    directory, hits = run(tmp_path, HOME="/dev/null")
    assert (directory, hits) == ("None", 0)


def test_the_user_s_choice_comes_first(tmp_path: Path) -> None:
    copy_package(tmp_path)
    directory, _ = run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "chosen"))
    assert directory.startswith(str(tmp_path / "chosen"))


def test_it_works_from_an_archive(tmp_path: Path) -> None:
    """As Spark ships Python code to its workers."""
    copy_package(tmp_path / "package")
    shutil.make_archive(str(tmp_path / "penstock"), "zip", tmp_path / "package")
    (tmp_path / "tmp").mkdir()
    archive = str(tmp_path / "penstock.zip")
    directory, _ = run(tmp_path, PYTHONPATH=archive)
    assert directory.startswith(str(tmp_path / "home"))
