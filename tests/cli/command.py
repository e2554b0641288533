"""Running the `penstock` command the way a person or a script does."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, Final

# Importing typer, rich and librdkafka takes longer than what most commands do. A fork server imports
# them once; each command is still a process of its own, from `main` to its exit code.
_PROCESSES: Final = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "penstock.cli.app",
        "penstock.cli.adminapi",
        "penstock.cli.reading",
        "penstock.cli.writing",
        "pydantic",
        "rich.console",
        "rich.table",
        "tests.cli.command",
    ]
)


@dataclass
class Ran:
    """What a finished command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Penstock:
    """The command, with PENSTOCK_BOOTSTRAP set to `bootstrap`."""

    bootstrap: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "penstock", *arguments]

    def variables(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        if self.bootstrap:
            clean["PENSTOCK_BOOTSTRAP"] = self.bootstrap
        return {**clean, "COLUMNS": "100", **self.environment}

    def run(self, *arguments: str, text: str | bytes = "", timeout: float = 60) -> Ran:
        with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
            paths = [f"{scratch}/{name}" for name in ("in", "out", "err")]
            with open(paths[0], "wb") as file:
                file.write(text.encode() if isinstance(text, str) else text)
            process = _PROCESSES.Process(
                target=_run_main, args=(arguments, self.variables(), os.getcwd(), paths)
            )
            process.start()
            process.join(timeout)
            assert process.exitcode is not None, f"{arguments} still runs after {timeout} s"
            with open(paths[1], "rb") as out, open(paths[2], "rb") as err:
                return Ran(
                    process.exitcode, out.read().decode(errors="replace"), err.read().decode()
                )

    def ok(self, *arguments: str, text: str | bytes = "") -> Ran:
        """Run it and insist that it worked."""
        ran = self.run(*arguments, text=text)
        assert ran.code == 0, f"exit code {ran.code}: {ran.err}"
        return ran

    def fails(
        self, *arguments: str, code: int = 1, text: str | bytes = "", timeout: float = 60
    ) -> str:
        """Run it and insist that it fails in plain words; returns them."""
        ran = self.run(*arguments, text=text, timeout=timeout)
        assert ran.code == code, f"exit code {ran.code}: {ran.out} {ran.err}"
        assert "Traceback" not in ran.err
        assert len(ran.err.splitlines()) <= 2, ran.err
        return ran.err

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start it with pipes on all sides."""
        return subprocess.Popen(
            self.argv(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.variables(),
        )


def _run_main(
    arguments: tuple[str, ...], environment: dict[str, str], directory: str, paths: list[str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    os.dup2(os.open(paths[0], os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(paths[number], os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["penstock", *arguments]
    from penstock.cli.main import main

    main()
