"""What every catalog of topics has, whether the broker is alone or a member of a cluster.

Produce and Fetch go `catalog.get(name)` → `topic.partitions[i]` → the partition: plain look-ups in
memory. A caller that is cancelled, because its connection closed, does not stop a change half-way.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.broker import topic_rules as rules
from penstock.broker.producer_ids import ProducerIds
from penstock.broker.topic_records import Partition, Topic
from penstock.broker.topic_work import Work
from penstock.cluster.state import TopicState
from penstock.errors import ApiError, ErrorCode
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

if TYPE_CHECKING:
    from penstock.metadata.store import MetadataStore

__all__ = ["Catalog", "Move", "Shape", "exists", "unknown"]

# Automatic creations: names that may wait, and how many of them are worked on at once.
AUTO_CREATIONS_MAX: Final = 1_000
AUTO_CREATIONS_AT_ONCE: Final = 32

DeleteListener = Callable[[str], Awaitable[None] | None]
OverridesChange = Callable[[Mapping[str, str]], Mapping[str, str]]
T = TypeVar("T")


class Move(NamedTuple):
    """A partition on its way to other brokers. `replicas` are all that hold it now, or soon do."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Shape(NamedTuple):
    """What of a new topic depends on how many brokers there are."""

    partition_count: int
    replication_factor: int = 1
    assignment: tuple[tuple[int, ...], ...] = ()  # by hand


