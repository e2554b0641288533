"""Throughput, the broker's CPU time for it, and its memory after it."""

from bench import javaperf, processes
from bench.brokers import Broker
from bench.metrics import KAFKA, KAFKA_FLUSHED
from bench.session import Session

# name of the size: (bytes of a payload, messages of a full round)
SIZES = {"100B": (100, 10_000_000), "1KiB": (1024, 1_500_000)}
_DURABLE_SHARE = 4
_JAVA_SHARE = 3


def _gb(messages: int, size: int) -> float:
    return messages * size / 1e9


def _log_bytes(messages: int, size: int) -> int:
    return messages * (size + 10)


def librdkafka(session: Session) -> None:
    """A fresh topic with one partition; librdkafka sends 1 GB (100 B) or 1.5 GB (1 KiB) of
    payload with acks=1 as fast as it can (batches of at most 10,000 messages and 1 MB, linger
    5 ms, no compression), then reads it back from the start. The clock runs from the first
    message to the last acknowledgement, or to the last message read, with the connection
    already up. CPU is user plus system time of the broker's process in the same window, for
    1 GB (10^9 bytes) of payload. Memory is read after the consuming, each round."""
    for size_name, (size, full) in SIZES.items():
        messages = session.amount(full)
        for order in session.rounds(f"produce and consume, {size_name}, librdkafka"):
            for name in order:
                broker = session.pair(name)
                with session.topic(broker, memory_bytes=_log_bytes(messages, size)) as topic:
                    produced = session.rdkafka(
                        "produce", broker, topic, messages=messages, size=size
                    )
                    consumed = session.rdkafka("consume", broker, topic, messages=messages)
                for what, load in (("produce", produced), ("consume", consumed)):
                    session.record(f"{what}_{size_name}", name, messages / load["seconds"])
                    cpu = load["broker_cpu_s"] / _gb(messages, size)
                    session.record(f"cpu_{what}_{size_name}", name, cpu)
                resident, anonymous = processes.memory_mb(broker.pid)
                session.record("rss", name, resident)
                session.record("rss_anon", name, anonymous)


def java_tools(session: Session) -> None:
    """The same with Kafka's own ProducerPerformance and ConsumerPerformance and the Java
    client's default settings (acks=1 set), a third of the messages; the rates that the tools print,
    without the first quarter of the records (producer) and the joining of a group (consumer)."""
    for size_name, (size, full) in SIZES.items():
        messages = session.amount(full // _JAVA_SHARE)
        for order in session.rounds(f"produce and consume, {size_name}, Kafka's tools"):
            for name in order:
                broker = session.pair(name)
                with session.topic(broker, memory_bytes=_log_bytes(messages, size)) as topic:
                    rate = javaperf.produce(broker, topic, messages=messages, size=size, acks="1")
                    session.verify(broker, topic, messages)
                    session.record(f"java_produce_{size_name}", name, rate)
                    rate = javaperf.consume(broker, topic, messages=messages)
                    session.record(f"java_consume_{size_name}", name, rate)


def durable(session: Session) -> None:
    """As the librdkafka produce above, a quarter of the messages, with acks=all. Penstock's
    acknowledgement then means fsynced (its default). Kafka runs twice: on a topic with
    flush.messages=1, which fsyncs before it acknowledges, and on its default topic, which
    does not fsync and is shown for information."""
    for size_name, (size, full) in SIZES.items():
        messages = session.amount(full // _DURABLE_SHARE)
        for order in session.rounds(f"produce acks=all, {size_name}, librdkafka"):
            for name in order:
                for variant, settings in _variants(session.pair(name)).items():
                    broker = session.pair(name)
                    memory = _log_bytes(messages, size)
                    with session.topic(broker, settings=settings, memory_bytes=memory) as topic:
                        load = session.rdkafka(
                            "produce", broker, topic, messages=messages, size=size, acks="all"
                        )
                    rate = messages / load["seconds"]
                    session.record(f"durable_{size_name}", variant, rate)


def _variants(broker: Broker) -> dict[str, dict[str, str]]:
    """Which topic settings a broker takes part with."""
    if broker.name == KAFKA:
        return {KAFKA_FLUSHED: {"flush.messages": "1"}, KAFKA: {}}
    return {broker.name: {}}
