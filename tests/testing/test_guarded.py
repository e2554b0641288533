"""Processes that never outlive who started them."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from pathlib import Path

from penstock.processes.guarded import GuardedProcess

SELECT_MAX = 1_024  # what select(2) takes


def test_a_process_is_heard_however_many_files_its_starter_has_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * SELECT_MAX
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (fd := os.open(os.devnull, os.O_RDONLY)) < SELECT_MAX:
            stack.callback(os.close, fd)
        stack.callback(os.close, fd)
        process = GuardedProcess(
            ["/bin/echo", "here"], log_path=str(tmp_path / "log"), environment={}
        )
        stack.callback(process.kill)
        assert process.read_line(10.0) == "here"
