"""`penstock produce`: records from lines of text or JSON."""

from __future__ import annotations

import enum
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from penstock.cli import output
from penstock.cli.contact import Cluster, unknown_topic
from penstock.cli.failure import CommandError, UsageError
from penstock.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientProperties,
    Json,
    examples,
    is_text,
)
from penstock.cli.recordtext import Record, from_json
from penstock.cli.signals import signals_held
from penstock.cli.values import as_bytes
from penstock.cli.values import headers as parse_headers

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

EPILOG: Final = examples(
    "echo hello | penstock produce orders",
    "penstock produce orders events.txt --key-separator = : lines such as key=value",
    "penstock produce orders events.jsonl --format json --compression zstd",
    "penstock consume orders --json | penstock produce copy --format json --create",
    note=(
        'A JSON line is {"key": …, "value": …, "headers": {…}, "partition": …, "timestamp": …}; only '
        "value is required, and key_base64 and value_base64 hold bytes that are no text."
    ),
)
POLL_EVERY: Final = 64  # records between two looks at what was acknowledged, …
POLL_S: Final = 0.05  # … or this long, for input that trickles
DELIVERY_TIMEOUT_MS: Final = 15_000
RECORD_BYTES_MAX: Final = 100 * 1024 * 1024  # the topic's own limit decides; this is the client's


class Format(enum.StrEnum):
    LINES = "lines"
    JSON = "json"


