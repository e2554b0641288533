"""`penstock log`: looking into log files, checking and mending them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.testing import broker
from tests.cli.command import Penstock

SEGMENT = "00000000000000000000.log"


def write_batches(bootstrap: str, topic: str, *values: str) -> None:
    """One batch for each value."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, value, key="k", headers={"h": "1"}, partition=0)
        assert producer.flush(20) == 0


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data directory of a stopped broker: orders (3 batches, 1 partition), clicks (2 empty)."""
    with broker(data_dir=tmp_path / "data") as b:
        b.create_topic("orders")
        b.create_topic("clicks", partitions=2)
        write_batches(b.bootstrap, "orders", "first", "second", "third")
    return tmp_path / "data"


@pytest.fixture
def damaged(data_dir: Path) -> Path:
    """The same with a byte of the second batch of orders turned over."""
    segment = data_dir / "orders" / "0" / SEGMENT
    content = bytearray(segment.read_bytes())
    content[content.index(b"second")] ^= 0xFF
    segment.write_bytes(content)
    return data_dir


def test_dump_prints_each_batch(data_dir: Path) -> None:
    shown = Penstock().ok("log", "dump", str(data_dir)).out.splitlines()
    assert len(shown) == 3
    assert shown[0].startswith(f"orders:0 {SEGMENT} at 0: offsets 0 to 0, 1 record, ")


def test_dump_prints_records_as_json_lines(data_dir: Path) -> None:
    for directory in (data_dir, data_dir / "orders" / "0"):
        lines = Penstock().ok("log", "dump", str(directory), "--records", "--json").json_lines
        assert [line["kind"] for line in lines] == ["batch", "record"] * 3
        assert all((line["topic"], line["partition"]) == ("orders", 0) for line in lines)
        batch, record = lines[2:4]
        assert (batch["first_offset"], batch["records"], batch["compression"]) == (1, 1, "none")
        assert (record["offset"], record["key"], record["value"]) == (1, "k", "second")
        assert record["headers"] == [{"key": "h", "value": "1"}]


def test_dump_shows_damage_in_its_place(damaged: Path) -> None:
    lines = Penstock().ok("log", "dump", str(damaged), "--json").json_lines
    assert [line["kind"] for line in lines] == ["batch", "damage", "batch"]
    assert "DAMAGED" in Penstock().ok("log", "dump", str(damaged)).out


def test_verify_of_a_sound_log(data_dir: Path) -> None:
    report = Penstock().ok("log", "verify", str(data_dir), "--json").json
    assert report["sound"] is True
    found = {(p["topic"], p["partition"]): p["records"] for p in report["partitions"]}
    assert found == {("clicks", 0): 0, ("clicks", 1): 0, ("orders", 0): 3}
    shown = Penstock().ok("log", "verify", str(data_dir), "--topic", "orders").out
    assert "clicks" not in shown
    assert shown.endswith("Everything is as it was written.\n")


def test_verify_finds_damage_and_says_what_to_do(damaged: Path) -> None:
    ran = Penstock().run("log", "verify", str(damaged))
    assert ran.code == 1
    assert "1 problem" in ran.out
    assert f"{damaged}/orders/0/{SEGMENT} at byte " in ran.out
    assert "penstock log repair" in ran.err
    report = Penstock().run("log", "verify", str(damaged), "--json")
    assert report.code == 1
    assert report.json["sound"] is False
    (problem,) = next(p for p in report.json["partitions"] if p["problems"])["problems"]
    assert problem["torn_tail"] is False


def test_a_torn_tail_needs_no_repair(data_dir: Path) -> None:
    segment = data_dir / "orders" / "0" / SEGMENT
    segment.write_bytes(segment.read_bytes() + b"\0" * 7)
    ran = Penstock().ok("log", "verify", str(data_dir))
    assert "a torn tail" in ran.out


def test_repair_keeps_what_it_cuts_out_and_the_broker_serves_again(damaged: Path) -> None:
    assert "--yes" in Penstock().fails("log", "repair", str(damaged))
    mended = Penstock().ok("log", "repair", str(damaged), "--yes", "--json").json["partitions"]
    assert [(p["topic"], p["partition"]) for p in mended] == [("orders", 0)]
    (kept,) = mended[0]["kept"]
    assert b"econd" in Path(kept).read_bytes()
    assert Penstock().ok("log", "verify", str(damaged), "--json").json["sound"] is True
    assert Penstock().ok("log", "repair", str(damaged), "--yes").out == "Nothing to mend.\n"
    with broker(data_dir=damaged) as b:
        lines = Penstock(b.bootstrap).ok("consume", "orders", "--json").json_lines
        write_batches(b.bootstrap, "orders", "fourth")
        after = Penstock(b.bootstrap).ok("consume", "orders", "--from", "-1", "--json").json
    assert [(line["offset"], line["value"]) for line in lines] == [(0, "first"), (2, "third")]
    assert (after["offset"], after["value"]) == (3, "fourth")


def test_a_damaged_partition_answers_with_a_clear_error_and_others_serve(damaged: Path) -> None:
    # As after a crash: no note of a clean stop, so that the broker looks at its logs.
    for note in (damaged / "orders" / "0").iterdir():
        if note.suffix != ".log":
            note.unlink()
    with broker(data_dir=damaged) as b:
        command = Penstock(b.bootstrap)
        command.ok("produce", "clicks", text="fine\n")
        assert command.ok("consume", "clicks").out == "fine\n"
        words = command.fails("consume", "orders")
        assert "penstock log verify" in words


def test_repair_keeps_away_from_a_running_broker(data_dir: Path) -> None:
    with broker(data_dir=data_dir):
        words = Penstock().fails("log", "repair", str(data_dir), "--yes")
        assert "A broker is using" in words
        partition = str(data_dir / "orders" / "0")
        assert "A broker is using" in Penstock().fails("log", "repair", partition, "--yes")
        assert Penstock().ok("log", "verify", str(data_dir), "--json").json["sound"] is True


@pytest.mark.parametrize("command", ["dump", "verify", "repair"])
def test_bad_directories(command: str, data_dir: Path, tmp_path: Path) -> None:
    assert "Cannot read" in Penstock().fails("log", command, str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "There are no partitions" in Penstock().fails("log", command, str(tmp_path / "empty"))
    words = Penstock().fails("log", command, str(data_dir), "--topic", "orders:7")
    assert "There are no partitions of orders:7" in words
