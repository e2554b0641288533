"""One Spark session and one broker for all tests of a worker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bench.jars import JarsUnavailableError
from bench.spark import jars
from penstock.spark import register
from penstock.spark.java import JavaNotFoundError, ensure_java
from penstock.testing import ThreadBroker
from tests.spark.harness import Topic, session_builder


@pytest.fixture(scope="session")
def connector_jars() -> list[str]:
    """Spark's own Kafka connector, as the benchmark has it; empty if it is not to be had."""
    try:
        return jars.connector()
    except JarsUnavailableError:
        return []


@pytest.fixture(scope="session")
def spark(connector_jars: list[str]) -> Iterator[SparkSession]:
    """A session on two cores. A JVM is heavy: there is one; who needs it is marked `spark`."""
    try:
        ensure_java()
    except JavaNotFoundError as reason:
        pytest.skip(str(reason))
    builder = session_builder("penstock-tests")
    if connector_jars:
        builder = builder.config("spark.jars", ",".join(connector_jars))
    session = builder.getOrCreate()
    register(session)
    yield session
    session.stop()


@pytest.fixture
def topic(penstock_shared: ThreadBroker) -> Topic:
    """A new topic with two partitions."""
    name = penstock_shared.create_topic(f"t-{uuid.uuid4().hex[:8]}", partitions=2)
    return Topic(penstock_shared, name)
