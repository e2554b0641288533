"""What is measured with three brokers. Each docstring is printed in the results."""

import resource
import time
from collections.abc import Callable

from bench import processes
from bench.cluster.clusters import SIZE, Cluster
from bench.cluster.session import ClusterSession, log_bytes
from bench.cluster.writer import SteadyWriter
from bench.metrics import LIMIT
from bench.run import MeasurementError

# name of the size: (bytes of a payload, messages of a full round)
SIZES = {"100B": (100, 5_000_000), "1KiB": (1024, 800_000)}
PARTITIONS = 6
KILLS = 20
_CATCH_UP_ROUNDS = 2
_CATCH_UP_MESSAGE_BYTES = 1024
_SIZE_ROUNDS = 2
_TOPICS, _PARTITIONS_OF_EACH = 10, 100
_IDLE_S, _REST_S = 20.0, 5.0
_STEADY_S = 1.0


def throughput(session: ClusterSession) -> None:
    """A fresh topic with 6 partitions, 3 replicas and min.insync.replicas=2; librdkafka sends 0.5 GB (100 B)
    or 0.8 GB (1 KiB) of payload with acks=all as fast as it can (batches of at most 10,000 messages
    and 1 MB, linger 5 ms, no compression), going round the partitions; before the clock starts every
    partition has got two batches. An acknowledgement means the same on both sides: the record is in
    the page cache of every broker of the ISR. Kafka never syncs by default, and Penstock syncs before it
    acknowledges only where it is alone. CPU is that of all three brokers, and of etcd, for 1 GB of
    payload."""
    for size_name, (size, full) in SIZES.items():
        messages, first = session.amount(full), 2 * PARTITIONS * 10_000
        memory = log_bytes(first + messages, size)
        for order in session.rounds(f"produce acks=all, {size_name}"):
            for name in order:
                cluster = session.shared(name)
                how = {"size": size, "partitions": PARTITIONS}
                with session.topic(cluster, partitions=PARTITIONS, memory_bytes=memory) as topic:
                    session.produce(cluster, topic, messages=first, **how)
                    load = session.produce(cluster, topic, messages=messages, held=first, **how)
                session.record(f"cluster_produce_{size_name}", name, messages / load["seconds"])
                cpu = load["broker_cpu_s"] / (messages * size / 1e9)
                session.record(f"cluster_cpu_{size_name}", name, cpu)


def failover(session: ClusterSession) -> None:
    """A stock producer (librdkafka, all its settings at their defaults, so acks=all) writes 100 bytes every
    10 ms to one partition of a fresh topic (6 partitions, 3 replicas, min.insync.replicas=2). After a second
    the broker that leads this partition gets SIGKILL. The time runs from there to the first acknowledgement
    of a record that was handed to the producer after the kill. Then the broker is started again, and the next
    round begins when all replicas are in sync; by then the topic must hold at least what was
    acknowledged. Every third time the killed broker is the controller, too; those rounds are also
    listed by themselves (`failover_of_controller`)."""
    order_of_rounds = session.rounds("kill -9 of a leader", session.amount(KILLS))
    for number, order in enumerate(order_of_rounds):
        for name in order:
            _failover(session, session.shared(name), of_controller=number % SIZE == 0)
    for name in session.options.brokers:
        session.record("failover_max", name, max(session.samples["failover"][name]))


def _failover(session: ClusterSession, cluster: Cluster, *, of_controller: bool) -> None:
    with session.topic(cluster, partitions=PARTITIONS) as topic:
        controller, states = cluster.controller(), cluster.metadata([topic]).partitions
        fitting = (one for one in states if (one.leader == controller) is of_controller)
        chosen = next(fitting, states[0])
        node = cluster.nodes[chosen.leader]
        writer = SteadyWriter(cluster.bootstrap, topic, chosen.partition)
        writer.write_for(_STEADY_S)
        seconds = writer.until_acknowledged_after(node.signal_kill)
        acknowledged = writer.finish()
        node.kill()
        node.start()
        cluster.until(lambda: cluster.is_in_sync([topic], PARTITIONS), "in sync again", 0.02)
        held = cluster.record_count(topic)
        if held < acknowledged:
            raise MeasurementError(
                f"{cluster.name} holds {held} of {acknowledged} acknowledged records"
            )
    session.record("failover", cluster.name, seconds)
    if chosen.leader == controller:
        session.record("failover_of_controller", cluster.name, seconds)


