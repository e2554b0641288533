"""The topics of a broker that is alone, their settings and their open partitions.

Every change is first a compare-and-swap in the metadata store, and only when that is durable is it seen
here and answered. Changes of one topic (or of names that collide) wait for each other; changes of
different topics run side by side and share the store's syncs.

Deleting takes two writes, so that a crash between them can not give a new topic an old one's files:

    topics/t = {…}  →  topics/t = {…, "deleting": true}  →  files renamed away  →  topics/t is deleted
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker import topic_rules as rules
from penstock.broker.catalog import Catalog, Move, OverridesChange, Shape, exists, unknown
from penstock.broker.topic_records import Partition, Topic, first_error, open_partitions
from penstock.broker.topic_store import StoredTopic, TopicStore
from penstock.broker.topic_work import NameLocks
from penstock.cluster.state import TopicState
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

if TYPE_CHECKING:
    from penstock.log import LogStore
    from penstock.metadata.store import MetadataStore

__all__ = ["Partition", "Topic", "TopicCatalog"]

logger = logging.getLogger(__name__)

RecordChange = Callable[[TopicState], TopicState]


class TopicCatalog(Catalog):
    """All topics of one broker, which holds all their partitions."""

    def __init__(
        self, store: MetadataStore, logs: LogStore, config: BrokerConfig, broker_id: int
    ) -> None:
        super().__init__(store, config)
        self._store = TopicStore(store)
        self._logs = logs
        self._broker_id = broker_id
        self._locks = NameLocks()  # by collision key

    # Life

    async def load(self) -> None:
        """Read every topic from the store, finish what a crash interrupted, and open all logs.

        A log that can not be opened leaves its partition in the catalog, with the error; the rest
        serves. `StoreError` if the store can not be read or holds what is no topic.
        """
        topics = await self._store.read_all()
        epochs = await self._epochs(topics)
        for stored in topics:
            if stored.is_deleting:
                await self._finish_deletion(stored.record.name, stored.revision)
            else:
                await self._adopt(stored, epochs)

    async def _epochs(self, topics: Iterable[StoredTopic]) -> Mapping[TopicPartition, int]:
        """The leader epochs to go on in.

        If the disk may have lost the end of a log, its offsets will be used again, by other records: in
        the next epoch, by which consumers that have read the lost ones find out.
        """
        epochs = await self._store.read_epochs()
        try:
            storage_id, known = self._logs.storage_id, await self._store.read_storage_id()
            if storage_id == known:
                return epochs
            raised = {} if known is None else _raised(epochs, topics)
            await self._store.write_epochs(raised, storage_id)
        except StorageError as error:  # a full disk must not keep what is there from being read
            logger.error("no new leader epochs error=%s", error.message)
            return epochs
        return {**epochs, **raised}

    # Changing

    def _shape(
        self,
        partition_count: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]] | None,
    ) -> Shape:
        rules.check_replication_factor(replication_factor)
        if assignments:
            partition_count = rules.partition_count_of(assignments, self._broker_id)
        return Shape(partition_count)

    def _check_new(self, record: TopicState) -> None:
        """There is nobody else to ask."""

    async def delete(self, topic: Topic) -> None:
        await self._work.finish(self._delete(topic))

    async def grow(
        self,
        topic: Topic,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        current = topic.record.partition_count
        rules.check_growth(topic.name, current, count)
        if assignments is not None:
            rules.check_added_replicas(assignments, count - current, self._broker_id)
        if not validate_only:
            await self._work.finish(self._grow(topic, count))

    async def change_overrides(
        self,
        topic: Topic,
        change: OverridesChange,
        *,
        validate_only: bool = False,
    ) -> None:

        def changed(record: TopicState) -> TopicState:
            overrides = dict(change(record.overrides))
            rules.topic_config(self._config.topic_defaults, overrides)
            return replace(record, overrides=overrides)

        changed(topic.record)
        if not validate_only:
            await self._work.finish(self._change(topic, changed))

    # One broker is all there is

    async def move(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_count: bool = True,  # noqa: ARG002 - it is 1
    ) -> dict[TopicPartition, ApiError | None]:
        def check(partition: TopicPartition, target: Sequence[int] | None) -> ApiError | None:
            try:
                self.partition(partition.topic, partition.partition)
                if target is None:
                    raise ApiError(
                        ErrorCode.no_reassignment_in_progress, "the partition is not being moved"
                    )
                rules.check_replicas(target, self._broker_id)
            except ApiError as error:
                return error
            return None

        return {partition: check(partition, target) for partition, target in targets.items()}

    def moves(
        self,
        partitions: Iterable[TopicPartition] | None = None,  # noqa: ARG002
    ) -> dict[TopicPartition, Move]:
        return {}

    async def elect(
        self,
        partitions: Iterable[TopicPartition],
        *,
        unclean: bool,  # noqa: ARG002 - everything is led, always
        timeout_s: float,  # noqa: ARG002
    ) -> dict[TopicPartition, ApiError | None]:
        outcomes: dict[TopicPartition, ApiError | None] = {}
        for partition in partitions:
            try:
                leader = self.partition(partition.topic, partition.partition).leader
                raise ApiError(ErrorCode.election_not_needed, f"broker {leader} leads {partition}")
            except ApiError as error:
                outcomes[partition] = error
        return outcomes

    # The work behind it

    async def _create(self, topic: Topic) -> Topic:
        async with self._locks.hold(rules.collision_key(topic.name)):
            self._check_free(topic.name)
            await self._insert(topic)
            indices = range(topic.record.partition_count)
            topic.partitions = await open_partitions(self._logs, topic, indices, self._broker_id)
            failure = first_error(topic.partitions)
            if failure is not None:
                await self._erase(topic)
                raise StorageError(f"topic '{topic.name}' was not created: {failure.message}")
            self._add(topic)
            return topic

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
                raise exists(topic.name)
            if not await self._finish_deletion(topic.name, stored.revision):
                raise StorageError(f"topic '{topic.name}' is still being deleted")

    async def _adopt(
        self, stored: StoredTopic, epochs: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Take a topic that is in the store into the catalog."""
        config = rules.lenient_topic_config(self._config.topic_defaults, stored.record)
        topic = Topic(stored.record, stored.revision, config)
        indices = range(stored.record.partition_count)
        topic.partitions = await open_partitions(
            self._logs, topic, indices, self._broker_id, epochs
        )
        self._add(topic)

    async def _delete(self, topic: Topic) -> None:
        async with self._locks.hold(rules.collision_key(topic.name)):
            self._check_current(topic)
            await self._erase(topic)

    async def _erase(self, topic: Topic) -> None:
        await self._swap(topic, lambda record: record, is_deleting=True)
        self._remove(topic)
        await self._finish_deletion(topic.name, topic.revision)

    async def _finish_deletion(self, name: str, revision: int) -> bool:
        """Do the rest. What can not be done now will be at the next start, or creation."""
        failure: ApiError | OSError | None = None
        try:
            await self._tell_deleted(name)
        except ApiError as error:
            failure = error
        try:
            self._logs.remove_topic(name)
            if failure is None:
                await self._store.erase(name, revision)
        except (StorageError, OSError) as error:
            failure = error
        if failure is not None:
            logger.error("a deleted topic leaves something behind topic=%s error=%s", name, failure)
        return failure is None

    async def _grow(self, topic: Topic, count: int) -> None:
        def grown(record: TopicState) -> TopicState:
            rules.check_growth(record.name, record.partition_count, count)
            return replace(record, partition_count=count)

        before = len(topic.partitions)
        await self._change(topic, grown)
        for partition in topic.partitions[before:]:
            failure = first_error([partition])
            if failure is not None:
                raise StorageError(f"{partition.topic_partition}: {failure.message}")

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
                raise unknown(topic.name)
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
                if partition.local_log is not None:
                    partition.local_log.reconfigure(config)
        added = range(len(topic.partitions), topic.record.partition_count)
        if added:
            topic.partitions += await open_partitions(self._logs, topic, added, self._broker_id)

    async def _forget(self, topic: Topic) -> None:
        if self._remove(topic):  # else it was never seen: its creation is being taken back
            await self._tell_deleted(topic.name)


def _raised(
    epochs: Mapping[TopicPartition, int], topics: Iterable[StoredTopic]
) -> dict[TopicPartition, int]:
    partitions = (
        TopicPartition(stored.record.name, index)
        for stored in topics
        if not stored.is_deleting
        for index in range(stored.record.partition_count)
    )
    return {partition: epochs.get(partition, 0) + 1 for partition in partitions}
