"""What the suite asks of a Kafka client, whichever it is: one interface, and an adapter for each.

An adapter only translates. What a client can not do it does not pretend to: those methods stay as they
are here and skip the test, saying so.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, NamedTuple, NoReturn, TypeVar

import pytest

from penstock.errors import ErrorCode

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S: Final = 20.0  # when a test gives up; what it waits for takes a fraction of a second

Acks = Literal[0, 1, "all"]
Headers = tuple[tuple[str, bytes | None], ...]
T = TypeVar("T")


class Refused(Exception):
    """The broker answered with an error: `code` by the protocol's numbers."""

    def __init__(self, code: int, message: object) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class NoPosition(Exception):
    """The consumer is not to choose where to read (reset "none"), and nothing else says it."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Placed(NamedTuple):
    """Where a record went, as its producer was told."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A record to be written."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None  # None: the client's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.key, self.value, self.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    group: str | None = None
    instance_id: str | None = None
    assignor: str = "range"
    reset: str = "earliest"  # or "latest", or "none"
    auto_commit: bool = False
    session_timeout_ms: int = 10_000
    fetch_bytes_max: int | None = None  # None: the client's own
    creates_topics: bool = False  # ask the broker to create what is subscribed to
    read_committed: bool = False


class CommittedOffset(NamedTuple):
    offset: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    state: str
    assignor: str
    assignments: list[set[TopicPartition]]  # one for each member
    instance_ids: set[str]


@dataclass(slots=True)
class Rebalances:
    """What a consumer's rebalance listener was told, in order."""

    assigned: list[set[TopicPartition]] = field(default_factory=list)
    revoked: list[set[TopicPartition]] = field(default_factory=list)


