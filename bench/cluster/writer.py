"""One stock producer that writes steadily to one partition and notes when what is acknowledged."""

import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from bench.run import MeasurementError

_INTERVAL_S = 0.01
_PATIENCE_S = 120.0
_PAYLOAD = b"x" * 100


class SteadyWriter:
    """librdkafka with its defaults. Runs on the thread that calls it."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._acknowledged = 0
        self._lost: KafkaError | None = None
        self._since: float | None = None  # a record sent after this is waited for
        self._acknowledged_at: float | None = None  # the first of those, if any

    def write_for(self, seconds: float) -> None:
        """Write for so long, and until something was acknowledged."""
        end = time.monotonic() + seconds
        self._write_until(lambda: time.monotonic() > end and self._acknowledged > 0)

    def until_acknowledged_after(self, event: Callable[[], None]) -> float:
        """Let something happen, and write on; the seconds until a later record is acknowledged."""
        since = self._since = time.monotonic()
        event()
        self._write_until(lambda: self._acknowledged_at is not None)
        assert self._acknowledged_at is not None
        return self._acknowledged_at - since

    def finish(self) -> int:
        """Wait for what is under way; how many records were acknowledged in all."""
        if self._producer.flush(_PATIENCE_S) or self._lost is not None:
            raise MeasurementError(f"not all records were delivered: {self._lost}")
        return self._acknowledged

    def _write_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_done():
            now = time.monotonic()
            if self._lost is not None or now > deadline:
                raise MeasurementError(f"nothing is acknowledged any more: {self._lost}")
            self._producer.produce(
                self._topic,
                _PAYLOAD,
                partition=self._partition,
                on_delivery=partial(self._delivered, now),
            )
            while (left := now + _INTERVAL_S - time.monotonic()) > 0:
                self._producer.poll(left)

    def _delivered(self, sent_at: float, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._lost = error
            return
        self._acknowledged += 1
        if self._since is not None and self._acknowledged_at is None and sent_at > self._since:
            self._acknowledged_at = time.monotonic()
