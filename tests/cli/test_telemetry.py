"""The broker's log lines."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from penstock.telemetry import LineFormatter, configure_logging

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}"


def line(message: str, *, colour: bool = False, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "penstock.kafka", "levelno": logging.INFO, "levelname": "INFO", "msg": message}
    )
    vars(record).update(extra)
    return LineFormatter(colour=colour).format(record)


def test_an_event_is_one_line_with_its_facts_behind_it() -> None:
    shown = line("connection closed", peer="10.0.0.7:51234", reason="idle for long", seconds=1.5)
    assert re.fullmatch(
        STAMP + r" INFO penstock\.kafka  connection closed "
        r'peer=10\.0\.0\.7:51234 reason="idle for long" seconds=1\.5',
        shown,
    )


def test_line_breaks_cannot_forge_a_line() -> None:
    shown = line("bad topic a\nb\x1b[31m", topic="x\ny")
    assert len(shown.splitlines()) == 1
    assert r"bad topic a\nb\x1b[31m" in shown
    assert r'topic="x\ny"' in shown


def test_colours_only_when_asked_for() -> None:
    assert "\x1b[32mINFO\x1b[0m" in line("hello", colour=True)
    assert "\x1b" not in line("hello")


def test_a_traceback_follows_indented() -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    first, *rest = LineFormatter().format(record).splitlines()
    assert first.endswith("failed")
    assert rest[-1] == "    ValueError: a bug"


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was afterwards."""
    root = logging.getLogger()
    handlers, level, noisy = list(root.handlers), root.level, logging.raiseExceptions
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = noisy


def test_the_level_decides_what_is_written(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging("warning", stream)
    logging.getLogger("penstock.x").info("quiet")
    logging.getLogger("penstock.x").warning("loud")
    assert [text.split("  ")[1] for text in stream.getvalue().splitlines()] == ["loud"]
    assert len(root_logger.handlers) == 1
