"""The parts of the demo that need no Spark."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.demo.feed import Feed
from penstock.demo.kept import Kept, NotOursError
from penstock.demo.ledger import Ledger
from penstock.demo.orders import LATE, MALFORMED, Shop
from penstock.testing import broker

OPENED = datetime.datetime(2026, 1, 1, 9, tzinfo=datetime.UTC)


def is_order(value: bytes) -> bool:
    try:
        return float(json.loads(value)["amount"]) > 0
    except ValueError:
        return False


def minutes_of(value: bytes) -> float:
    """When it was ordered, in minutes since the shop opened."""
    at = datetime.datetime.fromisoformat(json.loads(value)["at"])
    return (at - OPENED).total_seconds() / 60


def test_the_shop_counts_what_it_makes() -> None:
    shop = Shop(OPENED, sends_too_late=True)
    values = [shop.record(number / 2000)[1] for number in range(20_000)]
    orders = [value for value in values if is_order(value)]
    made = shop.made
    assert made.all == len(values)
    assert made.malformed == len(values) - len(orders)
    assert made.malformed == pytest.approx(len(values) * MALFORMED, rel=0.5)
    assert made.duplicates == len(orders) - len(set(orders)) > 0
    assert made.too_late == sum(minutes_of(value) < -30 for value in orders) > 0
    assert made.late == pytest.approx(len(values) * LATE, rel=0.2)


def test_a_second_is_a_minute_in_the_shop() -> None:
    times = []
    for second in range(3):
        _, value = Shop(OPENED).closing(second)
        times.append(datetime.datetime.fromisoformat(json.loads(value)["at"]))
    assert times[1] - times[0] == times[2] - times[1] == datetime.timedelta(minutes=1)


BOOKS = {
    "sent": 100, "unacknowledged": 0, "stored": 100, "in_table": 90, "duplicates": 5,
    "too_late": 3, "rejected": 1,
}  # fmt: skip


def test_a_feed_that_is_faster_than_the_broker_waits_for_it() -> None:
    with broker() as running:
        place = {"bootstrap.servers": running.bootstrap, "queue.buffering.max.messages": 5}
        feed = Feed(Shop(OPENED), Producer(place), rate=100_000)
        feed.start()
        deadline_s = time.monotonic() + 20
        while feed.acknowledged < 100 and not feed.is_done and time.monotonic() < deadline_s:
            time.sleep(0.01)
        feed.stop()
        while not feed.is_done and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert feed.is_done
        assert (feed.failed, feed.acknowledged) == (0, feed.shop.made.all + 1)  # the closing one
        assert feed.acknowledged > 100


def test_the_books_balance_when_every_record_is_somewhere() -> None:
    assert Ledger(**BOOKS).is_balanced


@pytest.mark.parametrize("name", BOOKS)
def test_one_record_too_many_or_too_few_is_noticed(name: str) -> None:
    assert not Ledger(**{**BOOKS, name: BOOKS[name] + 1}).is_balanced


def results(directory: Path, row: str) -> dict[str, str]:
    table, broker = directory / "made-table", directory / "made-broker"
    for path in (table, broker):
        path.mkdir()
    (table / "rows.parquet").write_text(row)
    return {"table": str(table), "broker": str(broker), "python": "python"}


def test_results_replace_those_of_the_last_demo(tmp_path: Path) -> None:
    kept = Kept(str(tmp_path / "deep" / "kept"))
    kept.check()
    kept.fill(**results(tmp_path, "first"))
    kept.check()
    kept.fill(**results(tmp_path, "second"))
    assert (Path(kept.table) / "rows.parquet").read_text() == "second"
    assert Path(kept.broker).is_dir()


def test_a_file_or_a_link_in_the_place_of_results_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(NotOursError):
            Kept(str(tmp_path / name)).check()


def test_a_place_where_no_directory_can_be_made_is_refused_before_the_demo(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotOursError, match="can not be made"):
        Kept(str(tmp_path / "file" / "deep" / "kept")).check()


def test_a_readme_of_somebody_else_may_be_in_any_encoding(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_bytes(b"caf\xe9")
    with pytest.raises(NotOursError, match="not made by"):
        Kept(str(tmp_path)).check()
