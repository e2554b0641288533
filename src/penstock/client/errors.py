"""What the client raises: one tree, under `PenstockError`.

    PenstockError
    └── ClientError              its `code` is Kafka's, or None if no broker said so
        ├── BrokerUnreachable    no connection, a connection lost, or no answer in time
        ├── BadAnswer            bytes that are no answer of a Kafka broker
        ├── UnsupportedBroker    the broker does not speak a version that we speak
        ├── RetriesExhausted     something that passes did not pass in time; the last failure is its cause
        ├── LogEndsEarly         a range was asked for whose records are not there (yet)
        ├── ProducerClosed       a producer was used after it was closed, or in a forked process
        └── BrokerError          a broker answered with an error code
            ├── UnknownTopic     the topic or partition is not there, or not the one it was
            ├── OffsetOutOfRange the log has no such offset: deleted by retention, or never written
            └── DeliveryFailed   a batch was refused, or not acknowledged in time

Every text names the broker and the partition where there is one, and says what to do. All of them can be
pickled, because they cross the border between a Spark worker and its driver.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import ErrorCode, PenstockError
from penstock.model import TopicPartition

__all__ = [
    "BadAnswer",
    "BrokerError",
    "BrokerUnreachable",
    "ClientError",
    "DeliveryFailed",
    "LogEndsEarly",
    "OffsetOutOfRange",
    "ProducerClosed",
    "RetriesExhausted",
    "UnknownTopic",
    "UnsupportedBroker",
    "advice_on",
    "broker_error",
    "error_code",
    "is_passing",
]

# What usually helps, for the codes that a person is likely to meet.
_ADVICE: Final[dict[ErrorCode, str]] = {
    ErrorCode.message_too_large: (
        "make batches smaller, or raise the topic's max.message.bytes (and the broker's limit)"
    ),
    ErrorCode.record_list_too_large: "make batches smaller, or raise the topic's segment.bytes",
    ErrorCode.invalid_record: (
        "the topic's settings do not allow these records: a compacted topic needs keys"
    ),
    ErrorCode.corrupt_message: "the bytes were damaged on their way, or on the broker's disk",
    ErrorCode.unsupported_compression_type: "choose another compression codec",
    ErrorCode.invalid_timestamp: "the topic's message.timestamp settings refuse these timestamps",
    ErrorCode.kafka_storage_error: (
        "see the broker's log: its disk is full or damaged (`penstock log verify` shows which files)"
    ),
    ErrorCode.not_enough_replicas: "too few replicas are in sync: see min.insync.replicas",
    ErrorCode.not_enough_replicas_after_append: "too few replicas are in sync",
    ErrorCode.not_leader_or_follower: "check that every broker is up and the partition has a leader",
    ErrorCode.leader_not_available: "check that every broker is up and the partition has a leader",
    ErrorCode.topic_authorization_failed: "ask for the rights to use this topic",
    ErrorCode.group_authorization_failed: "ask for the rights to use this group",
    ErrorCode.cluster_authorization_failed: "ask for the rights that an idempotent producer needs",
    ErrorCode.unknown_member_id: (
        "the group has members of its own: stop them, or use another group name"
    ),
    ErrorCode.out_of_order_sequence_number: (
        "the broker has lost batches that it had acknowledged, or another producer uses this one's id: "
        "write again from the last point that you know to be complete"
    ),
    ErrorCode.invalid_producer_epoch: "another producer has taken over this one's id",
    ErrorCode.coordinator_not_available: "check that the broker that keeps the group is up",
}

# Passing, although Kafka's own table does not call them so: Java's clients retry them, too.
_ALSO_PASSING: Final = {ErrorCode.unknown_server_error, ErrorCode.unknown_topic_id}


def error_code(value: int) -> ErrorCode:
    """The code of this number; one that we do not know is an unknown server error."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.unknown_server_error


def is_passing(code: ErrorCode) -> bool:
    """Whether the same request may succeed later, or at another broker."""
    return code.retriable or code in _ALSO_PASSING


def advice_on(code: ErrorCode | None) -> str:
    """What usually helps, as the end of a sentence; empty if there is nothing to say."""
    return f"; {_ADVICE[code]}" if code in _ADVICE else ""


class ClientError(PenstockError):
    """Base of all that the client raises. `code` is Kafka's, or None if no broker said so."""

    code: ErrorCode | None = None

    def __init__(self, message: str, *, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[ClientError], args: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class BrokerUnreachable(ClientError):
    """No connection, a connection lost, or no answer in time. Passing: it is tried again."""


class BadAnswer(ClientError):
    """The peer's bytes are no answer of a Kafka broker: is the address the right one?"""


class UnsupportedBroker(ClientError):
    """Broker and client share no version of a request."""


class RetriesExhausted(ClientError):
    """What should pass did not pass in time. `__cause__` is the last failure."""


class LogEndsEarly(ClientError):
    """Nothing came in the time that a reader waits, and the range was not at its end."""


class ProducerClosed(ClientError):
    """The producer was closed, or belongs to the process that this one was forked from."""


class BrokerError(ClientError):
    """A broker answered with an error code."""

    code: ErrorCode

    def __init__(self, code: ErrorCode, what: str, detail: str | None = None) -> None:
        said = f" ({detail})" if detail else ""
        super().__init__(f"{what}: {code.name.upper()}{said}{advice_on(code)}", code=code)


class UnknownTopic(BrokerError):
    """The topic or partition is not there, or is no longer the one that it was."""

    def __init__(self, what: str, code: ErrorCode = ErrorCode.unknown_topic_or_partition) -> None:
        ClientError.__init__(self, what, code=code)


_UNKNOWN: Final = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
}


def broker_error(code: ErrorCode, what: str) -> BrokerError:
    """The error of the kind that the code asks for; `what` says who failed to do what."""
    if code in _UNKNOWN:
        return UnknownTopic(
            f"{what}: there is no such topic or partition, or there no longer is", code
        )
    return BrokerError(code, what)


class OffsetOutOfRange(BrokerError):
    """The log holds [log_start, high_watermark) and `asked` is not in it."""

    def __init__(
        self, partition: TopicPartition, asked: int, log_start: int, high_watermark: int
    ) -> None:
        what = "was never written, or the log was cut back; is it from another topic of that name?"
        if asked < log_start:
            what = (
                "was deleted; begin later, or keep records longer (retention.ms, retention.bytes)"
            )
        ClientError.__init__(
            self,
            f"offset {asked} of {partition} is not in the log, which holds [{log_start}, "
            f"{high_watermark}): it {what}",
            code=ErrorCode.offset_out_of_range,
        )
        self.partition = partition
        self.asked = asked
        self.log_start = log_start
        self.high_watermark = high_watermark


class DeliveryFailed(BrokerError):
    """A batch was refused, or not acknowledged in time: it may or may not be in the log."""

    def __init__(self, partition: TopicPartition, code: ErrorCode, message: str) -> None:
        ClientError.__init__(self, message, code=code)
        self.partition = partition
