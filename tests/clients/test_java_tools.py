"""Kafka's own command line tools, each run as its script does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import ProcessBroker
from tests.clients.client import Client, Message, numbered
from tests.clients.jvm import run_tool
from tests.kafka.wire import Wire, request

pytestmark = pytest.mark.java

TOOLS = "org.apache.kafka.tools"
Tool = Callable[..., str]


@pytest.fixture
def tool(java_classes: str, server: ProcessBroker) -> Tool:
    def run(name: str, *arguments: str, stdin: str = "") -> str:
        return run_tool(
            java_classes, name, "--bootstrap-server", server.bootstrap, *arguments, stdin=stdin
        )

    return run


@pytest.fixture
def rdkafka(clients: dict[str, Client]) -> Client:
    return clients["confluent-kafka"]


@pytest.fixture
def topic(rdkafka: Client, unique: Callable[[str], str]) -> str:
    """A topic with ten records a second apart in partition 0 of two."""
    name = unique("tools")
    rdkafka.create_topic(name, partitions=2)
    rdkafka.produce(
        name,
        [
            Message(key=b"k", value=message.value, timestamp_ms=1_600_000_000_000 + i * 1_000)
            for i, message in enumerate(numbered(10))
        ],
    )
    return name


def test_kafka_topics(tool: Tool, unique: Callable[[str], str], rdkafka: Client) -> None:
    name = unique("tools")
    topics = f"{TOOLS}.TopicCommand"
    tool(topics, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=9000")
    tool(topics, "--alter", "--topic", name, "--partitions", "3")
    described = tool(topics, "--describe", "--topic", name)
    assert "PartitionCount: 3" in described
    assert "Configs: retention.ms=9000" in described
    assert "Leader: 0\tReplicas: 0\tIsr: 0" in described
    tool(topics, "--delete", "--topic", name)
    assert name not in rdkafka.topics()


def test_kafka_console_producer_and_consumer(tool: Tool, unique: Callable[[str], str]) -> None:
    name = unique("tools")
    reading = [f"--reader-property={p}=true" for p in ("parse.key", "parse.headers")]
    lines = "trace:1,span:2\tkey\tvalue\ntrace:3\tother\tnext\n"
    tool(f"{TOOLS}.ConsoleProducer", "--topic", name, *reading, stdin=lines)
    printing = [
        f"--formatter-property=print.{p}=true" for p in ("headers", "key", "partition", "offset")
    ]
    consuming = ("--from-beginning", "--max-messages", "2", "--topic", name)
    output = tool(f"{TOOLS}.consumer.ConsoleConsumer", *consuming, *printing)
    assert "Partition:0\tOffset:0\ttrace:1,span:2\tkey\tvalue\n" in output
    assert "Partition:0\tOffset:1\ttrace:3\tother\tnext\n" in output


def test_kafka_consumer_groups(tool: Tool, topic: str, group: str, rdkafka: Client) -> None:
    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    consuming = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10")
    tool(f"{TOOLS}.consumer.ConsoleConsumer", *consuming)
    tool(
        groups,
        "--reset-offsets",
        "--group",
        group,
        f"--topic={topic}:0",
        "--to-offset",
        "4",
        "--execute",
    )
    described = tool(groups, "--describe", "--group", group)
    (line,) = [
        line.split()
        for line in described.splitlines()
        if f"{topic} " in line and " 0 " in line and " 4 " in line
    ]
    assert line[2:6] == ["0", "4", "10", "6"], "partition, offset, end and lag"
    tool(groups, "--delete", "--group", group)
    assert group not in rdkafka.groups()


def test_kafka_configs(tool: Tool, topic: str) -> None:
    configs = "kafka.admin.ConfigCommand"
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tool(configs, "--alter", *of_topic, "--add-config", "retention.ms=9000,segment.bytes=5000000")
    tool(configs, "--alter", *of_topic, "--delete-config", "segment.bytes")
    described = tool(configs, "--describe", *of_topic)
    assert "retention.ms=9000" in described
    assert "segment.bytes" not in described


@pytest.mark.parametrize(("time", "offset"), [("max-timestamp", 9), ("1600000003500", 4)])
def test_kafka_get_offsets(tool: Tool, topic: str, time: str, offset: int) -> None:
    output = tool(f"{TOOLS}.GetOffsetShell", "--topic", topic, "--time", time)
    assert f"{topic}:0:{offset}\n" in output


def test_kafka_delete_records(tool: Tool, topic: str, tmp_path: Path, rdkafka: Client) -> None:
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 6}], "version": 1}
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps(wanted))
    tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file))
    assert [record.offset for record in rdkafka.read_all(topic)] == [6, 7, 8, 9]


def test_kafka_reassign_partitions(
    tool: Tool, topic: str, tmp_path: Path, server: ProcessBroker
) -> None:
    """To verify is also to take away throttles, whether or not there are any."""
    with Wire(server.bootstrap) as wire:
        (broker,) = wire.ask(request("describe_cluster", 0)).brokers
    moved = {"topic": topic, "partition": 0, "replicas": [broker.broker_id], "log_dirs": ["any"]}
    file = tmp_path / "moves.json"
    file.write_text(json.dumps({"partitions": [moved], "version": 1}))
    command = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    tool(command, "--reassignment-json-file", str(file), "--execute")
    output = tool(command, "--reassignment-json-file", str(file), "--verify")
    assert f"Reassignment of partition {topic}-0 is completed." in output


def test_kafka_log_dirs(tool: Tool, topic: str, server: ProcessBroker) -> None:
    output = tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    answer = json.loads(output.splitlines()[-1])
    (directory,) = answer["brokers"][0]["logDirs"]
    assert directory["logDir"] == server.data_dir
    assert {p["partition"]: p["size"] > 0 for p in directory["partitions"]} == {
        f"{topic}-0": True,
        f"{topic}-1": False,
    }


def test_kafka_dump_log_reads_our_segments(
    java_classes: str, topic: str, server: ProcessBroker
) -> None:
    """Not through the broker: the files are Kafka's."""
    segment = Path(server.data_dir) / topic / "0" / f"{0:020d}.log"
    dumped = run_tool(
        java_classes, f"{TOOLS}.DumpLogSegments", "--files", str(segment), "--print-data-log"
    )
    assert "isvalid: true" in dumped
    assert "isvalid: false" not in dumped
    assert "| offset: 9 CreateTime: 1600000009000 keySize: 1 valueSize: 7" in dumped


