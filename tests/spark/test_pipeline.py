"""The example project runs under `spark-pipelines run`, and goes on where it ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.java import ensure_java
from penstock.testing import ThreadBroker
from tests.spark.harness import Topic

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
TIMEOUT_S = 180


def run_pipeline(project: Path, broker: ThreadBroker) -> None:
    program = Path(sys.executable).with_name("spark-pipelines")
    environment = {
        **os.environ,
        "BROKERS": broker.bootstrap,
        "JAVA_HOME": str(ensure_java()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [str(program), "run", "--conf", "spark.ui.enabled=false"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-9_000:]


def test_the_example_runs(spark: SparkSession, penstock: ThreadBroker, tmp_path: Path) -> None:
    orders = Topic(penstock, penstock.create_topic("orders", partitions=2))
    large = Topic(penstock, penstock.create_topic("large-orders"))
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(
        spec.read_text().replace("file:///tmp/penstock-pipeline", f"file://{tmp_path}/s")
    )
    orders.write(
        f'{{"id":{n},"country":"{"CH" if n % 2 else "PE"}","amount":{n * 10}}}' for n in range(20)
    )
    run_pipeline(project, penstock)
    table = spark.read.parquet(str(project / "spark-warehouse" / "orders"))
    assert sorted(row.id for row in table.collect()) == list(range(20))
    revenue = spark.read.parquet(str(project / "spark-warehouse" / "revenue"))
    assert {row.country: (row.orders, row.amount) for row in revenue.collect()} == {
        "CH": (10, 1000.0),
        "PE": (10, 900.0),
    }
    assert len(large.read(9, partitions=[0])) == 9