class Catalog(ABC):
    """All topics. Lives on one event loop; `load` comes first and `close` last."""

    def __init__(self, store: MetadataStore, config: BrokerConfig) -> None:
        self.producer_ids = ProducerIds(store)
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}  # by the number that the id is, which has a quick hash
        # Collision key -> the topics that have it: one, or more if a cluster made them at once.
        self._names: dict[str, set[str]] = {}
        self._work = Work()
        self._listeners: list[DeleteListener] = []
        self._auto_creations: dict[str, asyncio.Task[Topic]] = {}
        self._auto_creation_slots = asyncio.Semaphore(AUTO_CREATIONS_AT_ONCE)

    # Reading

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id.int)

    def all(self) -> list[Topic]:
        """Every topic, in no order; the list is the caller's."""
        return list(self._topics.values())

    def require(self, name: str) -> Topic:
        """The topic, or INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._topics.get(name)
        if topic is None:
            rules.check_name(name)
            raise unknown(name)
        return topic

    def partition(self, name: str, index: int) -> Partition:
        """The partition, or UNKNOWN_TOPIC_OR_PARTITION. Its log may still be out of service."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise ApiError(
                ErrorCode.unknown_topic_or_partition, f"there is no partition {name}-{index}"
            )
        return topic.partitions[index]

    def on_delete(self, listener: DeleteListener) -> None:
        """Call `listener(name)`, and await what it returns, for every topic deleted from now on.

        It is called once the deletion is durable, and before it is answered. If it raises an `ApiError`,
        it is called again before there is another topic of this name.
        """
        self._listeners.append(listener)

    # Life

    async def close(self) -> None:
        """Wait for changes under way. The logs are their store's to close."""
        await self._work.drain()

    # Changing

    async def create(
        self,
        name: str,
        partition_count: int = rules.DEFAULT,
        overrides: Mapping[str, str] | None = None,
        *,
        replication_factor: int = rules.DEFAULT,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        """A new topic, durable and with its logs open; or the `ApiError` of the rule it breaks.

        Of two creations of one name exactly one succeeds; the other is TOPIC_ALREADY_EXISTS. If a log
        can not be opened, the topic is taken back and the answer is that `StorageError`. With
        `validate_only` nothing changes, and the topic returned has no partitions.
        """
        rules.check_name(name)
        self._check_free(name)
        if partition_count == rules.DEFAULT and not assignments:
            partition_count = self._config.default_partitions
        shape = self._shape(partition_count, replication_factor, assignments)
        rules.check_partition_count(shape.partition_count)
        record = TopicState(
            name=name, id=uuid.uuid4(), overrides=dict(overrides or {}), **shape._asdict()
        )
        topic = Topic(record, 0, rules.topic_config(self._config.topic_defaults, record.overrides))
        if validate_only:
            self._check_new(record)
            return topic
        return await self._work.finish(self._create(topic))

    @abstractmethod
    def _shape(
        self,
        partition_count: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]] | None,
    ) -> Shape:
        """How large a new topic is to be, and where; the factor may be the default."""

    @abstractmethod
    def _check_new(self, record: TopicState) -> None:
        """Raise what `_create` would, as far as that is known before it is made."""

    @abstractmethod
    async def _create(self, topic: Topic) -> Topic:
        """Make it, to the end; the topic as the catalog has it."""

    @abstractmethod
    async def delete(self, topic: Topic) -> None:
        """Delete the topic, its settings and its data. Listeners have been told on return."""

    @abstractmethod
    async def grow(
        self,
        topic: Topic,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise the topic's partition count to `count`; the new partitions are open on return.

        One that can not be opened is in the catalog with its error, which is raised.
        """

    @abstractmethod
    async def change_overrides(
        self, topic: Topic, change: OverridesChange, *, validate_only: bool = False
    ) -> None:
        """As `set_overrides`, with what `change` makes of the settings in force when it is its turn."""

    @abstractmethod
    async def move(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_count: bool = True,
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Begin to move each partition to the brokers of its target; None cancels a move.

        What came of each: None, or why it can not be. The data follows; `moves` tells until it has.
        """

    @abstractmethod
    def moves(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Move]:
        """The moves under way, of these partitions or of all."""

    @abstractmethod
    async def elect(
        self, partitions: Iterable[TopicPartition], *, unclean: bool, timeout_s: float
    ) -> Mapping[TopicPartition, ApiError | None]:
        """Let the preferred replicas lead; or, `unclean`, anybody where nobody in sync can.

        None, or why not, for each; the new leaders are known here on return.
        """

    async def within(
        self,
        timeout_s: float,  # noqa: ARG002
        what: str,  # noqa: ARG002
        change: Awaitable[T],
    ) -> T:
        """What a change comes to. REQUEST_TIMED_OUT if others take too long; it goes on then.

        A broker that is alone waits for nobody: its disk answers, or fails.
        """
        return await change

    async def set_overrides(
        self, topic: Topic, overrides: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Make `overrides` the topic's own settings, all of them. Open logs follow at once."""
        await self.change_overrides(topic, lambda _: overrides, validate_only=validate_only)

    async def ensure(self, name: str) -> Topic:
        """The topic, created with the broker's defaults if need be.

        LEADER_NOT_AVAILABLE, which clients retry, when too many creations wait already.
        """
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        rules.check_name(name)
        creation = self._auto_creations.get(name)
        if creation is None:
            if len(self._auto_creations) >= AUTO_CREATIONS_MAX:
                raise ApiError(
                    ErrorCode.leader_not_available, "too many topics are being created; try again"
                )
            creation = self._work.start(self._auto_create(name))
            self._auto_creations[name] = creation
            creation.add_done_callback(lambda _: self._auto_creations.pop(name))
        return await asyncio.shield(creation)

    async def _auto_create(self, name: str) -> Topic:
        async with self._auto_creation_slots:
            try:
                return await self.create(name)
            except ApiError as error:
                topic = self._topics.get(name)
                if error.code is not ErrorCode.topic_already_exists or topic is None:
                    raise
                return topic

    # The names

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.id.int] = topic
        self._names.setdefault(rules.collision_key(topic.name), set()).add(topic.name)

    def _remove(self, topic: Topic) -> bool:
        """Whether it was there."""
        if self._topics.get(topic.name) is not topic:
            return False
        del self._topics[topic.name]
        del self._by_id[topic.id.int]
        alike = self._names[rules.collision_key(topic.name)]
        alike.discard(topic.name)
        if not alike:
            del self._names[rules.collision_key(topic.name)]
        return True

    async def _tell_deleted(self, name: str) -> None:
        """Tell all, those who need no time for it first; what one of them raises is raised then."""
        outcomes = [listener(name) for listener in self._listeners]
        coming = [outcome for outcome in outcomes if inspect.isawaitable(outcome)]
        for result in await asyncio.gather(*coming, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _check_free(self, name: str) -> None:
        if name in self._topics:
            raise exists(name)
        alike = self._names.get(rules.collision_key(name))
        if alike:
            other = min(alike)
            raise ApiError(
                ErrorCode.invalid_topic_exception,
                f"topic '{name}' collides with existing topic '{other}': '.' and '_' are alike",
            )

    def _check_current(self, topic: Topic) -> None:
        if self._topics.get(topic.name) is not topic:
            raise unknown(topic.name)


def unknown(name: str) -> ApiError:
    return ApiError(ErrorCode.unknown_topic_or_partition, f"topic '{name}' does not exist")


def exists(name: str) -> ApiError:
    return ApiError(ErrorCode.topic_already_exists, f"topic '{name}' already exists")
