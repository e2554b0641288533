"""The etcd that tests run: it starts, says why it does not, and never outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.testing.etcd import etcd

STARTER = """
import time
from penstock.testing.etcd import etcd
with etcd() as cluster:
    print(cluster.members[0].pid, flush=True)
    time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline_s, f"process {pid} lives on"
        time.sleep(0.01)


def test_it_is_gone_after_its_block_even_if_that_fails() -> None:
    pids: list[int] = []

    def fail() -> None:
        with etcd(members=2) as cluster:
            pids.extend(member.pid for member in cluster.members)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def test_it_is_gone_when_its_starter_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, env=environment
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert is_alive(pid)
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    wait_until_gone(pid)


def test_a_hanging_one_is_gone_too() -> None:
    with etcd() as cluster:
        pid = cluster.members[0].pid
        cluster.members[0].pause()
    wait_until_gone(pid)


def test_one_that_cannot_start_says_why_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(PenstockError, match="no-such-flag"), etcd(flags={"no-such-flag": "1"}):
        pass
    assert time.monotonic() - began < 5
