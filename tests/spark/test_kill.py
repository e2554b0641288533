"""`kill -9` of the driver in the middle of a batch: nothing is lost or doubled in the output table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.harness import WAIT_S, Topic, wait_until

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
RECORDS = 80_000


def start_driver(topic: Topic, table: Path, checkpoint: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.driver", topic.broker.bootstrap, topic.name]
    # A group of its own, so that the JVM and its workers can be killed with their driver.
    return subprocess.Popen(
        [*command, str(table), str(checkpoint)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def numbers(directory: Path) -> set[int]:
    return {int(one.name) for one in directory.glob("[0-9]*") if one.name.isdigit()}


def is_in_a_batch(checkpoint: Path) -> bool:
    """Two batches are done, and one more has been planned and not finished."""
    planned, done = numbers(checkpoint / "offsets"), numbers(checkpoint / "commits")
    return len(done) >= 2 and len(planned) > len(done)


def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(range(0, RECORDS, 2))
    topic.write(range(1, RECORDS, 2), partition=1)
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    driver = start_driver(topic, table, checkpoint)
    try:
        wait_until(lambda: is_in_a_batch(checkpoint) or driver.poll() is not None, "a batch runs")
        assert driver.poll() is None, "the driver has ended before it could be killed"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    planned, done = numbers(checkpoint / "offsets"), numbers(checkpoint / "commits")
    assert planned > done, "it was killed between two batches"
    driver = start_driver(topic, table, checkpoint)
    try:
        assert driver.wait(WAIT_S * 2) == 0
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    values = sorted(int(row.value) for row in spark.read.parquet(str(table)).collect())
    assert values == list(range(RECORDS))
