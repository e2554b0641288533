"""`penstock serve`: settings, signals and start errors."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from penstock.settings import BrokerConfig
from tests.cli.command import Penstock


@contextlib.contextmanager
def serving(command: Penstock, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A broker that says it is ready, with the line it says it in."""
    process = command.start("serve", *arguments)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        assert line, process.communicate()[1].decode()
        yield process, line
    finally:
        process.kill()
        process.communicate()


def listening_at(line: str) -> str:
    found = re.search(r"kafka at (\S+),", line)
    assert found is not None, line
    return found[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_says_where_it_listens_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    data = str(tmp_path / "data")
    with serving(Penstock(), "--addr", "127.0.0.1:0", "--data-dir", data) as (process, line):
        pattern = rf"penstock \S+ ready in \d+\.\d\d s: kafka at 127\.0\.0\.1:\d+, data in {data}\n"
        assert re.fullmatch(pattern, line)
        Penstock(listening_at(line)).ok("topic", "create", "orders")
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert out == b""
        assert b"Traceback" not in err


def test_a_signal_that_comes_twice_stops_it_cleanly_still(tmp_path: Path) -> None:
    flags = ["--addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with serving(Penstock(), *flags) as (process, _):
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, b"")


def test_topics_and_records_outlive_it(tmp_path: Path) -> None:
    flags = ["--addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with serving(Penstock(), *flags) as (process, line):
        Penstock(listening_at(line)).ok("produce", "orders", "--create", text="a\nb\n")
        process.terminate()
        process.wait(20)
    with serving(Penstock(), *flags) as (_, line):
        assert Penstock(listening_at(line)).ok("consume", "orders").out == "a\nb\n"


def test_flags_win_over_environment_and_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        'addr = "127.0.0.1:0"\nbroker_id = 1\ndefault_partitions = 2\n'
        f'data_dir = "{tmp_path}/data"\n[topic_defaults]\nretention.ms = 1000000\n'
    )
    command = Penstock(environment={"PENSTOCK_BROKER_ID": "5", "PENSTOCK_DEFAULT_PARTITIONS": "3"})
    with serving(command, "--config", str(file), "--broker-id", "7") as (_, line):
        client = Penstock(listening_at(line))
        client.ok("topic", "create", "orders")
        described = client.ok("topic", "describe", "orders", "--all", "--json").json["topics"][0]
    assert len(described["partitions"]) == 3
    assert described["partitions"][0]["leader"] == 7
    settings = {item["name"]: item["value"] for item in described["settings"]}
    assert settings["retention.ms"] == "1000000"


def test_topic_defaults_as_flags(tmp_path: Path) -> None:
    flags = ["--addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    flags += ["--topic-default", "retention.ms=5000", "--no-auto-create-topics"]
    with serving(Penstock(), *flags) as (_, line):
        client = Penstock(listening_at(line))
        client.ok("topic", "create", "orders")
        described = client.ok("topic", "describe", "orders", "--all", "--json").json["topics"][0]
    settings = {item["name"]: item for item in described["settings"]}
    assert settings["retention.ms"]["value"] == "5000"


def test_a_topic_default_as_a_flag_does_not_undo_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[topic_defaults]\nretention.ms = -1\n"segment.bytes" = 4096\n')
    flags = ["--config", str(file), "--addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with serving(Penstock(), *flags, "--topic-default", "segment.bytes=8192") as (_, line):
        client = Penstock(listening_at(line))
        client.ok("topic", "create", "orders")
        described = client.ok("topic", "describe", "orders", "--all", "--json").json["topics"][0]
    settings = {item["name"]: item["value"] for item in described["settings"]}
    assert (settings["retention.ms"], settings["segment.bytes"]) == ("-1", "8192")


def test_help_documents_every_setting_once() -> None:
    shown = Penstock(environment={"COLUMNS": "300"}).ok("serve", "--help").out
    for item in fields(BrokerConfig):
        flag = "--" + item.name.replace("_", "-").removesuffix("s" * (item.name[-8:] == "defaults"))
        assert flag in shown
        assert item.metadata["help"] in shown


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = Penstock().run("serve", "--addr", address, "--data-dir", str(tmp_path / "data"))
    assert ran.code in {1, 2}
    assert "Traceback" not in ran.err
    assert f"{address} is in use" in ran.err


def test_a_data_directory_that_another_broker_uses(tmp_path: Path) -> None:
    flags = ["--addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with serving(Penstock(), *flags):
        ran = Penstock().run("serve", *flags)
    assert ran.code in {1, 2}
    assert "Traceback" not in ran.err
    assert str(tmp_path / "data") in ran.err


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    ran = Penstock().run("serve", "--addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert ran.code in {1, 2}
    assert "Traceback" not in ran.err
    assert str(tmp_path / "data") in ran.err


def test_an_etcd_that_is_not_there(tmp_path: Path) -> None:
    flags = ["--addr", "127.0.0.1:0", "--data-dir", str(tmp_path), "--etcd-wait-ms", "1"]
    error = Penstock().fails("serve", *flags, "--etcd", "127.0.0.1:1", code=2, timeout=30)
    assert "etcd can not be used at 127.0.0.1:1" in error
    assert "is it running, and --etcd right?" in error


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--broker-id", "-1"], "broker_id = -1: must be 0 to 2147483647"),
        (["--addr", "nowhere"], "must be host:port"),
        (["--addr", "127.0.0.1:²"], "must be host:port"),
        (["--addr", "broker..example:9092"], "the host can be no name"),
        (["--advertise-addr", ":9092"], "must name a host and a port"),
        (["--advertise-addr", "broker:0"], "must name a host and a port"),
        (["--fetch-bytes-max", "2147483648"], "must be 1024 to 1073741824"),
        (["--etcd", "127.0.0.1:1", "--replica-fetch-bytes-max", "2147483648"], "2147483647"),
        (["--etcd", "127.0.0.1:1", "--replica-fetch-wait-ms-max", "2147483648"], "2147483647"),
        (["--log-level", "loud"], "must be one of debug, info, warning, error"),
        (["--topic-default", "retention.ms=soon"], "must be a whole number"),
        (["--topic-default", "retention.ms"], "name=value"),
        (["--config", "no-such-file.toml"], "cannot read the config file no-such-file.toml"),
    ],
)
def test_a_bad_setting_is_a_usage_error(flags: list[str], words: str) -> None:
    assert words in Penstock().fails("serve", *flags, code=2, timeout=10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("addr = ", "is not valid TOML"),
        ("rack = '\udcff'", "is not valid TOML"),
        ("no_such_setting = 1", "unknown setting 'no_such_setting'"),
        ('broker_id = "one"', "broker_id must be of type int"),
    ],
)
def test_a_bad_config_file_is_a_usage_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(os.fsencode(text))
    assert words in Penstock().fails("serve", "--config", str(file), code=2)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("PENSTOCK_BROKER_ID", "one", "PENSTOCK_BROKER_ID = 'one'"),
        ("PENSTOCK_TOPIC_DEFAULTS", "retention.ms=-1", "PENSTOCK_TOPIC_DEFAULTS is no setting"),
    ],
)
def test_a_bad_environment_variable_is_a_usage_error(name: str, text: str, words: str) -> None:
    flags = ["--addr", "127.0.0.1:0", "--data-dir", "/dev/null"]  # where no broker starts
    assert words in Penstock(environment={name: text}).fails("serve", *flags, code=2)
