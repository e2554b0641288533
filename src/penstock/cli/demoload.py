"""The load of `penstock demo`: orders and payments, a producer, and two groups that read them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.cli import offsets
from penstock.cli.cluster import REQUEST_TIMEOUT_S, Cluster
from penstock.cli.groupstate import committed_offsets
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

TOPICS: Final = {"orders": 6, "payments": 3}
PROMPT_GROUP: Final = "billing"
LATE_GROUP: Final = "analytics"
LATENCY_SAMPLES_MAX: Final = 20_000
_SAMPLE_EVERY: Final = 50  # records per latency sample
_TICK_S: Final = 0.01

_GOODS: Final = (
    ("Espresso beans 1 kg", 18.90), ("Pour-over kettle", 54.00), ("Paper filters", 4.50),
    ("Burr grinder", 129.00), ("Ceramic cup", 12.00), ("Milk pitcher", 21.50),
)  # fmt: skip
_CITIES: Final = ("Bergen", "Lyon", "Porto", "Leipzig", "Turin", "Ghent", "Graz", "Malmö")


def sample_orders(count: int, seed: int = 7) -> list[tuple[bytes, str]]:
    """Orders as (customer key, JSON with room for its number): made once, sent again and again."""
    dice = random.Random(seed)
    orders = []
    for _ in range(count):
        basket = dice.choices(_GOODS, k=dice.randint(1, 3))
        customer = f"c{dice.randint(1, 5000):05d}"
        body = {
            "customer": customer,
            "city": dice.choice(_CITIES),
            "items": [{"name": name, "price": price} for name, price in basket],
            "total": round(sum(price for _, price in basket), 2),
            "currency": "EUR",
        }
        text = json.dumps(body, ensure_ascii=False)
        orders.append((customer.encode(), '{"order": %d, ' + text[1:].replace("%", "%%")))
    return orders


@dataclass
class Flow:
    """Records counted by one thread and read by another, with the rate over the last second."""

    count: int = 0
    bytes: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=5))

    def rate(self) -> float:
        """Records per second since the mark about a second ago; call it at each refresh."""
        now = (time.monotonic(), self.count)
        self._marks.append(now)
        then = self._marks[0]
        return (now[1] - then[1]) / (now[0] - then[0]) if now[0] > then[0] else 0.0


@dataclass
class GroupState:
    """A consumer group of the demo as its display needs it."""

    members: int = 0
    lag: int = 0
    lag_max: int = 0
    flow: Flow = field(default_factory=Flow)


class Load:
    """Threads that produce and consume; `sample` asks the broker how far everything is."""

    def __init__(self, cluster: Cluster, *, rate: int, seconds: float) -> None:
        self.cluster = cluster
        self.rate = rate
        self.seconds = seconds
        self.produced = Flow()
        self.failed = 0
        self.topics = dict.fromkeys(TOPICS, 0)  # records by the broker's own offsets
        self.groups = {PROMPT_GROUP: GroupState(), LATE_GROUP: GroupState()}
        self.ack_ms: deque[float] = deque(maxlen=LATENCY_SAMPLES_MAX)
        self.end_to_end_ms: deque[float] = deque(maxlen=LATENCY_SAMPLES_MAX)
        self._admin = cluster.admin()
        self._producing = threading.Event()
        self._consuming = threading.Event()
        self._threads: list[threading.Thread] = []
        self._producer_thread: threading.Thread | None = None

    def __enter__(self) -> Load:
        from penstock.cli.adminapi import NewTopic

        new = [NewTopic(name, num_partitions=count) for name, count in TOPICS.items()]
        self.cluster.settle(self._admin.create_topics(new, request_timeout=REQUEST_TIMEOUT_S))
        return self

    def __exit__(self, *_: object) -> None:
        self._producing.clear()
        self._consuming.clear()
        for thread in self._threads:
            thread.join()

    def start(self) -> None:
        self._producing.set()
        self._consuming.set()
        for number in range(2):
            self._join_group(PROMPT_GROUP, ["orders"], f"billing-{number}")
        self._producer_thread = self._spawn(self._produce)

    def start_late_group(self) -> None:
        """Let the second group join, behind everything written so far. May be repeated."""
        if self.groups[LATE_GROUP].members == 0:
            self._join_group(LATE_GROUP, ["orders", "payments"], "analytics-0")

    def stop_producing(self) -> None:
        """Stop the stream and wait until the broker acknowledged all of it."""
        self._producing.clear()
        if self._producer_thread is not None:
            self._producer_thread.join()

    def caught_up(self) -> bool:
        return all(group.lag == 0 for group in self.groups.values())

    def sample(self) -> None:
        """Ask the broker for the end of every partition and for what the groups committed."""
        places = [
            TopicPartition(topic, number)
            for topic, count in TOPICS.items()
            for number in range(count)
        ]
        known = offsets.ranges(self.cluster, self._admin, places)
        for topic in TOPICS:
            self.topics[topic] = sum(
                s.records for where, s in known.items() if where.topic == topic
            )
        wanted = {PROMPT_GROUP: {"orders"}, LATE_GROUP: set(TOPICS)}
        for name, group in self.groups.items():
            committed = committed_offsets(self.cluster, self._admin, name)
            group.lag = sum(
                span.end - committed.get(where, span.start)
                for where, span in known.items()
                if where.topic in wanted[name]
            )
            group.lag_max = max(group.lag_max, group.lag)

    def summary(self) -> dict[str, Any]:
        """What happened, with the field names of `--json`."""
        return {
            "seconds": self.seconds,
            "produced": self.produced.count,
            "produced_bytes": self.produced.bytes,
            "failed": self.failed,
            "topics": dict(self.topics),
            "groups": {
                name: {"read": group.flow.count, "lag": group.lag, "lag_max": group.lag_max}
                for name, group in self.groups.items()
            },
            "ack_ms": percentiles(self.ack_ms),
            "end_to_end_ms": percentiles(self.end_to_end_ms),
        }

    def _spawn(self, target: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _join_group(self, group: str, topics: list[str], name: str) -> None:
        self.groups[group].members += 1
        self._spawn(self._consume, group, topics, name)

    def _produce(self) -> None:
        settings = {"linger.ms": 2, "acks": "all", "client.id": "shop", "compression.type": "lz4"}
        producer = self.cluster.producer(**settings)
        orders = sample_orders(2_000)
        for number in self._paced(producer):
            key, template = orders[number % len(orders)]
            value = template % number
            callback = self._on_sample if number % _SAMPLE_EVERY == 0 else self._on_delivery
            producer.produce("orders", value, key, on_delivery=callback)
            if number % 3 == 0:
                paid = f'{{"order": {number}, "paid": true}}'
                producer.produce("payments", paid, key, on_delivery=self._on_delivery)
            if number % 100 == 0:
                producer.poll(0)
        while producer.flush(0.5):
            pass

    def _paced(self, producer: Producer) -> Iterator[int]:
        """Order numbers at the wanted rate; what the machine cannot keep up with is not made up for."""
        number = 0
        due_s = time.monotonic()
        while self._producing.is_set():
            for _ in range(max(1, int(self.rate * _TICK_S))):
                yield number
                number += 1
            due_s = max(due_s + max(_TICK_S, 1 / self.rate), time.monotonic() - 0.1)
            while (left_s := due_s - time.monotonic()) > 0:
                producer.poll(left_s)  # a latency is measured when its callback runs

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.produced.count += 1
        self.produced.bytes += len(message)

    def _on_sample(self, error: KafkaError | None, message: Message) -> None:
        self._on_delivery(error, message)
        latency_s = message.latency()
        if latency_s is not None:
            self.ack_ms.append(latency_s * 1000)

    def _consume(self, group: str, topics: list[str], name: str) -> None:
        consumer = self.cluster.consumer(
            **{
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 250,
                "fetch.wait.max.ms": 50,
            }
        )
        flow = self.groups[group].flow
        prompt = group == PROMPT_GROUP
        consumer.subscribe(topics)
        try:
            while self._consuming.is_set():
                batch = [m for m in consumer.consume(500, timeout=0.05) if m.error() is None]
                flow.count += len(batch)
                flow.bytes += sum(map(len, batch))
                if batch and prompt:
                    now_ms = time.time() * 1000
                    self.end_to_end_ms.append(now_ms - batch[-1].timestamp()[1])
        finally:
            consumer.close()


def percentiles(samples: deque[float]) -> dict[str, float | None]:
    """Median and 99th percentile in milliseconds, or None before the first sample."""
    ordered = sorted(samples.copy())
    if not ordered:
        return {"p50": None, "p99": None}
    return {
        "p50": round(ordered[len(ordered) // 2], 2),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
    }
