"""Producers that note what they sent, and what they were told of each record."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos.history import NO_OFFSET, Outcome, Sent, Value
from tests.chaos.settings import CONNECTION

__all__ = ["OnceWriter", "Writer"]

_PACE_S: Final = 0.05
_FLUSH_S: Final = 30.0


class Writer:
    """Sends `name:0`, `name:1`, … with acks=all to partitions picked at random.

    It is idempotent: each record once and in order. A fatal error ends a producer, as librdkafka wants
    it, and another one, with another name, goes on.
    """

    is_ordered = True

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        seed: int,
        records_per_s: int,
    ) -> None:
        self.name = name
        self.names: list[str] = []  # of each producer in turn
        self.acknowledged = 0
        self.failures: dict[str, int] = {}  # what was said, how often
        self._topic = topic
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._per_turn = max(1, round(records_per_s * _PACE_S))
        self._settings: dict[str, Any] = {
            **CONNECTION,
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            # Longer than any fault: after a record that it gave up on, librdkafka goes on under a new epoch,
            # and sends others again that may have got through. Nobody could tell that they are the same.
            "message.timeout.ms": 300_000,
            "linger.ms": 5,
            "batch.num.messages": 50,
            "queue.buffering.max.messages": 1_000,
        }
        self._partition_of: dict[Value, int] = {}
        self._answers: dict[Value, tuple[Outcome, int]] = {}
        self._sent_at = [0.0] * partitions  # when the newest acknowledged record was sent
        self._is_dead = False

    def has_through(self, partition: int, time_s: float) -> bool:
        """Whether a record sent after `time_s` was acknowledged there."""
        return self._sent_at[partition] > time_s

    def describe(self) -> str:
        waiting = len(self._partition_of) - self.acknowledged - sum(self.failures.values())
        return f"{self.name} ({waiting} without an answer, failures {self.failures})"

    def sent(self) -> list[Sent]:
        """All records; those without an answer may be in the log or not."""
        return [
            Sent(value, partition, *self._answers.get(value, (Outcome.UNKNOWN, -1)))
            for value, partition in self._partition_of.items()
        ]

    def run(self, stop: threading.Event) -> None:
        """Send at a steady pace until told to stop; returns when every record has its answer."""
        while not stop.is_set():
            self._run_one(stop)

    def _run_one(self, stop: threading.Event) -> None:
        """The life of one producer."""
        name = f"{self.name}.{len(self.names)}"
        self.names.append(name)
        self._is_dead = False
        producer = Producer({**self._settings, "error_cb": self._on_error})
        sequence = 0
        try:
            while not stop.wait(_PACE_S) and not self._is_dead:
                for _ in range(self._per_turn):
                    if not self._send(producer, Value(name, sequence)):
                        break
                    sequence += 1
                producer.poll(0)
            if not self._is_dead:
                producer.flush(_FLUSH_S)
        except (KafkaException, SystemError):
            pass  # it died meanwhile
        # A dead one raises here what it died of, or, in confluent-kafka 2.16, nothing that it names.
        with contextlib.suppress(KafkaException, SystemError):
            producer.purge()
            producer.flush(1)

    def _send(self, producer: Producer, value: Value) -> bool:
        partition = self._chance.randrange(self._partitions)
        try:
            producer.produce(
                self._topic,
                value=value.encode(),
                partition=partition,
                on_delivery=self._reporter(value, partition, time.monotonic()),
            )
        except BufferError:
            return False  # enough is on its way
        self._partition_of[value] = partition
        return True

    def _reporter(
        self, value: Value, partition: int, sent_s: float
    ) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self._answers[value] = (Outcome.ACKNOWLEDGED, _known(message.offset()))
                self._sent_at[partition] = max(self._sent_at[partition], sent_s)
                self.acknowledged += 1
                return
            self.failures[error.name()] = self.failures.get(error.name(), 0) + 1
            if error.fatal():
                self._is_dead = True

        return delivered

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL or error.fatal():
            self._is_dead = True


class OnceWriter:
    """Sends each record once with acks=all, whatever comes, and waits for what comes of it.

    What the broker refused with NOT_ENOUGH_REPLICAS is not in the log, for certain. A record that was
    given up on may get there later than the next: it waits in the socket of a broker that hangs.
    """

    is_ordered = False

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        self.name = name
        self.names = [name]
        self.acknowledged = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._sent: list[Sent] = []
        self._sent_at = [0.0] * partitions

    def has_through(self, partition: int, time_s: float) -> bool:
        return self._sent_at[partition] > time_s

    def describe(self) -> str:
        return f"{self.name} ({self.acknowledged} of {len(self._sent)} got through)"

    def sent(self) -> list[Sent]:
        return list(self._sent)

    def run(self, stop: threading.Event) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError as Refusal

        while not stop.is_set():
            try:
                producer = KafkaProducer(
                    bootstrap_servers=self._bootstrap.split(","),
                    acks="all",
                    enable_idempotence=False,
                    retries=0,
                    max_in_flight_requests_per_connection=1,
                    request_timeout_ms=3_000,
                    delivery_timeout_ms=3_500,
                    max_block_ms=3_000,
                    metadata_max_age_ms=1_000,
                    reconnect_backoff_max_ms=500,
                )
            except Refusal:
                continue  # nobody is there who would answer
            try:
                while not stop.wait(_PACE_S):
                    self._send(producer)
            finally:
                producer.close(timeout=5)

    def _send(self, producer: Any) -> None:
        from kafka.errors import KafkaError as Refusal
        from kafka.errors import NotEnoughReplicasError

        value = Value(self.names[0], len(self._sent))
        partition = self._chance.randrange(self._partitions)
        outcome, offset, sent_s = Outcome.UNKNOWN, -1, time.monotonic()
        try:
            future = producer.send(self._topic, value=value.encode(), partition=partition)
            offset = _known(future.get(timeout=10).offset)
            outcome = Outcome.ACKNOWLEDGED
            self.acknowledged += 1
            self._sent_at[partition] = sent_s
        except NotEnoughReplicasError:
            outcome = Outcome.REFUSED
        except Refusal:
            pass  # it may be there
        self._sent.append(Sent(value, partition, outcome, offset))


def _known(offset: int | None) -> int:
    """A client that learns by a retry that a record is there already does not know where."""
    return NO_OFFSET if offset is None else offset
