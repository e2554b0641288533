"""What is measured, in which unit, which bar it has to meet, and how the figure came about."""

from dataclasses import dataclass
from enum import Enum

PENSTOCK, KAFKA, KAFKA_FLUSHED, LIMIT = "penstock", "kafka", "kafka flush.messages=1", "limit"


class Better(Enum):
    HIGHER = "≥"
    LOWER = "≤"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the report. At most one of `ratio` and `limit` is the bar.

    `ratio` bounds Penstock's median over the median of `baseline`; `limit` bounds Penstock's
    own median, in `unit`.
    """

    key: str
    title: str
    unit: str
    better: Better
    ratio: float | None = None
    limit: float | None = None
    baseline: str = KAFKA

    def met(self, penstock: float, baseline: float | None) -> bool | None:
        """None when there is no bar, or nothing to compare with."""
        if self.limit is not None:
            figure, bar = penstock, self.limit
        elif self.ratio is not None and baseline:
            figure, bar = penstock / baseline, self.ratio
        else:
            return None
        return figure >= bar if self.better is Better.HIGHER else figure <= bar

    @property
    def bar(self) -> str:
        """The bar in words: `≥ 1.0×`, `≤ 50 MB`, or a dash."""
        if self.ratio is not None:
            return f"{self.better.value} {self.ratio:g}×"
        if self.limit is not None:
            return f"{self.better.value} {self.limit:g} {self.unit}"
        return "–"


def _throughput(size: str, text: str) -> list[Metric]:
    high, low = Better.HIGHER, Better.LOWER
    produce, consume, durable = "produce acks=1", "consume", f"produce acks=all, {text}"
    rows = [
        (f"produce_{size}", f"{produce}, {text}, librdkafka", "msg/s", high, 1.0, KAFKA),
        (f"java_produce_{size}", f"{produce}, {text}, Java", "msg/s", high, 1.0, KAFKA),
        (f"consume_{size}", f"{consume}, {text}, librdkafka", "msg/s", high, 1.0, KAFKA),
        (f"java_consume_{size}", f"{consume}, {text}, Java", "msg/s", high, 1.0, KAFKA),
        (f"durable_{size}", f"{durable}, both fsynced", "msg/s", high, 1.0, KAFKA_FLUSHED),
        (f"durable_{size}", f"{durable}, Kafka unflushed", "msg/s", high, None, KAFKA),
        (f"cpu_produce_{size}", f"broker CPU, produce, {text}", "CPU-s/GB", low, 0.75, KAFKA),
        (f"cpu_consume_{size}", f"broker CPU, consume, {text}", "CPU-s/GB", low, 0.75, KAFKA),
    ]
    return [
        Metric(key=key, title=title, unit=unit, better=better, ratio=ratio, baseline=baseline)
        for key, title, unit, better, ratio, baseline in rows
    ]


def _latency(rate: int) -> list[Metric]:
    title = f"produce latency at {rate:,} msg/s"
    rows = [
        (f"latency_{rate}_p50", f"{title}, p50", "µs", None),
        (f"latency_{rate}_p99", f"{title}, p99", "µs", 0.2),
        (f"latency_{rate}_p999", f"{title}, p99.9", "µs", None),
        (f"java_latency_{rate}_p99", f"{title}, p99, Java", "ms", None),
    ]
    return [
        Metric(key=key, title=title, unit=unit, better=Better.LOWER, ratio=ratio)
        for key, title, unit, ratio in rows
    ]


def _against_kafka() -> list[Metric]:
    high, low = Better.HIGHER, Better.LOWER
    rows = [
        ("sync_rate", "synchronous produce, rate", "req/s", high, 1.5),
        ("sync_p50", "synchronous produce, median", "µs", low, None),
        ("rss", "memory after the load, VmRSS", "MB", low, 0.1),
        ("rss_anon", "memory after the load, RssAnon", "MB", low, None),
        ("startup_new", "start-up to first ack, new data directory", "s", low, 0.2),
        ("startup_old", "start-up to first ack, existing data", "s", low, 0.2),
    ]
    return [
        Metric(key=key, title=title, unit=unit, better=better, ratio=ratio)
        for key, title, unit, better, ratio in rows
    ]


def _absolute() -> list[Metric]:
    high, low = Better.HIGHER, Better.LOWER
    rows = [
        ("partitions_produce", "produce, 1,000 partitions / 1", "×", high, 0.8),
        ("partitions_consume", "consume, 1,000 partitions / 1", "×", high, 0.8),
        ("partitions_unlocked", "the same, client without a malloc lock", "×", high, 0.8),
        ("partitions_drain", "the same, client that only counts", "×", high, 0.8),
        ("connections", "1,000 idle connections", "MB", low, 50.0),
        ("recovery", "recovery after kill -9", "s", low, 1.0),
    ]
    return [
        Metric(key=key, title=title, unit=unit, better=better, limit=limit)
        for key, title, unit, better, limit in rows
    ]


METRICS = [
    *_throughput("100B", "100 B"),
    *_throughput("1KiB", "1 KiB"),
    *_latency(10_000),
    *_latency(50_000),
    *_against_kafka(),
    *_absolute(),
]
# Written beside the table, not in it: nothing of Kafka's to compare with.
LIMIT_KEYS = ("in_mb_per_s", "out_mb_per_s", "in_cpu_s_per_gb", "out_cpu_s_per_gb")
