"""A run with one broker of each kind: the brokers, their topics, the loads on them."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench import processes
from bench.brokers import BROKERS, Broker
from bench.run import MeasurementError, Run


@dataclass(slots=True)
class Session(Run):
    """The brokers and topics of the measurements with one broker.

    Both brokers of the pair stay up, warm, through the measurements that share them, and take
    turns. An idle Kafka takes up to 5 % of one core, which Penstock's figures bear. What must be
    alone asks for `alone`.
    """

    _pair: dict[str, Broker] = field(default_factory=dict)

    # Brokers

    def pair(self, name: str) -> Broker:
        """The long-lived broker of that name; started when it is not up."""
        if name not in self._pair:
            broker = self._create(name)
            self._pair[name] = broker
            broker.start()
            broker.wait_ready()
            self._warm_up(broker)
        return self._pair[name]

    def _warm_up(self, broker: Broker) -> None:
        """Every kind of load once, unrecorded, so that no round pays for a compiler."""
        task = self.progress.add_task(f"warming up {broker.name}", total=4)
        messages = self.amount(10_000_000)
        # Deleted together at the end: a fresh Kafka deletes nothing in its first 30 seconds.
        with (
            self.topic(broker) as single,
            self.topic(broker) as steady,
            self.topic(broker, memory_bytes=messages * 110) as bulk,
        ):
            self.rdkafka("produce", broker, bulk, messages=messages, size=100)
            self.progress.advance(task)
            self.rdkafka("consume", broker, bulk, messages=messages)
            self.progress.advance(task)
            self.rdkafka("latency", broker, steady, messages=200_000, size=100, rate=20_000)
            self.progress.advance(task)
            self.load("synchronous", "--port", broker.port, "--topic", single, "--count", 10_000)
            self.progress.advance(task)

    def stop_pair(self) -> None:
        while self._pair:
            self._pair.popitem()[1].remove()

    @contextmanager
    def alone(self, name: str) -> Iterator[Broker]:
        """A broker that is not started yet, with the pair stopped; removed at the end."""
        self.stop_pair()
        broker = self._create(name)
        try:
            yield broker
        finally:
            broker.remove()

    def _create(self, name: str) -> Broker:
        return BROKERS[name](self.options.work_dir / self.new_name(name))

    def close(self) -> None:
        self.stop_pair()
        Run.close(self)

    # Topics and loads

    @contextmanager
    def topic(
        self,
        broker: Broker,
        *,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
        memory_bytes: int = 0,
    ) -> Iterator[str]:
        """A fresh topic on a machine at rest; its data is gone from the disk at the end.

        `memory_bytes` is what the load is going to write (see `processes.warm_memory`).
        """
        name = self.new_name("bench")
        with broker.connect() as connection:
            connection.create_topic(name, partitions, settings)
        processes.settle(memory_bytes)
        yield name
        with broker.connect() as connection:
            connection.delete_topic(name)
        deadline = time.monotonic() + 60
        while any(broker.data_dir.glob(f"{name}*")):
            if time.monotonic() > deadline:
                raise MeasurementError(f"{broker.name} keeps the data of the deleted {name}")
            time.sleep(0.01)

    def verify(self, broker: Broker, topic: str, expected: int, partitions: int = 1) -> None:
        """Fail unless the broker holds exactly what was sent."""
        with broker.connect() as connection:
            held = connection.record_count(topic, partitions)
        if held != expected:
            raise MeasurementError(f"{broker.name} holds {held} messages; {expected} were sent")

    def rdkafka(
        self,
        command: str,
        broker: Broker,
        topic: str,
        *,
        messages: int,
        held: int = 0,
        partitions: int = 1,
        **options: Any,
    ) -> dict[str, Any]:
        """Run the librdkafka tool on a topic that already holds `held` messages."""
        result = self.rdkafka_load(
            command,
            topic,
            bootstrap=f"127.0.0.1:{broker.port}",
            pids=[broker.pid],
            messages=messages,
            partitions=partitions,
            **options,
        )
        if command != "consume":
            self.verify(broker, topic, held + messages, partitions)
        return result