class Acks(enum.StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Compression(enum.StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: Annotated[str, typer.Argument(help="Topic to write to.", callback=is_text)],
    file: Annotated[str, typer.Argument(help="File to read; - is stdin.")] = "-",
    format: Annotated[
        Format, typer.Option("--format", "-f", help="What a line is.")
    ] = Format.LINES,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Text between key and value in each line."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of records that have none.")
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="Header of every record. May be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Unset: chosen by key.")
    ] = None,
    acks: Annotated[
        Acks, typer.Option("--acks", "-a", help="Who must have a record before it counts.")
    ] = Acks.ALL,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Codec for batches.")
    ] = Compression.NONE,
    create: Annotated[
        bool, typer.Option("--create", help="Create the topic if it is not there.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client: ClientProperties = None,
) -> None:
    """Write records to a topic, one for each line of a file or of stdin."""
    defaults = Record(
        None, as_bytes(key) if key is not None else None, parse_headers(headers) or None
    )
    source, total = _open(file)
    with source:
        cluster = Cluster.reach(bootstrap, client)
        _check_topic(cluster, topic, partition, create=create)
        delivery = _Delivery(cluster, topic, acks=acks, compression=compression)
        records = _records(source, format, as_bytes(key_separator or ""))
        with output.Progress(f"producing to {topic}", total, unit_bytes=True) as progress:
            try:
                for record in records:
                    delivery.send(_completed(record, defaults, partition))
                    if delivery.sent % 1000 == 0:
                        progress.update(delivery.bytes)
            except UsageError as error:  # of a line: what came before it counts
                delivery.finish()
                written = output.count(delivery.acknowledged, "record")
                error.text += f" Acknowledged before it: {written}."
                raise
            except (KeyboardInterrupt, SystemExit):  # another one ends it at once
                delivery.finish()
                raise
            delivery.finish()
    if json:
        output.document(delivery.report())
    else:
        output.note(delivery.summary())


def _open(file: str) -> tuple[BinaryIO, int | None]:
    if file == "-":
        if sys.stdin.isatty():
            output.note("Type records, one per line; Ctrl-D ends.")
        return sys.stdin.buffer, None
    try:
        return open(file, "rb"), os.path.getsize(file)
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from None


def _check_topic(cluster: Cluster, topic: str, partition: int | None, *, create: bool) -> None:
    admin = cluster.admin()
    found = cluster.topics(admin).get(topic)
    if found is None and not create:
        error = unknown_topic(topic)
        error.hint += " --create creates it on the way."
        raise error
    if found is None:
        from penstock.cli.adminapi import NewTopic

        wanted = [NewTopic(topic, num_partitions=-1, replication_factor=-1)]
        cluster.create_topics(admin, wanted, may_exist=True)  # another may make it meanwhile
        found = cluster.topic(topic, admin)
    if partition is not None and partition not in found.partitions:
        raise CommandError(
            f"{topic} has no partition {partition}: it has {len(found.partitions)}, counted from 0.",
            "Leave out --partition to let the key choose.",
        )


def _records(source: BinaryIO, format: Format, separator: bytes) -> Iterator[Record]:
    for number, raw in enumerate(source, 1):
        line = raw[:-1] if raw.endswith(b"\n") else raw
        if format is Format.JSON:
            if line.strip():
                yield from_json(line, number)
        elif separator:
            key, found, value = line.partition(separator)
            if not found:
                raise UsageError(
                    f"Line {number} has no key separator {separator.decode(errors='backslashreplace')!r}."
                )
            yield Record(value, key)
        else:
            yield Record(line)


def _completed(record: Record, defaults: Record, partition: int | None) -> Record:
    """The record with what the command line adds: headers to all, the key where there is none."""
    if partition is None and defaults.key is None and defaults.headers is None:
        return record
    return record._replace(
        key=defaults.key if record.key is None else record.key,
        headers=((record.headers or []) + defaults.headers if defaults.headers else record.headers),
        partition=record.partition if partition is None else partition,
    )


@dataclass(slots=True)
class _Span:
    """What one partition acknowledged; the offsets are None where it did not tell."""

    records: int = 0
    first: int | None = None
    last: int | None = None


class _Delivery:
    """Sends records and keeps account of what the broker acknowledged."""

    def __init__(
        self, cluster: Cluster, topic: str, *, acks: Acks, compression: Compression
    ) -> None:
        from confluent_kafka import KafkaException

        self._cluster = cluster
        self._topic = topic
        self._failure: KafkaError | None = None  # the first
        self._subject = topic  # what it is about
        self._refusal = KafkaException
        self._started_s = time.monotonic()
        self._polled_s = 0.0
        self._spans: dict[int, _Span] = defaultdict(_Span)  # by partition
        self.sent = 0
        self.acknowledged = 0
        self.bytes = 0
        self._producer: Producer = cluster.producer(
            **{
                "acks": acks.value,
                "enable.idempotence": acks is Acks.ALL,
                "compression.type": compression.value,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "message.max.bytes": RECORD_BYTES_MAX,
                "queue.buffering.max.kbytes": 256 * 1024,
            }
        )

    def send(self, record: Record) -> None:
        """Hand one record over; waits while too much is in flight. Raises once any was refused."""
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers or [],
                    partition=record.partition,
                    timestamp=record.timestamp,
                    on_delivery=self._on_delivery,
                )
                break
            except BufferError:
                self._poll(0.1)
                self._check()
            except self._refusal as error:
                self._fail(error.args[0], record.partition)
                self._check()
        self.sent += 1
        self.bytes += len(record.value or b"") + len(record.key or b"") + 1
        if self.sent % POLL_EVERY == 0 or time.monotonic() > self._polled_s + POLL_S:
            self._polled_s = time.monotonic()
            self._poll(0)
            self._check()

    def finish(self) -> None:
        """Wait until every record is acknowledged, or raise."""
        while self._flush(0.2):
            self._check()
        self._check()

    def _poll(self, timeout_s: float) -> None:
        with signals_held():
            self._producer.poll(timeout_s)

    def _flush(self, timeout_s: float) -> int:
        with signals_held():
            return self._producer.flush(timeout_s)

    def report(self) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "records": self.acknowledged,
            "bytes": self.bytes,
            "seconds": round(time.monotonic() - self._started_s, 3),
            "partitions": [
                {
                    "partition": number,
                    "records": span.records,
                    "first_offset": span.first,
                    "last_offset": span.last,
                }
                for number, span in sorted(self._spans.items())
            ],
        }

    def summary(self) -> str:
        seconds = max(time.monotonic() - self._started_s, 1e-3)
        return (
            f"{output.count(self.acknowledged, 'record')} ({output.size(self.bytes)}) to {self._topic} in "
            f"{seconds:.2f} s: {self.acknowledged / seconds:,.0f} records/s"
        )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._fail(error, message.partition())
            return
        self.acknowledged += 1
        offset = message.offset()
        span = self._spans[message.partition() or 0]
        span.records += 1
        if offset is not None:  # with acks=0 nobody tells
            span.first = offset if span.first is None else min(span.first, offset)
            span.last = offset if span.last is None else max(span.last, offset)

    def _fail(self, error: KafkaError, partition: int | None) -> None:
        if self._failure is None:
            self._failure = error
            if error.name() == "_UNKNOWN_PARTITION":
                self._subject += f" partition {partition}"

    def _check(self) -> None:
        if self._failure is None:
            return
        self._producer.purge()
        self._poll(0)
        error = self._cluster.explain(self._failure, self._subject)
        error.text += f" {self.acknowledged:,} of {self.sent:,} records were acknowledged before."
        raise error
