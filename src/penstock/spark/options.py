"""Every option of the data source, declared once: its type, its default and what it does.

The table of `docs/SPARK.md` is held against `OPTIONS` by a test. Names are those of Spark's Kafka connector
and, as there, their case does not matter. What is not in the table is refused with a suggestion: a
misspelt option never passes in silence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.spark.errors import OptionError

Kind = Literal["text", "integer", "boolean", "duration", "bytes"]
Scope = Literal["read", "batch", "stream", "write", "both"]

_DURATION_MS: Final = {
    "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_BYTES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INT32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `scope`: where it has a meaning; `connector`: how Spark's Kafka connector has it."""

    name: str
    scope: Scope
    kind: Kind = "text"
    default: str | None = None  # as a person would write it; None: not set
    help: str
    connector: str = "the same"
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()

    def parse(self, text: str) -> Any:
        """The value of this text, or `OptionError` that says what would be legal."""
        text = text.strip()
        value: Any = text
        if self.kind == "integer":
            if not re.fullmatch(r"[+-]?\d+", text):
                raise OptionError(f"{self.name} = {text!r}: must be a whole number")
            value = int(text)
        elif self.kind == "boolean":
            if text.lower() not in {"true", "false"}:
                raise OptionError(f"{self.name} = {text!r}: must be true or false")
            value = text.lower() == "true"
        elif self.kind == "duration":
            value = _with_unit(self.name, text, _DURATION_MS, "ms", "15m, 30s or 500ms")
        elif self.kind == "bytes":
            value = _with_unit(self.name, text, _BYTES, "", "67108864, 64m or 1g")
        if self.choices:
            value = text.lower()
            if value not in self.choices:
                raise OptionError(f"{self.name} = {text!r}: must be {' or '.join(self.choices)}")
        if self.minimum is not None and value < self.minimum:
            raise OptionError(f"{self.name} = {text!r}: must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise OptionError(f"{self.name} = {text!r}: must be at most {self.maximum}")
        return value


def _with_unit(name: str, text: str, units: Mapping[str, int], default: str, examples: str) -> int:
    matched = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    unit = matched[2] or default if matched else default
    if matched is None or unit not in units:
        raise OptionError(f"{name} = {text!r}: must be like {examples}")
    return int(matched[1]) * units[unit]


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="kafka.bootstrap.servers", scope="both",
        help="Brokers to ask first, as host:port,host:port. `bootstrap.servers` is the same.",
        connector="only with the `kafka.` before it",
    ),
    # What to read.
    Option(name="subscribe", scope="read", help="Topics to read, separated by commas."),
    Option(
        name="subscribePattern", scope="read",
        help="A regular expression: topics whose whole name matches are read, later ones too.",
        connector="the same, in Java's dialect; Penstock's is Python's",
    ),
    Option(
        name="assign", scope="read",
        help='Partitions to read, as JSON: `{"orders":[0,1],"refunds":[2]}`.',
    ),
    Option(
        name="startingOffsets", scope="read",
        help="Where to start: `earliest` (default of a batch), `latest` (default of a stream, which only "
        'uses it without a checkpoint), JSON `{"orders":{"0":23,"1":-2}}` (-2 earliest, -1 latest), '
        "`-10 minutes` before now, or `-1000` offsets before the end of each partition.",
        connector="no relative starts",
    ),
    Option(
        name="endingOffsets", scope="batch",
        help="Where to end, before this offset: `latest` (default), JSON (-1 latest), `-10 minutes`, "
        "`-1000`.",
        connector="no relative ends",
    ),
    Option(
        name="startingTimestamp", scope="read", kind="integer", minimum=0,
        help="Start at the first record of each partition with this timestamp (ms) or a later one. "
        "Goes before `startingOffsetsByTimestamp`, which goes before `startingOffsets`.",
    ),
    Option(
        name="endingTimestamp", scope="batch", kind="integer", minimum=0,
        help="End before the first record of each partition with this timestamp (ms) or a later one.",
    ),
    Option(
        name="startingOffsetsByTimestamp", scope="read",
        help='A timestamp (ms) for each partition: `{"orders":{"0":1700000000000}}`.',
    ),
    Option(
        name="endingOffsetsByTimestamp", scope="batch",
        help="The same for the end.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy", scope="read", default="error",
        choices=("error", "latest"),
        help="When no record is that late: `error`, or start at `latest`.",
    ),
    Option(
        name="includeHeaders", scope="both", kind="boolean", default="false",
        help="Add the column `headers`. A schema that names `headers` does so, too. A write takes the "
        "column whenever it is there.",
    ),
    Option(
        name="failOnDataLoss", scope="read", kind="boolean", default="true",
        help="Fail when records are gone that should have been read; else warn once for each gap.",
        connector="the same, with false alarms",
    ),
    Option(
        name="minPartitions", scope="read", kind="integer", minimum=1,
        help="Read in at least about this many tasks, if there are as many records.",
    ),
    Option(
        name="maxRecordsPerPartition", scope="read", kind="integer", minimum=1,
        help="Read at most about this many records in one task.",
    ),
    Option(
        name="splitBytes", scope="read", kind="bytes", default="256m", minimum=1,
        help="Read at most about this many bytes of the log in one task. As long as there are fewer "
        "tasks than cores, large ones are split further.",
        connector="not there: one task for each partition",
    ),
    Option(
        name="fetchBytes", scope="read", kind="bytes", default="8m", minimum=1024,
        maximum=256 << 20,  # an answer may be larger by a batch, and must still be one that is taken
        help="Bytes asked for in one fetch, `256m` at most. A task holds a few of them. They are "
        "decompressed 32 MiB at a time.",
        connector="`kafka.max.partition.fetch.bytes`",
    ),
    Option(
        name="readFiles", scope="read", kind="boolean", default="true",
        help="Read the records of a broker on the same machine from its files, as it says where they are. "
        "Where that can not be done, they come through the broker.",
        connector="not there",
    ),
    Option(
        name="kafka.isolation.level", scope="read", default="read_uncommitted",
        choices=("read_uncommitted", "read_committed"),
        help="`read_committed` skips records of transactions that were aborted or are still open.",
    ),
    Option(
        name="kafka.check.crcs", scope="read", kind="boolean", default="true",
        help="Check the CRC of every batch.",
    ),
    # Streaming.
    Option(
        name="maxOffsetsPerTrigger", scope="stream", kind="integer", minimum=1,
        help="Read at most this many offsets in a batch, shared by the partitions by what each has.",
    ),
    Option(
        name="minOffsetsPerTrigger", scope="stream", kind="integer", minimum=0,
        help="Wait for this many new offsets before a batch. Does not hold back an AvailableNow query.",
    ),
    Option(
        name="maxTriggerDelay", scope="stream", kind="duration", default="15m",
        help="Wait no longer than this for `minOffsetsPerTrigger`.",
    ),
    Option(
        name="kafka.group.id", scope="read",
        help="The consumer group in which a stream's progress is shown. Nothing is ever read from it: "
        "the checkpoint decides.",
        connector="the group of its consumers; it commits nothing",
    ),
    Option(
        name="groupIdPrefix", scope="read",
        help="Begin of the group's name if `kafka.group.id` is not given; the topics are its end. "
        "Default: `spark-` and the application's name.",
        connector="begin of a random group id",
    ),
    Option(
        name="commitProgress", scope="stream", kind="boolean", default="true",
        help="Commit what a stream has read as offsets of its group, so that every Kafka tool shows "
        "its lag.",
        connector="not there",
    ),
    # Writing.
    Option(
        name="topic", scope="write",
        help="Topic of all rows; the column `topic` is then ignored.",
    ),
    Option(
        name="kafka.acks", scope="write", default="all", choices=("all", "-1", "1"),
        help="Whose word counts for a write: `all` (on disk) or `1` (in the leader's memory).",
        connector="also `0`",
    ),
    Option(
        name="kafka.compression.type", scope="write", default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="Codec of the record batches.",
    ),
    Option(
        name="kafka.batch.size", scope="write", kind="bytes", default="900k", minimum=1,
        help="Size of a record batch, before compression. It must fit the topic's `max.message.bytes`.",
        connector="the same; default 16384",
    ),
    Option(
        name="kafka.max.request.size", scope="write", kind="bytes", default="1048576", minimum=1,
        help="Largest record that may be written; a larger one fails the task before it is sent.",
    ),
    Option(
        name="kafka.buffer.memory", scope="write", kind="bytes", default="64m", minimum=1024,
        help="Bytes on their way to brokers, per task; then the task waits.",
        connector="the same; default 32 MiB",
    ),
    Option(
        name="kafka.delivery.timeout.ms", scope="write", kind="integer", default="120000", minimum=1,
        help="How long a batch is tried again before its task fails.",
    ),
    Option(
        name="kafka.partitioner", scope="write", default="murmur2", choices=("murmur2", "crc32"),
        help="Hash of keys to partitions: `murmur2` as Java clients and the connector do, or `crc32` as "
        "librdkafka does. Rows without a key go to one partition after another.",
        connector="`kafka.partitioner.class`",
    ),
    # Both.
    Option(
        name="kafka.client.id", scope="both", default="penstock-spark",
        help="The name by which brokers know this client.",
    ),
    Option(
        name="kafka.request.timeout.ms", scope="both", kind="integer", default="30000", minimum=1,
        maximum=_INT32_MAX,  # a write tells it to the broker
        help="How long to wait for one answer.",
    ),
    Option(
        name="retryTimeout", scope="both", kind="duration", default="60s",
        help="How long to try again while brokers cannot be reached or partitions have no leader.",
        connector="`fetchOffset.numRetries` × `fetchOffset.retryIntervalMs`",
    ),
)  # fmt: skip

