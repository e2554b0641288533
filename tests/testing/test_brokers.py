"""`penstock.testing`: real brokers that end with their test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.cli.adminapi import AdminClient, ConfigResource
from penstock.errors import ConfigError, PenstockError
from penstock.processes.ports import free_port, is_free
from penstock.testing import TestBroker, broker, broker_process

QUIET: dict[str, Any] = {"log_level": 0}


def write(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def read(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(20)
        assert message is not None, f"only {values} came"
        assert message.error() is None
        values.append((message.value() or b"").decode())
    consumer.close()
    return values


def test_it_serves_and_leaves_nothing_behind() -> None:
    with broker() as b:
        topic = b.create_topic()
        write(b.bootstrap, topic, "a", "b")
        assert read(b.bootstrap, topic, 2) == ["a", "b"]
        assert os.path.isdir(b.data_dir)
    assert not os.path.exists(b.data_dir)
    assert is_free(int(b.bootstrap.rpartition(":")[2]))


def test_it_is_ready_in_less_than_300_ms() -> None:
    with broker():
        pass  # the first one in a process imports the broker
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        with broker():
            seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.3


def test_a_restart_keeps_records_and_address() -> None:
    with broker() as b:
        bootstrap, topic = b.bootstrap, b.create_topic(partitions=1)
        write(bootstrap, topic, "a")
        b.restart()
        assert b.bootstrap == bootstrap
        write(bootstrap, topic, "b")
        assert read(bootstrap, topic, 2) == ["a", "b"]
        b.stop()
        b.stop()  # harmless
        assert is_free(int(bootstrap.rpartition(":")[2]))
        b.start()
        assert read(bootstrap, topic, 2) == ["a", "b"]


@pytest.mark.parametrize("start", [broker, broker_process])
def test_retention_looks_for_old_records_rarely_unless_told_otherwise(start: Any) -> None:
    def interval_ms(**settings: Any) -> int:
        with start(**settings) as b:
            asked = ConfigResource("broker", "0")
            admin = AdminClient({**QUIET, "bootstrap.servers": b.bootstrap})
            found = admin.describe_configs([asked], request_timeout=10)[asked].result(timeout=15)
            return int(found["log.retention.check.interval.ms"].value)

    assert interval_ms() >= 3_600_000
    assert interval_ms(retention_check_interval_ms=70) == 70


def test_settings_and_a_data_directory_of_your_own(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path / "data", default_partitions=5) as b:
        assert b.data_dir == str(tmp_path / "data")
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("start", [broker, broker_process])
def test_clients_find_it_on_an_ipv6_address(start: Any) -> None:
    with start(addr="[::1]:0") as running:
        address = running.bootstrap
        assert address.startswith("[::1]:")
        running.create_topic("orders")
        running.restart()
        assert running.bootstrap == address


def test_a_bad_setting_is_raised_in_the_test() -> None:
    with pytest.raises(ConfigError, match="broker_id"), broker(broker_id=-1):
        pass


def test_brokers_live_side_by_side() -> None:
    with broker() as one, broker() as two:
        assert one.bootstrap != two.bootstrap
        one.create_topic("same")
        two.create_topic("same")
        write(one.bootstrap, "same", "in one")
        write(two.bootstrap, "same", "in two")
        assert read(one.bootstrap, "same", 1) == ["in one"]
        assert read(two.bootstrap, "same", 1) == ["in two"]


def test_a_killed_process_comes_back_with_what_it_acknowledged() -> None:
    with broker_process() as b:
        bootstrap, topic, first_pid = b.bootstrap, b.create_topic(), b.pid
        write(bootstrap, topic, "a", "b")
        b.kill()
        assert not b.running
        b.start()
        assert b.pid != first_pid
        assert b.bootstrap == bootstrap
        assert read(bootstrap, topic, 2) == ["a", "b"]
        b.restart()
        assert read(bootstrap, topic, 2) == ["a", "b"]
    assert not os.path.exists(b.data_dir)


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with (
        pytest.raises(PenstockError, match=r"the broker did not start: .*data"),
        broker_process(data_dir=tmp_path / "data"),
    ):
        pass


def test_settings_reach_the_process_and_its_log_can_be_read() -> None:
    settings = {"broker_id": 9, "auto_create_topics": False, "log_level": "debug"}
    with broker_process(**settings, topic_defaults={"retention.ms": "5000"}) as b:
        b.create_topic("orders")
        host, port = b.bootstrap.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b""
        b.stop()
        assert " penstock.kafka" in b.log_text


def test_a_process_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from penstock.testing import broker_process\n"
        "with broker_process() as b:\n"
        "    print(b.pid, b.bootstrap, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    pid, _ = parent.stdout.readline().split()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_until_gone(int(pid))


def wait_until_gone(pid: int, timeout_s: float = 20.0) -> None:
    """Wait for the end of a process that is not our child."""
    watched = os.pidfd_open(pid) if os.path.exists(f"/proc/{pid}") else None
    if watched is None:
        return
    import select

    try:
        ended, _, _ = select.select([watched], [], [], timeout_s)
        assert ended, f"process {pid} still runs"
    finally:
        os.close(watched)


def test_free_ports_are_not_those_that_clients_are_given() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        lowest = int(file.read().split()[0])
    if lowest < 21_000:
        pytest.skip("this system gives clients nearly every port")
    assert all(free_port() < lowest for _ in range(20))


def test_the_kinds_share_one_interface() -> None:
    with broker() as thread, broker_process() as process:
        brokers: list[TestBroker] = [thread, process]
        assert all(b.create_topic().startswith("topic-") for b in brokers)
