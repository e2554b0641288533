"""Produce latency at a fixed rate, measured open loop.

Every message has an intended send time, whether or not the broker keeps up. Its latency runs
from that time to the moment when its delivery report reaches the application, so a stall of
the broker (or of the generator) is counted for each message that it delays, and none hides.
`sender_lag_us` says how late the generator itself was.

librdkafka with linger 0 on one partition. Two threads: one sends what is due (then sleeps at
least `_TICK_S`), one waits for delivery reports. One event reports the n messages of one batch,
which are consecutive, so only its first message is looked at; that the events together report
every message exactly once is checked at the end.
"""

import argparse
import ctypes
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.librdkafka import (
    EVENT_DELIVERY,
    EVENT_ERROR,
    PRODUCER,
    Client,
    RdKafkaError,
    describe,
    lib,
    messages_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TICK_S = 0.000_05
_BATCH = 10_000
_SILENCE_S = 30.0
_WARM_UP = 0.2  # of the messages, at the start, not counted
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles over all messages after the warm-up, in microseconds."""

    messages: int
    p50_us: float
    p99_us: float
    p999_us: float
    sender_lag_p99_us: float


class Reports(threading.Thread):
    """Collects delivery events until `expected` messages are reported, or there is a problem."""

    def __init__(self, client: Client, expected: int) -> None:
        super().__init__(daemon=True)
        self.events: list[tuple[int, int, int]] = []  # first message, messages, time in ns
        self.problem: str | None = None
        self._client = client
        self._expected = expected

    def run(self) -> None:
        done, quiet_since = 0, time.monotonic()
        while done < self._expected and self.problem is None:
            event = lib.rd_kafka_queue_poll(self._client.events, 100)
            now_ns = time.monotonic_ns()
            if event:
                done += self._take(event, now_ns)
                lib.rd_kafka_event_destroy(event)
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _SILENCE_S:
                self.problem = f"{done} of {self._expected} reports, then silence"

    def _take(self, event: int, now_ns: int) -> int:
        kind = lib.rd_kafka_event_type(event)
        if kind == EVENT_ERROR:
            self.problem = lib.rd_kafka_event_error_string(event).decode()
        if kind != EVENT_DELIVERY:
            return 0
        count = int(lib.rd_kafka_event_message_count(event))
        first = lib.rd_kafka_event_message_next(event).contents
        if first.err:
            self.problem = f"not delivered: {describe(first.err)}"
        self.events.append((first.opaque - 1, count, now_ns))
        return count

    def times_ns(self) -> "NDArray[np.int64]":
        """When each message was reported."""
        if self.problem is not None:
            raise RdKafkaError(self.problem)
        times = np.zeros(self._expected, dtype=np.int64)
        for first, count, now_ns in self.events:
            times[first : first + count] = now_ns
        if not times.all():
            raise RdKafkaError("some messages were reported twice, others never")
        return times


def run(arguments: argparse.Namespace) -> Latency:
    client = Client(
        PRODUCER,
        arguments.topic,
        {
            "bootstrap.servers": arguments.bootstrap,
            "request.required.acks": arguments.acks,
            "linger.ms": "0",
            "queue.buffering.max.messages": "10000000",
        },
        EVENT_DELIVERY | EVENT_ERROR,
    )
    reports = Reports(client, arguments.messages)
    reports.start()
    intended_ns, sent_ns = _send(client, arguments, reports)
    reports.join()
    latency_us = (reports.times_ns() - intended_ns) / 1_000
    client.close()
    counted = slice(int(arguments.messages * _WARM_UP), None)
    p50, p99, p999 = np.percentile(latency_us[counted], [50, 99, 99.9])
    return Latency(
        messages=arguments.messages,
        p50_us=float(p50),
        p99_us=float(p99),
        p999_us=float(p999),
        sender_lag_p99_us=float(np.percentile((sent_ns - intended_ns)[counted] / 1_000, 99)),
    )


def _send(
    client: Client, arguments: argparse.Namespace, reports: Reports
) -> tuple["NDArray[np.int64]", "NDArray[np.int64]"]:
    """Send each message when it is due; the intended and the actual send times."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    total: int = arguments.messages
    batch = messages_of(arguments.size, _BATCH)
    interval_ns = 1e9 / arguments.rate
    start_ns = time.monotonic_ns() + 10_000_000
    sent_at_ns = np.zeros(total, dtype=np.int64)
    sent = 0
    while sent < total and reports.problem is None:
        now_ns = time.monotonic_ns()
        due = min(total, int((now_ns - start_ns) / interval_ns) + 1) if now_ns >= start_ns else 0
        count = min(due - sent, _BATCH)
        if count > 0:
            for index in range(count):
                batch[index].opaque = sent + index + 1
            if lib.rd_kafka_produce_batch(client.topic, 0, 0, batch, count) != count:
                raise RdKafkaError("librdkafka's queue is full")
            sent_at_ns[sent : sent + count] = now_ns
            sent += count
        next_ns = start_ns + sent * interval_ns
        time.sleep(max(_TICK_S, (next_ns - time.monotonic_ns()) / 1e9))
    return start_ns + (np.arange(total) * interval_ns).astype(np.int64), sent_at_ns