# Accepted and without effect: nothing that they promise is broken by not heeding them.
HARMLESS: Final[Mapping[str, str]] = {
    "fetchOffset.numRetries": "retries go on for `retryTimeout`",
    "fetchOffset.retryIntervalMs": "retries wait a little longer each time",
    "kafkaConsumer.pollTimeoutMs": "a fetch is tried again for `retryTimeout`",
    "checkpointLocation": "Spark's own",
    "queryName": "Spark's own",
    "kafka.security.protocol": "only PLAINTEXT is there; anything else is refused",
    **{
        f"kafka.{name}": "tuning of the Java client"
        for name in (
            "api.version.request", "client.dns.lookup", "client.rack", "connections.max.idle.ms",
            "default.api.timeout.ms", "enable.idempotence", "fetch.max.bytes", "fetch.max.wait.ms",
            "fetch.min.bytes", "heartbeat.interval.ms", "linger.ms", "max.block.ms",
            "max.in.flight.requests.per.connection", "max.partition.fetch.bytes",
            "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms",
            "metadata.max.idle.ms", "metric.reporters", "metrics.num.samples",
            "metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes",
            "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "retry.backoff.max.ms",
            "retry.backoff.ms", "send.buffer.bytes", "session.timeout.ms",
            "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms",
        )
    },
}  # fmt: skip

