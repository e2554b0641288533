"""Streams that are closed, or can not take what is written to them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import broker
from tests.cli.command import Penstock

Filled = Callable[..., str]


def in_a_shell(command: Penstock, arguments: str, redirection: str) -> tuple[int, bytes, bytes]:
    ran = subprocess.run(
        f"{shlex.join(command.argv())} {arguments} {redirection}",
        shell=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=command.variables(),
        timeout=30,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    ["topic list", "topic list --json", "topic describe {topic}", "consume {topic}", "--version"],
)
def test_without_stdout_it_works_quietly(
    penstock_command: Penstock, filled: Filled, arguments: str
) -> None:
    arguments = arguments.format(topic=filled("a"))
    assert in_a_shell(penstock_command, arguments, ">&-") == (0, b"", b"")


def test_without_stdin_there_is_nothing_to_produce_and_nobody_to_ask(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic = filled("a")
    code, out, _ = in_a_shell(penstock_command, f"produce {topic} --json", "<&-")
    assert (code, b'"records": 0' in out) == (0, True)
    code, _, err = in_a_shell(penstock_command, f"topic delete {topic}", "<&-")
    assert (code, b"Nobody can be asked" in err) == (1, True)


def test_without_stderr_it_works_and_fails_as_it_should(
    penstock_command: Penstock, filled: Filled, tmp_path: Path
) -> None:
    topic, file = filled(), tmp_path / "lines"
    file.write_text("a\n")
    assert in_a_shell(penstock_command, f"produce {topic} {file}", "2>&-") == (0, b"", b"")
    assert penstock_command.ok("consume", topic).out == "a\n"
    assert in_a_shell(penstock_command, f"consume {topic} --from 9", "2>&-") == (1, b"", b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_does_not_have_is_escaped(encoding: str, tmp_path: Path) -> None:
    data_dir = f"{tmp_path}/data"
    with broker(data_dir=data_dir) as running:
        Penstock(running.bootstrap).ok("produce", "t", "--create", text="5 €\n")
    command = Penstock(environment={"PYTHONIOENCODING": encoding})
    code, out, err = in_a_shell(command, f"log dump {data_dir} --records", "")
    assert (code, err) == (0, b"")
    assert out.endswith(b"null 5 \\u20ac\n")


def test_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    data_dir = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    with broker(data_dir=data_dir) as running:
        Penstock(running.bootstrap).ok("produce", "t", "--create", text="a\n")
    assert "udcff" in Penstock().ok("log", "verify", data_dir, "--json").out
