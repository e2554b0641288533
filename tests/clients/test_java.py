"""The official Java client. What is asked of it stands in `java/*.java`; here each scenario is a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import ProcessBroker, broker_process
from tests.clients.jvm import Scenarios

pytestmark = pytest.mark.java

SCENARIOS = [
    "admin-broker-configs",
    "admin-create-partitions",
    "admin-create-topics",
    "admin-create-topics-refused",
    "admin-delete-records",
    "admin-delete-topics",
    "admin-describe-cluster",
    "admin-describe-log-dirs",
    "admin-describe-producers",
    "admin-describe-topics",
    "admin-group-offsets",
    "admin-groups",
    "admin-list-offsets",
    "admin-topic-configs",
    "consume-fetch-sessions",
    "consume-lag",
    "consume-read-committed",
    "consume-reset-policies",
    "consume-seek",
    "consume-seek-by-time",
    "consume-small-fetches",
    "groups-commit-after-expiry",
    "groups-commit-and-resume",
    "groups-cooperative",
    "groups-cooperative-keeps-partitions",
    "groups-eager-to-cooperative",
    "groups-many-members",
    "groups-new-partitions",
    "groups-pattern",
    "groups-range",
    "groups-roundrobin",
    "groups-session-expiry",
    "groups-static-fencing",
    "groups-static-removal",
    "groups-static-restart",
    "groups-sticky",
    "records-acks-0",
    "records-acks-1",
    "records-acks-all",
    "records-auto-creation",
    "records-default-producer",
    "records-headers-and-nulls",
    "records-idempotent",
    "records-invalid-topic",
    "records-largest",
    "records-timestamps",
    "records-too-large",
    "records-too-large-batch-is-split",
]
ELSEWHERE = ("exchange", "list", "not-yet", "records-unknown-topic")  # in other tests


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_client_finds_that(scenario: str, java: Scenarios, server: ProcessBroker) -> None:
    java.run(scenario, bootstrap=server.bootstrap)


def test_every_scenario_is_run(java: Scenarios, server: ProcessBroker) -> None:
    found = java.run("list", bootstrap=server.bootstrap).split()
    assert [name for name in found if not name.startswith(ELSEWHERE)] == SCENARIOS


@pytest.fixture(scope="module")
def strict_server() -> Iterator[ProcessBroker]:
    with broker_process(auto_create_topics=False) as running:
        yield running


def test_an_unknown_topic_is_not_created_where_the_broker_says_so(
    java: Scenarios, strict_server: ProcessBroker
) -> None:
    java.run("records-unknown-topic", bootstrap=strict_server.bootstrap)
