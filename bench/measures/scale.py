"""Many partitions, many connections, and the limit of the machine."""

import resource
import time
from collections import defaultdict
from contextlib import ExitStack

from bench import allocator, processes
from bench.metrics import LIMIT, LIMIT_KEYS
from bench.run import MeasurementError
from bench.session import Session

_PARTITIONS = 1_000
_MESSAGES = 10_000_000
_BATCH = 1_000
_CONNECTIONS = 1_000
_LIMIT_BYTES = 2 << 30


def partitions(session: Session) -> None:
    """librdkafka, acks=1, 100 B, batches of 1,000 messages that go round all partitions of the
    topic, then everything is read back; once with 1 partition and once with 1,000, the same
    client settings and the same batches. Before the clock starts, every partition has got two
    batches, so that the making of its files is not in the figure. The figure is the ratio of the
    two rates in a round. The client lets the fetching rest when a million messages wait in
    the queue that all partitions share. Then everything is read back once more by the same
    client with mimalloc in place of the C library's malloc, if the machine has it: librdkafka
    makes a message in one thread and frees it in another, and where one answer holds many
    partitions both are at it at the same time, so that a client spends more on the lock of
    that malloc than on the messages, whatever the broker. And once more by a client of our
    own that asks for the same bytes, one request after the other, and looks at nothing but the
    headers of batches: what the broker gives."""
    messages, first = session.amount(_MESSAGES), 2 * _PARTITIONS * _BATCH
    without_locks = allocator.without_locks()
    for order in session.rounds("1,000 partitions against 1"):
        for name in order:
            broker = session.pair(name)
            rates: dict[str, dict[int, float]] = defaultdict(dict)
            for count in (1, _PARTITIONS):
                memory = (first + messages) * 110
                how = {"size": 100, "partitions": count, "chunk": _BATCH, "batch_messages": _BATCH}
                with session.topic(broker, partitions=count, memory_bytes=memory) as topic:
                    session.rdkafka("produce", broker, topic, messages=first, **how)
                    produced = session.rdkafka(
                        "produce", broker, topic, held=first, messages=messages, **how
                    )
                    rates["produce"][count] = messages / produced["seconds"]
                    both = {"messages": first + messages, "partitions": count}
                    consumed = session.rdkafka("consume", broker, topic, **both)
                    rates["consume"][count] = both["messages"] / consumed["seconds"]
                    if without_locks is not None:
                        consumed = session.rdkafka(
                            "consume", broker, topic, memory=without_locks, **both
                        )
                        rates["unlocked"][count] = both["messages"] / consumed["seconds"]
                    drained = session.load(
                        *("drain", "--port", broker.port, "--topic", topic, "--partitions", count)
                    )
                    if drained["messages"] != both["messages"]:
                        raise MeasurementError(f"{name}: {drained} of {both} were drained")
                    rates["drain"][count] = both["messages"] / drained["seconds"]
            for what, by_count in rates.items():
                for count, rate in by_count.items():
                    session.record(f"partitions_{count}_{what}_rate", name, rate)
                session.record(f"partitions_{what}", name, by_count[_PARTITIONS] / by_count[1])


def connections(session: Session) -> None:
    """A freshly started broker; VmRSS before and after 1,000 connections, each of which has
    asked for ApiVersions once and then stays silent."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    for order in session.rounds("1,000 idle connections"):
        for name in order:
            with session.alone(name) as broker, ExitStack() as open_connections:
                broker.start()
                broker.wait_ready()
                time.sleep(1)
                before, _ = processes.memory_mb(broker.pid)
                for _ in range(_CONNECTIONS):
                    open_connections.enter_context(broker.connect()).api_versions()
                time.sleep(1)
                after, _ = processes.memory_mb(broker.pid)
                session.record("connections", name, after - before)


def limit(session: Session) -> None:
    """The simplest program that moves the bytes: a Python process receives 1 MiB frames from a
    loopback socket (recv_into) and writes them to a file (write), 2 GiB, the sender a second
    process; then the file goes back by sendfile. No protocol, no checksum, no index; and no pacing of
    packets, whatever congestion control the system is set to."""
    total = session.amount(_LIMIT_BYTES)
    session.stop_pair()
    for _ in session.rounds("the machine's limit"):
        processes.settle(total)
        path = session.options.work_dir / "limit"
        load = session.load("limit", "--file", path, "--bytes", total)
        path.unlink()
        for key in LIMIT_KEYS:
            session.record(key, LIMIT, load[key])
