"""Every option, documented once: the broker's own settings and the settings of a topic.

`BrokerConfig` is frozen and validated before anything starts; the command line, the environment
(`PENSTOCK_…`) and the TOML file are all read from its fields. `TopicConfig` is what a topic's own
settings and the broker's defaults come to; `TOPIC_SETTINGS` is the list a client may describe and alter.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

from penstock.errors import ConfigError

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

Validator = Callable[[Any], str | None]


def at_least(minimum: int) -> Validator:
    return lambda value: None if value >= minimum else f"must be at least {minimum}"


def between(minimum: int, maximum: int) -> Validator:
    def check(value: Any) -> str | None:
        return None if minimum <= value <= maximum else f"must be {minimum} to {maximum}"

    return check


def one_of(*choices: str) -> Validator:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def option(
    default: Any, text: str, check: Validator | None = None, *, is_secret: bool = False
) -> Any:
    """A broker setting: its default, the sentence that `--help` shows, and the check on its value.

    The value of a secret is shown to nobody.
    """
    metadata = {"help": text, "check": check, "is_secret": is_secret}
    return field(default=default, repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of one broker. Construct it and it is valid, or `ConfigError` says what is not."""

    data_dir: str = option("data", "Directory that holds the log segments and the metadata.")
    addr: str = option("127.0.0.1:9092", "Address to listen on for Kafka clients, as host:port.")
    advertise_addr: str = option(
        "", "Address that clients are told to connect to. Empty: the listening address."
    )
    broker_id: int = option(0, "Id of this broker, stable across restarts.", between(0, INT32_MAX))
    rack: str = option("", "Rack or zone of this broker, as told to clients. Empty: none.")
    log_level: str = option(
        "info", "How much to log: debug, info, warning, error.",
        one_of("debug", "info", "warning", "error"),
    )  # fmt: skip
    auto_create_topics: bool = option(
        True, "Create a topic when a client asks for one that is not there."
    )
    default_partitions: int = option(
        1, "Partitions of a topic created without a count.", between(1, 100_000)
    )
    request_bytes_max: int = option(
        100 * 1024 * 1024, "Largest request accepted; a larger one closes the connection.",
        between(64 * 1024, INT32_MAX),
    )  # fmt: skip
    connections_max: int = option(
        10_000, "Connections accepted at once; further ones are closed.", at_least(1)
    )
    connection_idle_ms_max: int = option(
        600_000, "Close a connection that sends nothing for this long.", at_least(1_000)
    )
    idle_poll_us: int = option(
        100, "Look for the next request this long before sleeping, while they follow each other about as"
        " closely; 0: sleep at once.",
        between(0, 1_000),
    )  # fmt: skip
    pace_librdkafka: bool = option(
        True, "Give clients built upon librdkafka one partition's share at a time, and when they are through"
        " with the one before: they read small messages up to twice as fast.",
    )  # fmt: skip
    fetch_bytes_max: int = option(
        55 * 1024 * 1024, "Most bytes in one fetch answer, whatever the client asks.",
        between(1024, 1024 * 1024 * 1024),
    )  # fmt: skip
    fetch_sessions_max: int = option(
        1_000, "Incremental fetch sessions kept; the longest unused makes room.", at_least(0)
    )
    checkpoint_interval_ms: int = option(
        250, "How often recovery points are written for logs that grew.", at_least(10)
    )
    retention_check_interval_ms: int = option(
        60_000, "How often retention looks for old segments.", at_least(10)
    )
    producer_expiry_ms: int = option(
        86_400_000, "Forget an idempotent producer that wrote nothing for this long.", at_least(1)
    )
    open_segments_max: int = option(
        2_000, "Old segment files kept open for reading; more are opened and closed in turn.",
        at_least(8),
    )  # fmt: skip
    group_session_timeout_ms_min: int = option(
        6_000, "Shortest session timeout a group member may ask for.", at_least(1)
    )
    group_session_timeout_ms_max: int = option(
        1_800_000, "Longest session timeout a group member may ask for.", at_least(1)
    )
    group_initial_rebalance_delay_ms: int = option(
        0, "How long a new group waits for more members before its first assignment.", at_least(0)
    )
    group_members_max: int = option(10_000, "Members accepted in one group.", at_least(1))
    offsets_retention_ms: int = option(
        7 * 86_400_000,
        "Keep the offsets of a group that has no members for this long.",
        at_least(1),
    )
    offset_metadata_bytes_max: int = option(
        4_096, "Longest note a client may store beside an offset.", at_least(0)
    )
    etcd: str = option(
        "",
        "Endpoints of etcd as host:port,host:port: makes this broker a member of a cluster."
        " Empty: it is alone.",
    )
    etcd_prefix: str = option(
        "penstock/", "What the keys of this cluster begin with in etcd; clusters can share one."
    )
    etcd_wait_ms: int = option(
        30_000,
        "Wait this long for etcd to answer when the broker starts, then give up.",
        at_least(0),
    )
    etcd_user: str = option("", "User for etcd. Empty: etcd asks for none.")
    etcd_password: str = option(
        "", "Password for etcd; better given as PENSTOCK_ETCD_PASSWORD.", is_secret=True
    )
    etcd_ca: str = option("", "File with the CA of etcd's certificate: turns TLS on.")
    etcd_cert: str = option("", "File with our certificate for etcd, if it asks for one.")
    etcd_key: str = option("", "File with the key of that certificate.")
    lease_ttl_s: int = option(
        3, "A broker that is not heard of for this long is dead, and others lead what it led.",
        between(2, 3_600),
    )  # fmt: skip
    default_replication_factor: int = option(
        3, "Replicas of a topic created without a count; fewer where there are fewer brokers.",
        between(1, 32_767),
    )  # fmt: skip
    acks_wait_ms_max: int = option(
        5_000, "Longest wait of an acks=all write for the replicas in sync.", at_least(1)
    )
    replica_lag_ms_max: int = option(
        10_000, "A follower that was not caught up for this long leaves the ISR.", at_least(100)
    )
    replica_lag_records_max: int = option(
        0, "A follower that is further behind leaves the ISR at once; 0: no bound.", at_least(0)
    )
    replica_fetch_wait_ms_max: int = option(
        500, "How long a leader may hold a follower's fetch that finds nothing.",
        between(1, INT32_MAX),
    )  # fmt: skip
    replica_fetch_bytes_max: int = option(
        16 * 1024 * 1024, "Most bytes a follower asks a leader for at once.",
        between(64 * 1024, INT32_MAX),
    )  # fmt: skip
    catch_up_bytes_per_s_max: int = option(
        0, "Most bytes a second fetched for replicas that are not in sync; 0: no limit.",
        at_least(0),
    )  # fmt: skip
    topic_defaults: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "help": "Topic settings for topics that do not set them (TOML table [topic_defaults])."
        },
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            check: Validator | None = item.metadata.get("check")
            problem = check(getattr(self, item.name)) if check else None
            if problem:
                raise ConfigError(f"{item.name} = {getattr(self, item.name)!r}: {problem}")
        parse_address(self.addr, "addr")
        if self.advertise_addr:
            host, port = parse_address(self.advertise_addr, "advertise_addr")
            if not host or not port:
                raise ConfigError(
                    f"advertise_addr = {self.advertise_addr!r}: must name a host and a port to connect to"
                )
        if self.group_session_timeout_ms_min > self.group_session_timeout_ms_max:
            raise ConfigError("group_session_timeout_ms_min is above group_session_timeout_ms_max")
        TopicConfig.from_settings(self.topic_defaults)

    @classmethod
    def load(
        cls,
        *,
        file: str | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> BrokerConfig:
        """Settings from, in rising order: defaults, the TOML file, `PENSTOCK_…`, `overrides`."""
        known = {item.name: item for item in fields(cls)}
        values: dict[str, Any] = {}
        if file is not None:
            values.update(_read_toml(file, known))
        environment = os.environ if environment is None else environment
        for name, item in known.items():
            variable = f"PENSTOCK_{name.upper()}"
            text = environment.get(variable)
            if text is not None and name == "topic_defaults":
                raise ConfigError(
                    f"{variable} is no setting; use --topic-default name=value or the config file"
                )
            if text is not None:
                values[name] = _from_text(item, text, variable)
        topic_defaults = values.get("topic_defaults", {})
        values.update(overrides or {})
        if topic_defaults:  # one that is overridden does not undo the others
            values["topic_defaults"] = {**topic_defaults, **values["topic_defaults"]}
        return cls(**values)


def _read_toml(path: str, known: Mapping[str, Field[Any]]) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(
                f"{path}: unknown setting {key!r}; known are {', '.join(sorted(known))}"
            )
        if name == "topic_defaults":
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: topic_defaults must be a table")
            values[name] = {k: _toml_scalar(v) for k, v in _flatten(value).items()}
        elif type(value) is not type(known[name].default):
            wanted = type(known[name].default).__name__
            raise ConfigError(f"{path}: {key} must be of type {wanted}, not {type(value).__name__}")
        else:
            values[name] = value
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"retention": {"ms": 5}}`, as TOML reads `retention.ms = 5`, is `{"retention.ms": 5}`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _toml_scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_text(item: Field[Any], text: str, source: str) -> Any:
    assert item.default is not MISSING
    if isinstance(item.default, bool):
        return _boolean(text, source)
    if isinstance(item.default, int):
        return _integer(text, source)
    return text


def _boolean(text: str, source: str) -> bool:
    if text.lower() in {"true", "1", "yes", "on"}:
        return True
    if text.lower() in {"false", "0", "no", "off"}:
        return False
    raise ConfigError(f"{source} = {text!r}: must be true or false")


def _integer(text: str, source: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{source} = {text!r}: must be a whole number") from None


def parse_address(text: str, source: str = "address") -> tuple[str, int]:
    """`host:port` or `[v6]:port` as (host, port); an empty host means every interface."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{source} = {text!r}: must be host:port, for example 127.0.0.1:9092")
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")  # as the resolver does
    except UnicodeError:
        raise ConfigError(f"{source} = {text!r}: the host can be no name of one") from None
    return host, int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """One topic setting by its Kafka name, with the `TopicConfig` field it sets."""

    name: str
    attribute: str
    type: str  # "int", "long", "string", "boolean", "list"
    default: str
    help: str
    check: Validator | None = None

    def parse(self, text: str) -> Any:
        source = f"topic setting {self.name}"
        value: Any = text
        if self.type in {"int", "long"}:
            value = _integer(text, source)
        elif self.type == "boolean":  # as strict as Kafka, which has only these two
            if text.lower() not in {"true", "false"}:
                raise ConfigError(f"{source} = {text!r}: must be true or false")
            value = text.lower() == "true"
        problem = self.check(value) if self.check else None
        if problem:
            raise ConfigError(f"{source} = {text!r}: {problem}")
        return value


def _setting(
    name: str, kind: str, default: str, text: str, check: Validator | None = None
) -> TopicSetting:
    return TopicSetting(
        name=name,
        attribute=name.replace(".", "_"),
        type=kind,
        default=default,
        help=text,
        check=check,
    )


TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {
    setting.name: setting
    for setting in (
        _setting(
            "cleanup.policy", "list", "delete",
            "How old data leaves the topic. Only `delete` (by retention) is there yet.",
            one_of("delete"),
        ),
        _setting(
            "compression.type", "string", "producer",
            "Batches are kept as the producer compressed them; only `producer` is accepted.",
            one_of("producer"),
        ),
        _setting("flush.messages", "long", str(INT64_MAX),
                 "Sync to disk whenever this many records have been appended since the last sync.",
                 between(1, INT64_MAX)),
        _setting("flush.ms", "long", str(INT64_MAX),
                 "Sync to disk whenever appended records have waited this long.",
                 between(0, INT64_MAX)),
        _setting("index.interval.bytes", "int", "4096",
                 "Bytes of log between two index entries.", between(0, INT32_MAX)),
        _setting("max.message.bytes", "int", "1048588",
                 "Largest record batch accepted, after compression: 1 MiB and its header.",
                 between(0, INT32_MAX)),
        _setting("message.timestamp.after.max.ms", "long", "3600000",
                 "How far in the future a record's timestamp may be.", between(0, INT64_MAX)),
        _setting("message.timestamp.before.max.ms", "long", str(INT64_MAX),
                 "How far in the past a record's timestamp may be.", between(0, INT64_MAX)),
        _setting("message.timestamp.type", "string", "CreateTime",
                 "Keep the producer's timestamp (CreateTime) or stamp on arrival (LogAppendTime).",
                 one_of("CreateTime", "LogAppendTime")),
        _setting("min.insync.replicas", "int", "1",
                 "Replicas that must have a record before acks=all is answered.",
                 between(1, INT32_MAX)),
        _setting("retention.bytes", "long", "-1",
                 "Keep at most this many bytes per partition; -1: no limit.",
                 between(-1, INT64_MAX)),
        _setting("retention.ms", "long", "604800000",
                 "Keep records for this long; -1: for ever.", between(-1, INT64_MAX)),
        _setting("segment.bytes", "int", "1073741824",
                 "Start a new segment file when the current one would exceed this.",
                 between(1024, INT32_MAX)),
        _setting("segment.ms", "long", "86400000",
                 "Start a new segment file when the current one is this old.",
                 between(1, INT64_MAX)),
        _setting("unclean.leader.election.enable", "boolean", "false",
                 "In a cluster: let a replica that may lack records lead when no other is left."),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings in force for a topic. Field names are the Kafka names with `_` for `.`."""

    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_type: str = "CreateTime"
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_ms: int = 86_400_000
    unclean_leader_election_enable: bool = False

    @classmethod
    def from_settings(cls, *layers: Mapping[str, str]) -> TopicConfig:
        """The settings that these layers come to, later ones winning; `ConfigError` if any is bad."""
        values: dict[str, Any] = {}
        for layer in layers:
            for name, text in layer.items():
                setting = TOPIC_SETTINGS.get(name)
                if setting is None:
                    raise ConfigError(
                        f"unknown topic setting {name!r}; known are {', '.join(TOPIC_SETTINGS)}"
                    )
                values[setting.attribute] = setting.parse(text)
        return cls(**values)
