"""The pytest plugin, used as a stranger's suite would use it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

SUITE = """
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

def topics(bootstrap):
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)

def produce(bootstrap, topic):
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, "hello")
    assert producer.flush(20) == 0

def test_one(penstock):
    produce(penstock.bootstrap, "orders")
    assert topics(penstock.bootstrap) == {"orders"}

def test_two_starts_empty(penstock):
    assert topics(penstock.bootstrap) == set()

shared = []

def test_three(penstock_shared):
    shared.append((penstock_shared.bootstrap, penstock_shared.create_topic()))

def test_four_meets_the_same_broker(penstock_shared):
    bootstrap, topic = shared[0]
    assert penstock_shared.bootstrap == bootstrap
    assert topic in topics(bootstrap)

def test_five_chooses_settings(penstock_broker):
    one = penstock_broker(default_partitions=4)
    two = penstock_broker()
    assert one.bootstrap != two.bootstrap
    produce(one.bootstrap, "orders")
    found = AdminClient({"bootstrap.servers": one.bootstrap}).list_topics(timeout=10)
    assert len(found.topics["orders"].partitions) == 4

def test_six_starts_a_cluster(penstock_cluster):
    c = penstock_cluster(brokers=2)
    topic = c.create_topic(replicas=2)
    c.leader_of(topic).kill()
    produce(c.bootstrap, topic)
"""

HEAVY = {"confluent_kafka", "uvloop", "kio", "rich", "typer", "penstock.settings"}


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = [*sys.path[:0], os.path.abspath("src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    installed = any(item.name == "penstock" for item in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "penstock.testing.plugin"]
    ran = python("-m", "pytest", "-q", *plugin, cwd=tmp_path)
    assert "6 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_plugin_costs_a_run_that_does_not_use_it_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import penstock.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    ran = python("-c", code, cwd=tmp_path)
    loaded = set(ran.stdout.split())
    assert "penstock.testing.plugin" in loaded, ran.stderr
    assert not loaded & HEAVY
