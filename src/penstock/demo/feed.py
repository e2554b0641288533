"""The feed: a thread that sends the shop's records to the broker at a steady rate."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.demo.names import ORDERS
from penstock.demo.orders import Shop

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_TICK_S: Final = 0.02
_BEHIND_S_MAX: Final = 0.25  # what a busy machine could not send in time is not made up for
_SETTINGS: Final[dict[str, str | int]] = {
    "client.id": "shop", "acks": "all", "linger.ms": 20, "compression.type": "lz4",
}  # fmt: skip


class Feed:
    """Sends until it is stopped. Its counters may be read by any thread."""

    def __init__(self, shop: Shop, producer: Producer, *, rate: int) -> None:
        self.shop = shop
        self.acknowledged = 0  # records that the broker has on disk
        self.failed = 0
        self._producer = producer
        self._rate = rate
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    @staticmethod
    def settings() -> dict[str, str | int]:
        """What the feed's producer is made with."""
        return dict(_SETTINGS)

    @property
    def sent(self) -> int:
        """Records handed to the producer, acknowledged or not; the closing one is among them."""
        return self.acknowledged + self.failed + len(self._producer)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and send the record that closes the stream. The thread goes on until all is acknowledged."""
        self._stopped.set()

    @property
    def is_done(self) -> bool:
        """Whether it was stopped and the broker has answered for every record."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        began_s = due_s = time.monotonic()
        while not self._stopped.is_set():
            now_s = time.monotonic()
            due_s = max(due_s, now_s - _BEHIND_S_MAX)
            while due_s <= now_s:
                self._send(self.shop.record(due_s - began_s))
                due_s += 1 / self._rate
            self._producer.poll(0)
            self._stopped.wait(max(_TICK_S, due_s - time.monotonic()))
        self._send(self.shop.closing(time.monotonic() - began_s))
        while self._producer.flush(0.5):
            pass

    def _send(self, record: tuple[bytes, bytes]) -> None:
        key, value = record
        while True:
            try:
                self._producer.produce(ORDERS, value, key, on_delivery=self._on_delivery)
                return
            except BufferError:  # the shop is faster than the broker
                self._producer.poll(_TICK_S)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
