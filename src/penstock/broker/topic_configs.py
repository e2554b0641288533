"""Settings as Kafka's admin clients see them: where each value comes from, and how one is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final

from penstock.errors import ApiError, ErrorCode
from penstock.settings import TOPIC_SETTINGS, BrokerConfig, TopicSetting


class Source(IntEnum):
    """Where a value comes from, by Kafka's codes."""

    TOPIC = 1
    BROKER_FILE = 4  # set when the broker was started
    DEFAULT = 5


class Kind(IntEnum):
    """The type of a setting, by Kafka's codes."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7
    PASSWORD = 9


class Operation(IntEnum):
    """How one setting is changed, by Kafka's codes."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """One place that sets the value; the first of an entry's synonyms is the one in force."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting, described. The values of a sensitive one are None."""

    name: str
    value: str | None
    source: int
    kind: int
    help: str
    read_only: bool
    synonyms: tuple[Synonym, ...]
    is_sensitive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    name: str
    operation: int
    value: str | None


# The broker settings that give a topic setting its default, by the names Kafka has for them.
BROKER_NAMES: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
}

# Broker options that Kafka has under another name; the others keep theirs, with dots.
OPTION_NAMES: Final[Mapping[str, str]] = {
    "data_dir": "log.dirs",
    "addr": "listeners",
    "advertise_addr": "advertised.listeners",
    "rack": "broker.rack",
    "auto_create_topics": "auto.create.topics.enable",
    "default_partitions": "num.partitions",
    "request_bytes_max": "socket.request.max.bytes",
    "connections_max": "max.connections",
    "connection_idle_ms_max": "connections.max.idle.ms",
    "fetch_bytes_max": "fetch.max.bytes",
    "fetch_sessions_max": "max.incremental.fetch.session.cache.slots",
    "checkpoint_interval_ms": "log.flush.offset.checkpoint.interval.ms",
    "retention_check_interval_ms": "log.retention.check.interval.ms",
    "producer_expiry_ms": "producer.id.expiration.ms",
    "group_session_timeout_ms_min": "group.min.session.timeout.ms",
    "group_session_timeout_ms_max": "group.max.session.timeout.ms",
    "group_members_max": "group.max.size",
    "offset_metadata_bytes_max": "offset.metadata.max.bytes",
}


def describe_topic(
    defaults: Mapping[str, str], overrides: Mapping[str, str]
) -> Iterable[ConfigEntry]:
    """Every topic setting, with the topic's own value over the broker's over the default."""
    for setting in TOPIC_SETTINGS.values():
        synonyms = _default_synonyms(setting, defaults)
        if setting.name in overrides:
            own = Synonym(name=setting.name, value=overrides[setting.name], source=Source.TOPIC)
            synonyms = (own, *synonyms)
        yield _entry(setting.name, setting, synonyms, read_only=False)


def describe_broker(config: BrokerConfig) -> Iterable[ConfigEntry]:
    """Every setting of the broker, read-only, and what it gives topics for their defaults."""
    for item in fields(config):
        if item.name == "topic_defaults":
            continue
        name = OPTION_NAMES.get(item.name, item.name.replace("_", "."))
        synonyms = [Synonym(name=name, value=_text(item.default), source=Source.DEFAULT)]
        value = _text(getattr(config, item.name))
        if value != synonyms[0].value:
            synonyms.insert(0, Synonym(name=name, value=value, source=Source.BROKER_FILE))
        is_secret = item.metadata["is_secret"]
        if is_secret:
            synonyms = [replace(synonym, value=None) for synonym in synonyms]
        yield ConfigEntry(
            name=name,
            value=synonyms[0].value,
            source=synonyms[0].source,
            kind=Kind.PASSWORD if is_secret else _kind_of(item.default),
            help=item.metadata["help"],
            read_only=True,
            synonyms=tuple(synonyms),
            is_sensitive=is_secret,
        )
    for setting in TOPIC_SETTINGS.values():
        synonyms_of_topic = _default_synonyms(setting, config.topic_defaults)
        name = BROKER_NAMES.get(setting.name, setting.name)
        yield _entry(name, setting, synonyms_of_topic, read_only=True)


def apply_changes(
    overrides: Mapping[str, str], defaults: Mapping[str, str], changes: Iterable[ConfigChange]
) -> dict[str, str]:
    """The topic's own settings after these changes. Values are not checked here."""
    result = dict(overrides)
    for change in changes:
        if change.operation == Operation.DELETE:
            result.pop(change.name, None)  # as in Kafka, whether or not there is such a setting
            continue
        setting = TOPIC_SETTINGS.get(change.name)
        if setting is None and change.operation != Operation.SET:
            raise ApiError(ErrorCode.invalid_config, f"unknown topic setting {change.name!r}")
        if change.value is None:
            raise ApiError(ErrorCode.invalid_request, f"{change.name} is given no value")
        if change.operation == Operation.SET:
            result[change.name] = change.value
            continue
        assert setting is not None
        in_force = result.get(setting.name, defaults.get(setting.name, setting.default))
        result[setting.name] = _edit_list(setting, in_force, change.operation, change.value)
    return result


def _edit_list(setting: TopicSetting, value: str, operation: int, items: str) -> str:
    if operation not in {Operation.APPEND, Operation.SUBTRACT}:
        raise ApiError(ErrorCode.invalid_request, f"unknown operation {operation}")
    if setting.type != "list":
        raise ApiError(
            ErrorCode.invalid_config,
            f"{setting.name} is no list: it can only be set or deleted",
        )
    present = [part.strip() for part in value.split(",") if part.strip()]
    changed = [part.strip() for part in items.split(",") if part.strip()]
    if operation == Operation.APPEND:
        present += [part for part in dict.fromkeys(changed) if part not in present]
    else:
        present = [part for part in present if part not in changed]
    return ",".join(present)


def _default_synonyms(setting: TopicSetting, defaults: Mapping[str, str]) -> tuple[Synonym, ...]:
    name = BROKER_NAMES.get(setting.name, setting.name)
    default = Synonym(name=name, value=setting.default, source=Source.DEFAULT)
    if setting.name not in defaults:
        return (default,)
    return Synonym(name=name, value=defaults[setting.name], source=Source.BROKER_FILE), default


def _entry(
    name: str, setting: TopicSetting, synonyms: tuple[Synonym, ...], *, read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        kind=Kind[setting.type.upper()],
        help=setting.help,
        read_only=read_only,
        synonyms=synonyms,
    )


def _kind_of(default: Any) -> Kind:
    if isinstance(default, bool):
        return Kind.BOOLEAN
    return Kind.LONG if isinstance(default, int) else Kind.STRING


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