def catch_up(session: ClusterSession) -> None:
    """A topic with 6 partitions and 3 replicas. One broker is stopped; librdkafka writes 5 GiB of 1 KiB
    messages to the other two (acks=all); the broker is started again. The time runs from the spawn of
    its process until it is in the ISR of all 6 partitions, so that it includes starting and joining. The
    page cache is warm. The plain copy is the simplest program that moves as many bytes: one
    process sends a file to a loopback socket by sendfile, a second one writes what it receives to
    another file."""
    messages = session.options.log_bytes // _CATCH_UP_MESSAGE_BYTES
    total = messages * _CATCH_UP_MESSAGE_BYTES
    for order in session.rounds("catching up", min(_CATCH_UP_ROUNDS, session.options.rounds)):
        copied = _plain_copy(session, total)
        session.record("catch_up_copy", LIMIT, copied)
        for name in order:
            with session.alone(name) as cluster:
                rate = total / 1e6 / _caught_up(session, cluster, messages)
            session.record("catch_up", name, rate)
            session.record("catch_up_of_copy", name, rate / copied)


def _plain_copy(session: ClusterSession, total: int) -> float:
    """MB/s, with the machine otherwise at rest and the source in the page cache."""
    path = session.options.work_dir / "copy"
    session.load("cluster.copy", "--make", path, "--bytes", total)
    processes.settle(total // 2)
    load = session.load("cluster.copy", "--file", path, "--bytes", total)
    path.unlink()
    return float(load["mb_per_s"])


def _caught_up(session: ClusterSession, cluster: Cluster, messages: int) -> float:
    topic = session.new_name("log")
    cluster.create([topic], partitions=PARTITIONS, min_insync=2)
    away = cluster.nodes[max(cluster.nodes)]
    away.stop()
    cluster.until(lambda: cluster.is_led([topic], PARTITIONS), "led by the other two")
    session.produce(
        cluster, topic, messages=messages, size=_CATCH_UP_MESSAGE_BYTES, partitions=PARTITIONS
    )
    # Half of it is enough: the source stays in the page cache, only the copy needs memory.
    processes.settle(session.options.log_bytes // 2)

    def is_back() -> bool:
        states = cluster.metadata([topic]).partitions
        return all(len(state.isr) == SIZE for state in states)

    return _timed(cluster, away.start, is_back, "caught up", 0.02)


def at_size(session: ClusterSession) -> None:
    """A cluster that was just started gets 1,000 partitions with 3 replicas (10 topics in one request): until
    every broker says that each is led and has all replicas in sync, and the leaders answer. Then it is
    left alone for 5 s, and CPU time and writes are counted for 20 s: CPU of each broker's process as a
    share of one core (etcd's by itself), writes applied by etcd or, for Kafka, records in the log of its
    controllers. Then the broker that is the controller gets SIGKILL: until both others say that every
    partition is led by a living broker, and the leaders answer. Then it is started again: until all
    replicas are in sync. Looked at every 0.1 s; looking costs the brokers some of their time."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the brokers inherit it
    partitions = session.amount(_PARTITIONS_OF_EACH)
    for order in session.rounds("1,000 partitions", min(_SIZE_ROUNDS, session.options.rounds)):
        for name in order:
            with session.alone(name) as cluster:
                _at_size(session, cluster, partitions)


def _at_size(session: ClusterSession, cluster: Cluster, partitions: int) -> None:
    topics = [session.new_name("many") for _ in range(_TOPICS)]
    total, look_s = _TOPICS * partitions, 0.1
    start = time.monotonic()
    cluster.create(topics, partitions=partitions, poll_s=look_s)
    session.record("size_create", cluster.name, time.monotonic() - start)
    time.sleep(_REST_S)
    _idle(session, cluster)
    node = cluster.nodes[cluster.controller()]
    seconds = _timed(cluster, node.kill, lambda: cluster.is_led(topics, total), "led", look_s)
    session.record("size_failover", cluster.name, seconds)
    seconds = _timed(
        cluster, node.start, lambda: cluster.is_in_sync(topics, total), "in sync", look_s
    )
    session.record("size_return", cluster.name, seconds)


def _idle(session: ClusterSession, cluster: Cluster) -> None:
    brokers = [node.pid for node in cluster.nodes.values()]
    others = [pid for pid in cluster.pids() if pid not in brokers]
    before = {pid: processes.cpu_seconds(pid) for pid in (*brokers, *others)}
    decided, start = cluster.decisions(), time.monotonic()
    time.sleep(_IDLE_S)
    seconds = time.monotonic() - start
    writes = (cluster.decisions() - decided) / seconds
    session.record("size_idle_writes", cluster.name, writes)
    for pid, spent in before.items():
        share = (processes.cpu_seconds(pid) - spent) / seconds * 100
        key = "size_idle_cpu" if pid in brokers else "size_idle_etcd_cpu"
        session.record(key, cluster.name, share)


def _timed(
    cluster: Cluster, act: Callable[[], None], done: Callable[[], bool], what: str, look_s: float
) -> float:
    """Seconds from the beginning of what is done to the cluster until it has got over it."""
    start = time.monotonic()
    act()
    cluster.until(done, what, look_s)
    return time.monotonic() - start


MEASUREMENTS: dict[str, Callable[[ClusterSession], None]] = {
    "throughput": throughput,
    "failover": failover,
    "catch-up": catch_up,
    "size": at_size,
}