class Consumer(ABC):
    """One consumer, used by one thread at a time. `close` leaves the group, unless it is static."""

    poll_s = 0.05  # how long a poll may be in vain while others are waited for

    def __init__(self) -> None:
        self.rebalances = Rebalances()
        self.received: list[Record] = []  # all that ever came
        self.owned: set[TopicPartition] = set()  # what it was assigned when it last polled

    def poll(self, seconds: float) -> list[Record]:
        """What has come; if nothing has, what comes first within this time."""
        try:
            records = self._poll(seconds)
        except Refused as refused:
            if refused.code == ErrorCode.offset_out_of_range:
                raise NoPosition(refused) from refused
            raise
        self.received += records
        self.owned = self.assignment()
        return records

    @abstractmethod
    def _poll(self, seconds: float) -> list[Record]: ...

    @abstractmethod
    def assign(self, *partitions: TopicPartition) -> None: ...

    @abstractmethod
    def subscribe(self, *topics: str) -> None: ...

    @abstractmethod
    def subscribe_pattern(self, pattern: str) -> None: ...

    @abstractmethod
    def assignment(self) -> set[TopicPartition]: ...

    @abstractmethod
    def seek(self, at: TopicPartition, offset: int) -> None: ...

    @abstractmethod
    def seek_to_beginning(self, at: TopicPartition) -> None: ...

    @abstractmethod
    def seek_to_end(self, at: TopicPartition) -> None: ...

    @abstractmethod
    def position(self, at: TopicPartition) -> int: ...

    @abstractmethod
    def offset_for_time(self, at: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset at or after this time; None if there is none."""

    @abstractmethod
    def bounds(self, at: TopicPartition) -> tuple[int, int]:
        """The first offset and the one after the last."""

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None: ...

    @abstractmethod
    def committed(self, at: TopicPartition) -> CommittedOffset | None: ...

    @abstractmethod
    def close(self) -> None: ...

    def read(self, count: int) -> list[Record]:
        """At least so many records, in the order they came."""
        records: list[Record] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(records) < count:
            assert time.monotonic() < deadline, f"only {len(records)} of {count} records came"
            records += self.poll(DEADLINE_S / 4)  # returns as soon as there are any
        return records

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class Client(ABC):
    """A client library, connected to one broker."""

    name: str
    eager_assignors: tuple[str, ...]
    is_cooperative = True  # knows the cooperative-sticky assignor
    reads_notes = True  # can read the note beside a committed offset
    null_headers = True  # can send a header without a value
    chooses_creation = True  # can ask for a topic without having it created

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def close(self) -> None:
        """Close whatever is open. The last call."""

    # Records

    @abstractmethod
    def produce(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        partition: int | None = 0,
        acks: Acks = "all",
        codec: str = "none",
        idempotent: bool = False,
        batch_bytes: int = 1_000_000,
        request_bytes_max: int = 10_000_000,
    ) -> list[Placed]:
        """Write with a producer of its own, closed on return; `Refused` by the first record that is.

        `partition=None` leaves the choice to the client. Without acks the offsets are of no meaning.
        """

    @abstractmethod
    def consumer(self, options: ConsumerOptions) -> Consumer: ...

    def read_all(self, topic: str, *, partition: int = 0) -> list[Record]:
        """Every record that the partition has now, read without a group."""
        at = TopicPartition(topic, partition)
        with self.consumer(ConsumerOptions()) as consumer:
            consumer.assign(at)
            first, end = consumer.bounds(at)
            consumer.seek(at, first)
            records = consumer.read(end - first)
        assert [record.offset for record in records] == list(range(first, end))
        return records

    # Topics

    @abstractmethod
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None: ...

    @abstractmethod
    def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def topics(self) -> set[str]: ...

    @abstractmethod
    def partition_leaders(self, topic: str) -> list[int]:
        """The broker that leads each partition; `Refused` if there is no such topic."""

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def settings(self, topic: str) -> dict[str, str]: ...

    @abstractmethod
    def set_setting(self, topic: str, name: str, value: str) -> None:
        """Change one setting, or all if the client has no other way."""

    def reset_setting(self, topic: str, name: str) -> None:
        self._cannot("take a setting back without naming all others")

    @abstractmethod
    def broker_settings(self, broker_id: int) -> dict[str, str]: ...

    @abstractmethod
    def delete_records(self, at: TopicPartition, before_offset: int) -> int:
        """Returns the partition's new first offset."""

    @abstractmethod
    def broker_ids(self) -> set[int]:
        """The brokers of the cluster, the first of which is its controller."""

    # Groups

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> GroupDescription: ...

    @abstractmethod
    def group_offsets(self, group: str) -> dict[TopicPartition, int]: ...

    def set_group_offset(self, group: str, at: TopicPartition, offset: int) -> None:
        self._cannot("alter a group's offsets")

    def delete_group_offset(self, group: str, at: TopicPartition) -> None:
        self._cannot("delete a group's offsets")

    def delete_group(self, group: str) -> None:
        self._cannot("delete groups")

    def _cannot(self, what: str) -> NoReturn:
        pytest.skip(f"{self.name} has no way to {what}")


def until(what: str, condition: Callable[[], bool], *consumers: Consumer) -> None:
    """Wait for `condition`, polling these consumers meanwhile, each in a thread as applications do."""
    done = threading.Event()

    def keep_polling(consumer: Consumer) -> None:
        while not done.is_set():
            consumer.poll(consumer.poll_s)

    deadline = time.monotonic() + DEADLINE_S
    with ThreadPoolExecutor(len(consumers) or 1) as pool:
        polling = [pool.submit(keep_polling, consumer) for consumer in consumers]
        try:
            while not condition():
                assert time.monotonic() < deadline, f"it did not happen in time: {what}"
                if any(future.done() for future in polling):
                    break  # by an error, which is raised below
                time.sleep(0.005)
        finally:
            done.set()
    for future in polling:
        future.result()


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def numbered(count: int, *, prefix: str = "value", size: int = 0) -> list[Message]:
    """Messages that tell where they stand; `size` pads them."""
    return [Message(value=f"{prefix}-{i}".encode().ljust(size, b".")) for i in range(count)]
