"""Those who write and read while the broker is killed, and what they were promised."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

_CONNECTION: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "log_level": 0,
    # Only unreachable brokers are reported here, and that is what this is about.
    "error_cb": lambda _: None,
}


@dataclass(kw_only=True)
class Writer:
    """Sends `name:0`, `name:1`, … to one partition until it is told to stop.

    Idempotent: each message once and in order, whatever happens. Plain, with one request in flight:
    each at least once, and first copies in order.
    """

    name: str
    bootstrap: str
    topic: str
    partition: int
    acks: str
    idempotent: bool
    acknowledged: dict[int, int] = field(default_factory=dict)  # number -> offset
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    answered: threading.Event = field(default_factory=threading.Event)  # set by every answer

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                **_CONNECTION,
                "bootstrap.servers": self.bootstrap,
                "acks": self.acks,
                "enable.idempotence": self.idempotent,
                "max.in.flight.requests.per.connection": 5 if self.idempotent else 1,
                "message.timeout.ms": 120_000,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "queue.buffering.max.messages": 2_000,
            }
        )

    def run(self, stop: threading.Event) -> None:
        """Send as fast as answers come back. Returns when everything sent has been answered."""
        while not stop.is_set():
            self._send_one()
            self._producer.poll(0)
            if self.sent % 20 == 0:
                self._producer.poll(0.001)
        self._producer.flush(120)

    def wait_for_an_answer(self) -> None:
        """Return at the next answer from now on."""
        self.answered.clear()
        assert self.answered.wait(60), f"{self.name} got no answer in a minute"

    def _send_one(self) -> None:
        try:
            self._producer.produce(
                self.topic,
                value=f"{self.name}:{self.sent}".encode(),
                partition=self.partition,
                on_delivery=self._report(self.sent),
            )
        except BufferError:
            self._producer.poll(0.01)
            return
        self.sent += 1

    def _report(self, number: int) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged[number] = message.offset()
                self.answered.set()
            else:
                self.failures.append(f"{self.name}:{number}: {error}")

        return delivered


@dataclass(kw_only=True)
class Committer:
    """Commits ever higher offsets for a group, and remembers the last that was answered."""

    bootstrap: str
    topic: str
    group: str
    answered: int = -1
    asked: int = -1

    def run(self, stop: threading.Event) -> None:
        consumer = Consumer(
            {**_CONNECTION, "bootstrap.servers": self.bootstrap, "group.id": self.group}
        )
        try:
            while not stop.is_set():
                self.asked += 1
                try:
                    consumer.commit(
                        offsets=[TopicPartition(self.topic, 0, self.asked)], asynchronous=False
                    )
                except KafkaException:
                    continue  # the broker is down: asked, and perhaps done, but not promised
                self.answered = self.asked
        finally:
            consumer.close()

    def committed(self) -> int:
        """What the broker holds now."""
        consumer = Consumer(
            {**_CONNECTION, "bootstrap.servers": self.bootstrap, "group.id": self.group}
        )
        try:
            (found,) = consumer.committed([TopicPartition(self.topic, 0)], timeout=20)
            return int(found.offset)
        finally:
            consumer.close()


@dataclass(kw_only=True)
class Watcher:
    """Reads while the broker is killed: what was read once is what everyone reads ever after."""

    bootstrap: str
    topic: str
    partitions: tuple[int, ...]
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (partition, offset) -> value
    failures: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        settings = {
            **_CONNECTION,
            "bootstrap.servers": self.bootstrap,
            "group.id": "watcher",
            "auto.offset.reset": "error",  # a log that ends before what was read has lost it
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(self.topic, index, 0) for index in self.partitions])
            while not stop.is_set():
                for message in consumer.consume(1_000, timeout=0.05):
                    self._note(message)
        finally:
            consumer.close()

    def _note(self, message: Any) -> None:
        if message.error() is not None:
            if not message.error().retriable():
                self.failures.append(str(message.error()))
            return
        self.seen[message.partition(), message.offset()] = message.value()


def read_all(bootstrap: str, topic: str, partition: int, count: int) -> list[tuple[int, bytes]]:
    """(offset, value) of a partition's first `count` records."""
    consumer = Consumer(
        {**_CONNECTION, "bootstrap.servers": bootstrap, "group.id": "reader", "check.crcs": True}
    )
    found: list[tuple[int, bytes]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while len(found) < count:
            messages = consumer.consume(min(10_000, count - len(found)), timeout=20)
            assert messages, f"{topic}-{partition} ends after {len(found)} of {count} records"
            for message in messages:
                offset, value = message.offset(), message.value()
                assert message.error() is None, message.error()
                assert offset is not None
                assert value is not None
                found.append((offset, value))
    finally:
        consumer.close()
    return found


def end_offset(bootstrap: str, topic: str, partition: int) -> int:
    consumer = Consumer({**_CONNECTION, "bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
        return int(end)
    finally:
        consumer.close()
