"""The two clusters under test: three brokers each, child processes on free loopback ports."""

import base64
import re
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from bench.brokers import Broker, BrokerFailedError, Kafka, Penstock, free_port
from bench.metrics import KAFKA, PENSTOCK
from bench.wire import Connection, KafkaError, Metadata, PartitionState
from penstock.testing.etcd import EtcdCluster, etcd

SIZE = 3
PATIENCE_S = 300.0
# Tests run etcd faster and looser than anyone else would: here it has its own defaults.
_ETCD_DEFAULTS = {
    "unsafe-no-fsync": "false",
    "heartbeat-interval": "100",
    "election-timeout": "1000",
}


class Cluster(ABC):
    """Brokers by id, and what the living ones say of the cluster.

    Nothing runs before `start`; `remove` ends all processes and deletes all data.
    """

    name: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: dict[int, Broker] = {}
        directory.mkdir(parents=True)

    @abstractmethod
    def controller(self) -> int:
        """The id of the broker whose controller is active."""

    @abstractmethod
    def decisions(self) -> int:
        """How much was ever written to what the cluster agrees by; only differences count."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.living.values())

    @property
    def living(self) -> dict[int, Broker]:
        return {number: node for number, node in self.nodes.items() if node.is_running}

    def pids(self) -> list[int]:
        """Of all processes that make up the cluster."""
        return [node.pid for node in self.living.values()]

    def start(self) -> None:
        """Return when every broker knows all others, and a topic has all its replicas."""
        for node in self.nodes.values():
            node.start()
        nodes = self.nodes.values()
        self.until(lambda: all(self._knows_all(node) for node in nodes), "up", poll_s=0.05)
        self.create(["ready"], partitions=SIZE)

    def _knows_all(self, node: Broker) -> bool:
        with node.connect() as connection:
            return set(connection.metadata([]).brokers) == set(self.nodes)

    def connect(self) -> Connection:
        """To any broker that is up."""
        return next(iter(self.living.values())).connect()

    # Topics

    def create(
        self, topics: list[str], *, partitions: int, min_insync: int = 1, poll_s: float = 0.005
    ) -> None:
        """Create topics with three replicas, and return when every broker says all are in sync."""
        settings = {"min.insync.replicas": str(min_insync)}
        with self.connect() as connection:
            connection.request_topics(topics, partitions, replicas=SIZE, settings=settings)
        wanted = len(topics) * partitions
        self.until(lambda: self.is_in_sync(topics, wanted), f"in sync with {topics[0]}", poll_s)

    def delete(self, topic: str, *, with_files: bool = True) -> None:
        """Delete, and wait until the files are gone, too: a Kafka broker begins with that only when it
        has been up for 30 s."""
        with self.connect() as connection:
            connection.delete_topic(topic)
        if with_files:
            self.until(lambda: not self._has_files(topic), f"rid of {topic}")

    def _has_files(self, topic: str) -> bool:
        return any(any(node.data_dir.glob(f"{topic}*")) for node in self.living.values())

    def metadata(self, topics: list[str]) -> Metadata:
        with self.connect() as connection:
            return connection.metadata(topics)

    def is_in_sync(self, topics: list[str], partitions: int) -> bool:
        """Whether every living broker sees this many partitions, each led, with all replicas in
        its ISR, and whether the leaders answer."""
        states = self._agreed(topics, partitions)
        return (
            states is not None
            and all(len(state.isr) == SIZE for state in states)
            and self._end_offsets(states) is not None
        )

    def is_led(self, topics: list[str], partitions: int) -> bool:
        """Whether every living broker sees each partition led by a living one, and those answer."""
        states = self._agreed(topics, partitions)
        return states is not None and self._end_offsets(states) is not None

    def _agreed(self, topics: list[str], partitions: int) -> list[PartitionState] | None:
        """The partitions, if all living brokers say the same of them and a living one leads each."""
        views, living = [], self.living
        for node in living.values():
            with node.connect() as connection:
                views.append(connection.metadata(topics).partitions)
        states = sorted(views[0])
        led = len(states) == partitions and all(state.leader in living for state in states)
        return states if led and all(sorted(view) == states for view in views) else None

    def record_count(self, topic: str) -> int:
        """The sum of all end offsets: what a fresh topic holds."""
        offsets = self._end_offsets(self.metadata([topic]).partitions)
        if offsets is None:
            raise BrokerFailedError(f"{self.name}: not all leaders of {topic} answer")
        return sum(offsets)

    def _end_offsets(self, states: Iterable[PartitionState]) -> list[int] | None:
        """One for each partition, from its leader; None if one of them is not the leader (yet)."""
        found: list[int] = []
        by_leader = sorted(states, key=lambda state: (state.leader, state.topic))
        try:
            for leader, led in groupby(by_leader, key=lambda state: state.leader):
                with self.nodes[leader].connect() as connection:
                    for topic, group in groupby(led, key=lambda state: state.topic):
                        indexes = [state.partition for state in group]
                        found += connection.end_offsets(topic, indexes)
        except (OSError, KafkaError, KeyError):
            return None
        return found

    def until(self, condition: Callable[[], bool], what: str, poll_s: float = 0.005) -> None:
        """Return when it holds; while brokers come and go they may refuse to say."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            problem: Exception | None = None
            try:
                if condition():
                    return
            except (OSError, KafkaError) as error:
                problem = error
            for node in self.nodes.values():
                if node.is_started:
                    node.check_alive()
            if time.monotonic() > deadline:
                raise BrokerFailedError(
                    f"{self.name} is not {what} after {PATIENCE_S:g} s: {problem}"
                )
            time.sleep(poll_s)

    def remove(self) -> None:
        """Nothing that it holds is needed any more, so that nobody waits for a clean end."""
        for node in self.nodes.values():
            if node.is_started:
                node.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class PenstockNode(Penstock):
    """`penstock serve` as a member of a cluster, otherwise with its defaults."""

    def __init__(self, directory: Path, number: int, endpoints: str) -> None:
        super().__init__(directory)
        self._member = ["--broker-id", str(number), "--etcd", endpoints]

    def command(self) -> list[str]:
        return [*super().command(), *self._member]


