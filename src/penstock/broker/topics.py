"""The catalog: every topic of this broker, its settings and its open partitions.

Produce and Fetch go `catalog.get(name)` → `topic.partitions[i]` → `partition.log`: plain look-ups in
memory. Every change is first a compare-and-swap in the metadata store, and only when that is durable is
it seen here and answered. Changes of one topic (or of names that collide) wait for each other; changes
of different topics run side by side and share the store's syncs. A caller that is cancelled, because
its connection closed, does not stop a change half-way.

Deleting takes two writes, so that a crash between them can not give a new topic an old one's files:

    topics/t = {…}  →  topics/t = {…, "deleting": true}  →  files renamed away  →  topics/t is deleted
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.broker import topic_rules as rules
from penstock.broker.producer_ids import ProducerIds
from penstock.broker.topic_records import Partition, Topic, open_partitions
from penstock.broker.topic_store import StoredTopic, TopicStore
from penstock.broker.topic_work import NameLocks, Work
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.model import TopicPartition, TopicRecord
from penstock.settings import BrokerConfig

if TYPE_CHECKING:
    from penstock.log import LogStore
    from penstock.metadata.store import MetadataStore

__all__ = ["Partition", "Topic", "TopicCatalog"]

logger = logging.getLogger(__name__)

# Automatic creations: names that may wait, and how many of them are worked on at once.
AUTO_CREATIONS_MAX: Final = 1_000
AUTO_CREATIONS_AT_ONCE: Final = 32

DeleteListener = Callable[[str], Awaitable[None] | None]
RecordChange = Callable[[TopicRecord], TopicRecord]


class TopicCatalog:
    """All topics. Lives on one event loop; `load` comes first and `close` last."""

    def __init__(
        self, store: MetadataStore, logs: LogStore, config: BrokerConfig, broker_id: int
    ) -> None:
        self.producer_ids = ProducerIds(store)
        self._store = TopicStore(store)
        self._logs = logs
        self._config = config
        self._broker_id = broker_id
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._names: dict[str, str] = {}  # collision key -> the one topic that has it
        self._locks = NameLocks()  # by collision key
        self._work = Work()
        self._listeners: list[DeleteListener] = []
        self._auto_creations: dict[str, asyncio.Task[Topic]] = {}
        self._auto_creation_slots = asyncio.Semaphore(AUTO_CREATIONS_AT_ONCE)

    # Reading

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Every topic, in no order; the list is the caller's."""
        return list(self._topics.values())

    def require(self, name: str) -> Topic:
        """The topic, or INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._topics.get(name)
        if topic is None:
            rules.check_name(name)
            raise _unknown(name)
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

        It is called once the deletion is durable, and before it is answered.
        """
        self._listeners.append(listener)

    # Life

    async def load(self) -> None:
        """Read every topic from the store, finish what a crash interrupted, and open all logs.

        A log that can not be opened leaves its partition in the catalog, with the error; the rest
        serves. `StoreError` if the store can not be read or holds what is no topic.
        """
        epochs = await self._store.read_epochs()
        for stored in await self._store.read_all():
            if stored.is_deleting:
                await self._remove_files(stored.record.name, stored.revision)
            else:
                await self._adopt(stored, epochs)

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
        rules.check_replication_factor(replication_factor)
        if assignments:
            partition_count = rules.partition_count_of(assignments, self._broker_id)
        elif partition_count == rules.DEFAULT:
            partition_count = self._config.default_partitions
        rules.check_partition_count(partition_count)
        record = TopicRecord(
            name=name,
            id=uuid.uuid4(),
            partition_count=partition_count,
            overrides=dict(overrides or {}),
        )
        topic = Topic(record, 0, rules.topic_config(self._config.topic_defaults, record.overrides))
        if not validate_only:
            await self._work.finish(self._create(topic))
        return topic

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

    async def delete(self, topic: Topic) -> None:
        """Delete the topic, its settings and its data. Listeners have been told on return."""
        await self._work.finish(self._delete(topic))

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
        current = topic.record.partition_count
        rules.check_growth(topic.name, current, count)
        if assignments is not None:
            rules.check_added_replicas(assignments, count - current, self._broker_id)
        if not validate_only:
            await self._work.finish(self._grow(topic, count))

    async def set_overrides(
        self, topic: Topic, overrides: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Make `overrides` the topic's own settings, all of them. Open logs follow at once."""
        await self.change_overrides(topic, lambda _: overrides, validate_only=validate_only)

    async def change_overrides(
        self,
        topic: Topic,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """As `set_overrides`, with what `change` makes of the settings in force when it is its turn."""

        def changed(record: TopicRecord) -> TopicRecord:
            overrides = dict(change(record.overrides))
            rules.topic_config(self._config.topic_defaults, overrides)
            return replace(record, overrides=overrides)

        changed(topic.record)
        if not validate_only:
            await self._work.finish(self._change(topic, changed))

    # The work behind it

    async def _create(self, topic: Topic) -> None:
        async with self._locks.hold(rules.collision_key(topic.name)):
            self._check_free(topic.name)
            await self._insert(topic)
            indices = range(topic.record.partition_count)
            topic.partitions = await open_partitions(self._logs, topic, indices)
            failure = topic.first_error()
            if failure is not None:
                await self._erase(topic)
                raise StorageError(f"topic '{topic.name}' was not created: {failure.message}")
            self._add(topic)

    async def _insert(self, topic: Topic) -> None:
        """Write the record of a topic that is not in the catalog."""
        while True:
            try:
                self._logs.set_aside(topic.name)
            except OSError as error:
                raise StorageError(
                    f"the place of topic '{topic.name}' can not be cleared: {error.strerror}"
                ) from error
            stored = await self._store.insert(topic.record)
            if stored.record.id == topic.id:
                topic.revision = stored.revision
                return
            # In the store, yet not in the catalog: the outcome of an earlier commit was not known.
            if not stored.is_deleting:
                await self._adopt(stored)
                raise _exists(topic.name)
            if not await self._remove_files(topic.name, stored.revision):
                raise StorageError(f"topic '{topic.name}' is still being deleted")

    async def _adopt(
        self, stored: StoredTopic, epochs: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Take a topic that is in the store into the catalog."""
        config = rules.lenient_topic_config(self._config.topic_defaults, stored.record)
        topic = Topic(stored.record, stored.revision, config)
        indices = range(stored.record.partition_count)
        topic.partitions = await open_partitions(self._logs, topic, indices, epochs)
        self._add(topic)

    async def _auto_create(self, name: str) -> Topic:
        async with self._auto_creation_slots:
            try:
                return await self.create(name)
            except ApiError as error:
                topic = self._topics.get(name)
                if error.code is not ErrorCode.topic_already_exists or topic is None:
                    raise
                return topic

    async def _delete(self, topic: Topic) -> None:
        async with self._locks.hold(rules.collision_key(topic.name)):
            self._check_current(topic)
            await self._erase(topic)

    async def _erase(self, topic: Topic) -> None:
        await self._swap(topic, lambda record: record, is_deleting=True)
        await self._forget(topic)
        await self._remove_files(topic.name, topic.revision)

    async def _remove_files(self, name: str, revision: int) -> bool:
        """Finish a deletion. If it can not be now, it will be at the next start, or creation."""
        try:
            self._logs.remove_topic(name)
            await self._store.erase(name, revision)
        except (StorageError, OSError) as error:
            logger.error("a deleted topic leaves its files topic=%s error=%s", name, error)
            return False
        return True

    async def _grow(self, topic: Topic, count: int) -> None:
        def grown(record: TopicRecord) -> TopicRecord:
            rules.check_growth(record.name, record.partition_count, count)
            return replace(record, partition_count=count)

        before = len(topic.partitions)
        await self._change(topic, grown)
        for partition in topic.partitions[before:]:
            if partition.error is not None:
                raise StorageError(f"{partition.topic_partition}: {partition.error.message}")

    async def _change(self, topic: Topic, change: RecordChange) -> None:
        async with self._locks.hold(rules.collision_key(topic.name)):
            self._check_current(topic)
            await self._swap(topic, change)
            await self._follow(topic)

    async def _swap(self, topic: Topic, change: RecordChange, *, is_deleting: bool = False) -> None:
        """Make the topic's record in the store what `change` makes of it."""
        while True:
            record = change(topic.record)
            was_current, stored = await self._store.replace(
                topic.revision, record, is_deleting=is_deleting
            )
            # Not current: an earlier commit, whose outcome was not known, came through.
            if (
                stored is None
                or stored.record.id != topic.id
                or (stored.is_deleting and not is_deleting)
            ):
                await self._forget(topic)
                raise _unknown(topic.name)
            topic.record, topic.revision = stored.record, stored.revision
            if was_current or stored.is_deleting:
                return
            await self._follow(topic)

    async def _follow(self, topic: Topic) -> None:
        """Bring the topic's logs to what its record says."""
        config = rules.lenient_topic_config(self._config.topic_defaults, topic.record)
        if config != topic.config:
            topic.config = config
            for partition in topic.partitions:
                if partition.error is None:
                    partition.log.reconfigure(config)
        added = range(len(topic.partitions), topic.record.partition_count)
        if added:
            topic.partitions += await open_partitions(self._logs, topic, added)

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._names[rules.collision_key(topic.name)] = topic.name

    async def _forget(self, topic: Topic) -> None:
        if self._topics.get(topic.name) is not topic:
            return  # it was never seen: its creation is being taken back
        del self._topics[topic.name]
        del self._by_id[topic.id]
        del self._names[rules.collision_key(topic.name)]
        for listener in self._listeners:
            outcome = listener(topic.name)
            if inspect.isawaitable(outcome):
                await outcome

    def _check_free(self, name: str) -> None:
        if name in self._topics:
            raise _exists(name)
        other = self._names.get(rules.collision_key(name))
        if other is not None:
            raise ApiError(
                ErrorCode.invalid_topic_exception,
                f"topic '{name}' collides with existing topic '{other}': '.' and '_' are alike",
            )

    def _check_current(self, topic: Topic) -> None:
        if self._topics.get(topic.name) is not topic:
            raise _unknown(topic.name)


def _unknown(name: str) -> ApiError:
    return ApiError(ErrorCode.unknown_topic_or_partition, f"topic '{name}' does not exist")


def _exists(name: str) -> ApiError:
    return ApiError(ErrorCode.topic_already_exists, f"topic '{name}' already exists")
