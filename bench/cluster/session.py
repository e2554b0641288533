"""A run with two clusters: their turns, their topics, the loads on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench import processes
from bench.cluster.clusters import CLUSTERS, SIZE, Cluster
from bench.run import MeasurementError, Run

_WARM_UP_MESSAGES = 3_000_000
_RECORD_OVERHEAD_BYTES = 10


@dataclass(slots=True)
class ClusterSession(Run):
    """Holds the clusters; `close` ends all their processes.

    The two that take turns stay up, warm, beside each other; what must be alone asks for `alone`.
    """

    _shared: dict[str, Cluster] = field(default_factory=dict)
    _alone: Cluster | None = None

    def shared(self, name: str) -> Cluster:
        """The long-lived cluster of that name; started and warmed up when it is not up."""
        if name not in self._shared:
            task = self.progress.add_task(f"starting {name}, warming up", total=2)
            cluster = self._shared[name] = self._create(name)
            cluster.start()
            self.progress.advance(task)
            messages = self.amount(_WARM_UP_MESSAGES)
            memory = log_bytes(messages, 100)
            with self.topic(cluster, partitions=6, memory_bytes=memory) as topic:
                self.produce(cluster, topic, messages=messages, size=100, partitions=6)
            self.progress.advance(task)
        return self._shared[name]

    @contextmanager
    def alone(self, name: str) -> Iterator[Cluster]:
        """A cluster that was just started, with no other one up; removed at the end."""
        self._stop()
        self._alone = self._create(name)
        try:
            self._alone.start()
            yield self._alone
        finally:
            self._stop()

    def _create(self, name: str) -> Cluster:
        return CLUSTERS[name](self.options.work_dir / self.new_name(name))

    def _stop(self) -> None:
        while self._shared:
            self._shared.popitem()[1].remove()
        if self._alone is not None:
            self._alone.remove()
            self._alone = None

    def close(self) -> None:
        self._stop()
        Run.close(self)

    @contextmanager
    def topic(self, cluster: Cluster, *, partitions: int, memory_bytes: int = 0) -> Iterator[str]:
        """A fresh topic with three replicas on a machine at rest; deleted at the end.

        `memory_bytes` is what the load is going to write to each replica. If it is more than a little,
        the end waits until it is gone from all disks.
        """
        name = self.new_name("bench")
        cluster.create([name], partitions=partitions, min_insync=2)
        processes.settle(SIZE * memory_bytes)
        yield name
        cluster.delete(name, with_files=memory_bytes > 0)

    def produce(
        self,
        cluster: Cluster,
        topic: str,
        *,
        messages: int,
        size: int,
        partitions: int,
        held: int = 0,
    ) -> dict[str, Any]:
        """librdkafka with acks=all on a topic that already holds `held` messages."""
        result = self.rdkafka_load(
            "produce",
            topic,
            bootstrap=cluster.bootstrap,
            pids=cluster.pids(),
            messages=messages,
            size=size,
            partitions=partitions,
            acks="all",
        )
        found = cluster.record_count(topic)
        if found != held + messages:
            raise MeasurementError(
                f"{cluster.name} holds {found} messages; {held + messages} were sent"
            )
        return result


def log_bytes(messages: int, size: int) -> int:
    """What a replica's log grows by."""
    return messages * (size + _RECORD_OVERHEAD_BYTES)
