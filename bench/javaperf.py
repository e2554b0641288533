"""Kafka's own load tools, `ProducerPerformance` and `ConsumerPerformance`, as second client.

With the heap and flags of the stock scripts and the client's default settings. Rates are those
that the tools print, without their warm-up records and without the time of joining a group.
"""

import re

from bench import BenchError, jars, processes
from bench.brokers import STOCK_JVM_FLAGS, Broker

_WARM_UP_SHARE = 4  # one record in four, at the start, is not counted
_TIMEOUT_S = 300
_SUMMARY = re.compile(
    r"(?P<sent>\d+) steady state records sent, (?P<rate>[\d.]+) records/sec .*"
    r" (?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99.9th"
)


class JavaToolError(BenchError):
    """A tool failed, or did not move what it was asked to move."""


def produce(broker: Broker, topic: str, *, messages: int, size: int, acks: str) -> float:
    """Messages per second after the warm-up."""
    return float(_produce(broker, topic, messages, size, -1, f"acks={acks}")["rate"])


def latency(broker: Broker, topic: str, *, messages: int, rate: int) -> dict[str, float]:
    """Percentiles in whole milliseconds at a fixed rate of 100-byte messages, linger 0."""
    found = _produce(broker, topic, messages, 100, rate, "acks=1", "linger.ms=0")
    return {key: float(found[key]) for key in ("p50", "p99", "p999")}


def _produce(
    broker: Broker, topic: str, messages: int, size: int, rate: int, *properties: str
) -> re.Match[str]:
    """The tool's summary of what came after the warm-up."""
    output = _run(
        "ProducerPerformance",
        *("--bootstrap-server", f"127.0.0.1:{broker.port}", "--topic", topic),
        *("--num-records", str(messages), "--warmup-records", str(messages // _WARM_UP_SHARE)),
        *("--record-size", str(size), "--throughput", str(rate)),
        *("--command-property", *properties),
    )
    found = _SUMMARY.search(output)
    if found is None or int(found["sent"]) != messages - messages // _WARM_UP_SHARE:
        raise JavaToolError(f"ProducerPerformance on {broker.name}:\n{output}")
    return found


def consume(broker: Broker, topic: str, *, messages: int) -> float:
    """Messages per second of fetching."""
    output = _run(
        "ConsumerPerformance",
        *("--bootstrap-server", f"127.0.0.1:{broker.port}", "--topic", topic),
        *("--num-records", str(messages), "--group", topic),
    )
    lines = [line.split(", ") for line in output.splitlines() if ", " in line]
    columns = dict(zip(lines[0], lines[-1], strict=False)) if len(lines) > 1 else {}
    if columns.get("data.consumed.in.nMsg") != str(messages):
        raise JavaToolError(f"ConsumerPerformance on {broker.name}:\n{output}")
    return float(columns["fetch.nMsg.sec"])


def _run(tool: str, *arguments: str) -> str:
    done = processes.run(
        [
            *("java", "-Xmx512M", *STOCK_JVM_FLAGS, "-cp", jars.classpath()),
            *(f"org.apache.kafka.tools.{tool}", *arguments),
        ],
        timeout_s=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise JavaToolError(f"{tool}:\n{done.stdout}{done.stderr}")
    return done.stdout
