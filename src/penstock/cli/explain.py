"""Kafka errors in words for a person, with what to do about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.cli.failure import CommandError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# Error name: (what is wrong, what to do). `{s}` is the subject, `{d}` the broker's own words.
_WORDS: Final[dict[str, tuple[str, str]]] = {
    "UNKNOWN_TOPIC_OR_PART": (
        "There is no topic or partition {s}.",
        "`penstock topic list` shows the topics there are.",
    ),
    "TOPIC_ALREADY_EXISTS": (
        "There already is a topic {s}.",
        "`penstock topic alter` changes it; --if-not-exists makes creating it again harmless.",
    ),
    "TOPIC_EXCEPTION": (
        "{s} cannot be the name of a topic: {d}",
        "A name is 1 to 249 of letters, digits, `.`, `_` and `-`.",
    ),
    "INVALID_PARTITIONS": ("{s}: that number of partitions is not possible: {d}", ""),
    "INVALID_REPLICATION_FACTOR": (
        "{s}: that many replicas are not possible: {d}",
        "There cannot be more replicas than brokers.",
    ),
    "INVALID_CONFIG": ("{s}: {d}", "`penstock topic describe --all` shows every setting."),
    "POLICY_VIOLATION": ("{s}: the broker's policy forbids it: {d}", ""),
    "GROUP_ID_NOT_FOUND": (
        "There is no consumer group {s}.",
        "`penstock group list` shows those there are.",
    ),
    "NON_EMPTY_GROUP": (
        "The consumer group {s} has active members.",
        "Stop its consumers first; `penstock group describe` shows them.",
    ),
    "UNKNOWN_MEMBER_ID": (
        "The consumer group {s} has active members.",
        "Stop its consumers first; `penstock group describe` shows them.",
    ),
    "OFFSET_OUT_OF_RANGE": (
        "{s}: that offset is not in the log.",
        "`penstock topic describe` shows the first and the next offset of each partition.",
    ),
    "_AUTO_OFFSET_RESET": (
        "{s}: that offset is not in the log.",
        "`penstock topic describe` shows the first and the next offset of each partition.",
    ),
    "MSG_SIZE_TOO_LARGE": (
        "{s}: a record is larger than the topic accepts: {d}",
        "Raise it with `penstock topic alter TOPIC --set max.message.bytes=…`.",
    ),
    "INVALID_MSG_SIZE": (
        "{s}: a record is larger than the topic accepts: {d}",
        "Raise it with `penstock topic alter TOPIC --set max.message.bytes=…`.",
    ),
    "KAFKA_STORAGE_ERROR": (
        "{s}: the broker cannot use its disk for this partition: {d}",
        "The broker's log says why; `penstock log verify DATA_DIR` finds damage, offline.",
    ),
    "INVALID_TIMESTAMP": (
        "{s}: a record's timestamp is outside what the topic accepts: {d}",
        "See message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
    ),
    "_UNKNOWN_PARTITION": (
        "{s}: there is no such partition.",
        "`penstock topic describe` shows the partitions of a topic; `penstock topic alter` adds some.",
    ),
    "_UNKNOWN_TOPIC": (
        "There is no topic {s}.",
        "`penstock topic list` shows the topics there are.",
    ),
}
_SILENCE: Final = frozenset(
    {"_TIMED_OUT", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"}
)


def explain(error: KafkaError, subject: str, silent: Callable[[], CommandError]) -> CommandError:
    """The failure that `error` is; `silent` is asked for that of brokers that say nothing."""
    name = error.name()
    if name == "REQUEST_TIMED_OUT" and not error.str().startswith("Broker: "):
        return CommandError(  # a broker that says what it waited for is not silent
            f"{subject}: {error.str().rstrip('.')}." if subject else f"{error.str().rstrip('.')}.",
            "`penstock cluster status` shows whether all brokers are well.",
        )
    if name in _SILENCE:
        return silent()
    detail = error.str().removeprefix("Broker: ").rstrip(".") + "."
    text, hint = _WORDS.get(name, ("{s}: {d}" if subject else "{d}", ""))
    return CommandError(text.format(s=subject, d=detail), hint)


def silent(bootstrap: str, last_error: str) -> CommandError:
    """Something accepts connections at `bootstrap`, but no Kafka answer came in time."""
    detail = f" Last heard: {last_error.rstrip('.')}." if last_error else ""
    return CommandError(
        f"{bootstrap} accepts connections but did not answer in time.{detail}",
        "Is it a Kafka broker, does it need -X security.protocol=…, and can the address that it "
        "advertises be reached from here?",
    )
