"""The part of the page `RESULTS.md` about three brokers; its raw results are in `cluster.json`."""

from bench.cluster.measures import MEASUREMENTS
from bench.figures import bullets, how, number, spread_table
from bench.metrics import KAFKA, LIMIT, PENSTOCK, Better, Metric
from bench.results import Results, bar_table, repeated_text, rows_of, verdict
from penstock.settings import BrokerConfig

LEASE_TTL_S = BrokerConfig().lease_ttl_s
_FAILOVER_SLACK_S = 2

_INTRODUCTION = """\
Written by `make bench-cluster` on {results.date} ({results.minutes:.0f} minutes, {results.rounds} rounds
of the throughput, medians). Three brokers of each on this one machine, on loopback, in alternating
order, with the same clients: Penstock with one etcd, Apache Kafka as three combined nodes (broker and
controller) in KRaft. Both, and etcd, with their default settings."""
_NOTES = """\
The ratio is Penstock ÷ Kafka. A row without a bar is for information. The bar of the longest failover
is the lease ({ttl} s) and {slack} s. All brokers, etcd and the client share the machine's cores."""


def _metrics() -> list[Metric]:
    high, low = Better.HIGHER, Better.LOWER
    kill, many = "kill -9 of a leader to the next ack", "1,000 partitions"
    rows: list[tuple[str, str, str, Better, float | None]] = [
        ("cluster_produce_100B", "produce acks=all, 3 replicas, 100 B", "msg/s", high, 1.5),
        ("cluster_produce_1KiB", "produce acks=all, 3 replicas, 1 KiB", "msg/s", high, 1.5),
        ("cluster_cpu_100B", "CPU of the cluster, 100 B", "CPU-s/GB", low, None),
        ("cluster_cpu_1KiB", "CPU of the cluster, 1 KiB", "CPU-s/GB", low, None),
        ("failover", f"{kill}, median", "s", low, 0.5),
        ("failover_of_controller", f"{kill}, also the controller", "s", low, None),
        ("catch_up", "catching up", "MB/s", high, None),
        ("catch_up_of_copy", "catching up / plain copy over a socket", "×", high, None),
        ("size_create", f"{many}, created and in sync", "s", low, None),
        ("size_failover", f"{many}, kill -9 of the controller until all led", "s", low, None),
        ("size_return", f"{many}, return of a broker until all in sync", "s", low, None),
        ("size_idle_cpu", f"{many}, idle, CPU of a broker", "% of a core", low, None),
        ("size_idle_etcd_cpu", f"{many}, idle, CPU of etcd", "% of a core", low, None),
        ("size_idle_writes", f"{many}, idle, writes to metadata", "1/s", low, None),
    ]
    metrics = [
        Metric(key=key, title=title, unit=unit, better=better, ratio=ratio)
        for key, title, unit, better, ratio in rows
    ]
    longest = Metric(
        key="failover_max",
        title=f"{kill}, longest",
        unit="s",
        better=low,
        limit=LEASE_TTL_S + _FAILOVER_SLACK_S,
    )
    return [*metrics[:5], longest, *metrics[5:]]


METRICS = _metrics()


def section(results: Results) -> str:
    """The part of the page, from its heading on."""
    rows = rows_of(results, METRICS)
    parts = [
        "# Three brokers: Penstock and Apache Kafka as clusters",
        _INTRODUCTION.format(results=results),
        verdict(rows),
        bullets(results.machine | results.versions | results.options),
        repeated_text(results),
        bar_table(rows),
        _NOTES.format(ttl=LEASE_TTL_S, slack=_FAILOVER_SLACK_S),
        _copy_text(results),
        how({name: MEASUREMENTS[name] for name in results.measurements}),
        spread_table(results.samples, "cluster"),
    ]
    return "\n\n".join(part for part in parts if part)


def _copy_text(results: Results) -> str:
    """Catching up as a share of what the machine can move at all."""
    copied = results.median("catch_up_copy", LIMIT)
    if copied is None:
        return ""
    shares = [
        f"{name} {number(rate)} MB/s, {share:.0%} of it"
        for name in (PENSTOCK, KAFKA)
        if (rate := results.median("catch_up", name)) is not None
        and (share := results.median("catch_up_of_copy", name)) is not None
    ]
    text = f"A plain copy over a loopback socket: {number(copied)} MB/s."
    return f"{text} Catching up: {'; '.join(shares)}." if shares else text