# Refused: to ignore them would change what the query means.
REFUSED: Final[Mapping[str, str]] = {
    "path": "topics are named by `subscribe` or `topic`, not by a path",
    "kafka.auto.offset.reset": "use startingOffsets: the checkpoint decides where a query goes on",
    "kafka.enable.auto.commit": "progress is committed when a batch is done; see commitProgress",
    "kafka.key.deserializer": "keys are bytes; use DataFrame operations to read them",
    "kafka.value.deserializer": "values are bytes; use DataFrame operations to read them",
    "kafka.key.serializer": "keys are bytes or text; use DataFrame operations to make them",
    "kafka.value.serializer": "values are bytes or text; use DataFrame operations to make them",
    "kafka.interceptor.classes": "there is no Java client that could run them",
    "kafka.partitioner.class": "there is no Java client that could run it; see kafka.partitioner",
    "kafka.partitioner.ignore.keys": "use the column `partition` to place records",
    "kafka.transactional.id": "transactions are not there yet",
}

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_HARMLESS: Final = {name.lower() for name in HARMLESS}
_REFUSED: Final = {name.lower(): reason for name, reason in REFUSED.items()}
_ALIASES: Final = {"bootstrap.servers": "kafka.bootstrap.servers"}
_SCOPES: Final[Mapping[str, str]] = {
    "read": "for reading", "batch": "for batch reads", "stream": "for streaming reads",
    "write": "for writing",
}  # fmt: skip