class PenstockCluster(Cluster):
    """Three members, and one etcd with etcd's defaults."""

    name = PENSTOCK

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._resources = ExitStack()
        self.etcd: EtcdCluster = self._resources.enter_context(etcd(flags=_ETCD_DEFAULTS))
        for number in range(1, SIZE + 1):
            node = PenstockNode(directory / str(number), number, ",".join(self.etcd.endpoints))
            self.nodes[number] = node

    def pids(self) -> list[int]:
        return [*super().pids(), self.etcd_pid]

    @property
    def etcd_pid(self) -> int:
        return self.etcd.members[0].pid

    def controller(self) -> int:
        return self.metadata([]).controller

    def decisions(self) -> int:
        """Proposals that etcd applied: every write, none of the renewals of a lease."""
        text = self.etcd.members[0].get("/metrics")
        found = re.search(r"^etcd_server_proposals_applied_total (\S+)$", text, re.MULTILINE)
        assert found is not None, "etcd does not say how much it applied"
        return int(float(found[1]))

    def remove(self) -> None:
        super().remove()
        self._resources.close()


class KafkaNode(Kafka):
    """One combined node (broker and controller) of several."""

    def __init__(self, directory: Path, number: int, ports: dict[int, int], first: str) -> None:
        Broker.__init__(self, directory)
        controllers = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        self.configure(number, ports[number], controllers=controllers)
        self.format("--initial-controllers", first)


class KafkaCluster(Cluster):
    """Three combined nodes with default settings and heap, each a voter of the quorum."""

    name = KAFKA

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        ports = {number: free_port() for number in range(1, SIZE + 1)}
        first = ",".join(
            f"{number}@127.0.0.1:{port}:{_kafka_id()}" for number, port in ports.items()
        )
        for number in ports:
            self.nodes[number] = KafkaNode(directory / str(number), number, ports, first)

    def controller(self) -> int:
        with self.connect() as connection:
            return connection.quorum()[0]

    def decisions(self) -> int:
        """Records in the log of the controllers."""
        with self.connect() as connection:
            return connection.quorum()[1]


def _kafka_id() -> str:
    """A directory id as Kafka writes them; one that begins with a dash would be taken for an option."""
    return base64.urlsafe_b64encode(b"bench" + uuid.uuid4().bytes[5:]).decode().rstrip("=")


CLUSTERS: dict[str, type[Cluster]] = {
    cluster.name: cluster for cluster in (PenstockCluster, KafkaCluster)
}
