"""How long one produce takes, one at a time and at a fixed rate."""

from bench import javaperf
from bench.session import Session

RATES = (10_000, 50_000)
_SECONDS = 8
_SECONDS_MIN = 3  # of a quick run
_SYNCHRONOUS_COUNT = 20_000


def synchronous(session: Session) -> None:
    """A minimal client on a blocking socket sends 20,000 produce requests of one 100-byte
    record with acks=1, each after the answer to the one before (after 2,000 unrecorded ones);
    rate and median over all. The client's own Python time is in the figures of both brokers."""
    count = session.amount(_SYNCHRONOUS_COUNT)
    for order in session.rounds("synchronous produce"):
        for name in order:
            broker = session.pair(name)
            with session.topic(broker) as topic:
                load = session.load(
                    "synchronous", "--port", broker.port, "--topic", topic, "--count", count
                )
                session.verify(broker, topic, load["messages"])
            session.record("sync_rate", name, load["per_s"])
            session.record("sync_p50", name, load["p50_us"])


def fixed_rate(session: Session) -> None:
    """librdkafka with linger 0, acks=1 and its default of unlimited requests in flight sends
    100-byte messages at a fixed rate for 8 s, open loop: latency runs from the intended send
    time of a message to its delivery report in the application, the first fifth not counted.
    The generator sends what is due about every 0.1 ms; how late it was (99th percentile) is
    part of the raw results, as `sender_lag`, and is included in the latency. For information
    the same rates with ProducerPerformance, linger 0, which waits for an answer at five
    requests in flight, and which counts whole milliseconds from the actual send."""
    for rate in RATES:
        messages = rate * max(_SECONDS_MIN, session.amount(_SECONDS))
        for order in session.rounds(f"latency at {rate:,} msg/s"):
            for name in order:
                broker = session.pair(name)
                with session.topic(broker) as topic:
                    load = session.rdkafka(
                        "latency", broker, topic, messages=messages, size=100, rate=rate
                    )
                for key in ("p50", "p99", "p999", "sender_lag_p99"):
                    session.record(f"latency_{rate}_{key}", name, load[f"{key}_us"])
                with session.topic(broker) as topic:
                    found = javaperf.latency(broker, topic, messages=messages, rate=rate)
                    session.verify(broker, topic, messages)
                for key, milliseconds in found.items():
                    session.record(f"java_latency_{rate}_{key}", name, milliseconds)