def test_kafka_producer_and_consumer_perf_test(
    java_classes: str, tool: Tool, server: ProcessBroker, unique: Callable[[str], str]
) -> None:
    name = unique("tools")
    produced = run_tool(
        *(java_classes, f"{TOOLS}.ProducerPerformance", "--topic", name),
        *("--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
        *("--command-property", f"bootstrap.servers={server.bootstrap}"),
    )
    assert "20000 records sent" in produced
    consumed = tool(f"{TOOLS}.ConsumerPerformance", "--topic", name, "--num-records", "20000")
    assert ", 20000, " in consumed.splitlines()[-1]


def test_kafka_broker_api_versions(tool: Tool) -> None:
    output = tool(f"{TOOLS}.BrokerApiVersionsCommand")
    assert "Fetch(1): 4 to 18 [usable: 18]" in output
    assert "Produce(0): 0 to 13 [usable: 13]" in output


def test_kafka_client_compatibility(tool: Tool, unique: Callable[[str], str]) -> None:
    """Kafka's own check of what a broker offers, as its system tests run it."""
    name = unique("tools")
    offered = [
        f"--{what}-supported=true"
        for what in (
            *("offsets-for-times", "cluster-id", "create-topics"),
            *("describe-configs", "idempotent-producer"),
        )
    ]
    refused = ("--describe-acls-supported=false", "--expect-record-too-large-exception=false")
    output = tool(
        *(f"{TOOLS}.ClientCompatibilityTest", "--topic", name, "--num-cluster-nodes", "1"),
        *(*offered, *refused),
    )
    assert "SUCCESS" in output
