"""`penstock demo`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.command import Penstock


@pytest.fixture
def command(tmp_path: Path) -> Penstock:
    """The command, with a directory for temporary files that the test can look into."""
    return Penstock(environment={"TMPDIR": str(tmp_path)})


def test_every_record_written_is_read_by_both_groups(command: Penstock, tmp_path: Path) -> None:
    summary = command.ok("demo", "--seconds", "2", "--rate", "500", "--json").json
    topics = summary["topics"]
    assert topics["orders"] > 0
    assert summary["produced"] == topics["orders"] + topics["payments"]
    assert summary["failed"] == 0
    assert summary["groups"]["billing"]["read"] == topics["orders"]
    assert summary["groups"]["analytics"]["read"] == summary["produced"]
    assert summary["groups"]["billing"]["lag"] == summary["groups"]["analytics"]["lag"] == 0
    assert os.listdir(tmp_path) == []


def test_without_a_terminal_it_prints_plain_lines(command: Penstock) -> None:
    out = command.ok("demo", "--seconds", "1", "--rate", "200").out
    assert "\x1b" not in out
    assert "records behind: billing" in out
    assert "The demo in numbers" in out
    assert "penstock serve" in out


def test_ctrl_c_leaves_nothing_behind(command: Penstock, tmp_path: Path) -> None:
    demo = command.start("demo", "--seconds", "60")
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith(b"A broker runs at ")
    assert demo.stdout.readline().startswith(b"  0 s  in ")
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=30)
    assert (demo.returncode, err) == (130, b"")
    assert os.listdir(tmp_path) == []