class Options:
    """The options of one read or write, checked: `options["startingOffsets"]` is the parsed value.

    An option that was not given has its default, None if there is none.
    """

    def __init__(self, given: Mapping[str, str], use: Literal["batch", "stream", "write"]) -> None:
        self._values: dict[str, Any] = {
            name: option.parse(option.default) if option.default is not None else None
            for name, option in _BY_NAME.items()
        }
        self._given: set[str] = set()
        for name, text in given.items():
            self._take(name, text, use)
        if not self["kafka.bootstrap.servers"]:
            raise OptionError("kafka.bootstrap.servers must say where the brokers are: host:port")

    def _take(self, name: str, text: str, use: str) -> None:
        key = _ALIASES.get(name.lower(), name.lower())
        if key == "kafka.security.protocol" and text.strip().upper() != "PLAINTEXT":
            raise OptionError(f"{name} = {text!r}: only PLAINTEXT is there yet")
        if key in _REFUSED:
            raise OptionError(f"{name} is not supported: {_REFUSED[key]}")
        if key in _HARMLESS:
            return
        option = _BY_NAME.get(key)
        if option is None:
            raise OptionError(f"unknown option {name!r}{_suggestion(key)}")
        _check_scope(option, use)
        self._values[key] = option.parse(text)
        self._given.add(key)

    def __getitem__(self, name: str) -> Any:
        return self._values[name.lower()]

    def is_given(self, name: str) -> bool:
        """Whether the person wrote it, rather than leaving it at its default."""
        return name.lower() in self._given


def _check_scope(option: Option, use: str) -> None:
    if option.scope == "write" and use != "write":
        raise OptionError(f"{option.name} is for writing; this is a read")
    if option.scope in {"read", "batch", "stream"} and use == "write":
        raise OptionError(f"{option.name} is {_SCOPES[option.scope]}; this is a write")
    # A stream that were to end somewhere would not; a batch without triggers is none the worse.
    if option.scope == "batch" and use == "stream":
        raise OptionError(f"{option.name} is for batch reads: a stream has no end")


def _suggestion(key: str) -> str:
    known = {**{name: option.name for name, option in _BY_NAME.items()}}
    known |= {name.lower(): name for name in HARMLESS}
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    if close:
        return f"; did you mean {known[close[0]]!r}?"
    return "; docs/SPARK.md has a table of all options"


def documentation() -> str:
    """The tables of `docs/SPARK.md`: `python -c` and a print of it is how they got there."""
    titles: Mapping[str, str] = {
        "both": "Both ways", "read": "Reading", "batch": "Batch reads", "stream": "Streaming reads",
        "write": "Writing",
    }  # fmt: skip
    lines = []
    for scope, title in titles.items():
        lines += [f"### {title}", "", "| option | default | what it does | Kafka connector |"]
        lines.append("|---|---|---|---|")
        for option in OPTIONS:
            if option.scope == scope:
                default = f"`{option.default}`" if option.default is not None else ""
                cells = (f"`{option.name}`", default, option.help, option.connector)
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
