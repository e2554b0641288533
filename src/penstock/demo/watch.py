"""What the demo shows while it runs: rates, lag and results, asked of the broker and of the Spark job."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.client.cluster import LATEST, Cluster
from penstock.demo.feed import Feed
from penstock.demo.jobprocess import JobProcess
from penstock.demo.names import ORDERS, PARTITIONS, PER_MINUTE
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_HISTORY: Final = 4_000


@dataclass(slots=True)
class Flow:
    """A counter's rate over the last seconds, and its past."""

    seconds: float = 2.0
    now: float = 0.0
    past: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def mark(self, count: int) -> None:
        """Tell the count; call it at each refresh."""
        now_s = time.monotonic()
        self._marks.append((now_s, count))
        while self._marks[0][0] < now_s - self.seconds and len(self._marks) > 2:
            self._marks.popleft()
        then_s, then = self._marks[0]
        self.now = (count - then) / (now_s - then_s) if now_s > then_s else 0.0
        self.past.append(self.now)


class Watch:
    """Samples everything at each refresh. For one thread."""

    def __init__(self, cluster: Cluster, feed: Feed, job: JobProcess, results: Consumer) -> None:
        self.feed = feed
        self.job = job
        self.incoming = Flow()
        self.outgoing = Flow(seconds=5.0)  # batches come in steps
        self.records = dict.fromkeys(PARTITIONS, 0)  # by the broker's own offsets
        self.lag = 0
        self.lag_max = 0
        self.lags: deque[float] = deque(maxlen=_HISTORY)
        self.latest: dict[str, dict[str, Any]] = {}  # the newest minute of each country
        self.minutes: set[str] = set()
        self._cluster = cluster
        self._results = results

    def sample(self) -> None:
        self.incoming.mark(self.feed.acknowledged)
        self.outgoing.mark(self.job.queries[PER_MINUTE].rows)
        self._sample_offsets()
        self._read_results()

    def _sample_offsets(self) -> None:
        places = [
            TopicPartition(topic, number)
            for topic, count in PARTITIONS.items()
            for number in range(count)
        ]
        ends = self._cluster.offsets(dict.fromkeys(places, LATEST))
        for topic in PARTITIONS:
            self.records[topic] = sum(ends[one] or 0 for one in places if one.topic == topic)
        orders = [one for one in places if one.topic == ORDERS]
        committed = self._cluster.committed_offsets(PER_MINUTE, orders)
        self.lag = sum((ends[one] or 0) - committed.get(one, 0) for one in orders)
        self.lag_max = max(self.lag_max, self.lag)
        self.lags.append(self.lag)

    def _read_results(self) -> None:
        """What the job wrote to its topic since the last look."""
        while messages := self._results.consume(500, timeout=0):
            for message in messages:
                value = message.value()
                if message.error() is None and value is not None:
                    self._take(json.loads(value))

    def _take(self, row: dict[str, Any]) -> None:
        self.minutes.add(row["minute"])
        known = self.latest.get(row["country"])
        if known is None or known["minute"] <= row["minute"]:
            self.latest[row["country"]] = row
