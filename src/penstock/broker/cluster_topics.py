"""The topics of a cluster, as one of its brokers knows them.

The view of the metadata store is the truth: topics appear here, change and go when the watch shows it.
A change is a compare-and-swap on `topics/{name}`, which any broker may write: it says what is wanted, and
the controller makes the partitions follow. Whoever asked waits until this broker sees it done: all
replicas open, or one of them with the reason why it is not.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.broker import topic_rules as rules
from penstock.broker.catalog import Catalog, OverridesChange, exists, unknown
from penstock.broker.replicated import ReplicatedPartition
from penstock.broker.topic_records import Topic
from penstock.cluster import requests
from penstock.cluster.controller import Decision
from penstock.cluster.state import TopicState
from penstock.cluster.view import Change, PartitionChanged, Stored, TopicChanged
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.metadata.errors import StoreError
from penstock.metadata.store import Lease, MetadataStore, Rejected
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig

if TYPE_CHECKING:
    from penstock.cluster.node import ClusterNode
    from penstock.log import LogStore

__all__ = ["ClusterTopics"]

logger = logging.getLogger(__name__)

_WAIT_S_MAX: Final = 30.0  # for the cluster to do what was asked

Condition = Callable[[], bool]


class ClusterTopics(Catalog):
    """An observer of the node: follows its view."""

    def __init__(
        self, store: MetadataStore, config: BrokerConfig, node: ClusterNode, logs: LogStore
    ) -> None:
        super().__init__(store, config)
        self._store = store
        self._node = node
        self._logs = logs
        self._waiting: dict[str, list[tuple[Condition, asyncio.Future[None]]]] = {}  # by topic

    # -- following the view ---------------------------------------------------------------------

    def registered(self, lease: Lease, incarnation: str) -> None:
        pass

    def unregistered(self) -> None:
        pass

    def changed(self, change: Change) -> None:
        match change:
            case TopicChanged():
                self._topic_changed(change.topic)
                self._wake(change.topic)
            case PartitionChanged():
                self._wake(change.partition.topic)

    def _topic_changed(self, name: str) -> None:
        stored = self._node.view.topics.get(name)
        topic = self._topics.get(name)
        if topic is not None and (stored is None or stored.value.id != topic.id):
            self._remove(topic)
            self._work.start(self._tell_deleted(name))
            topic = None
        if stored is None:
            return
        if topic is None:
            topic = Topic(stored.value, stored.revision, self.topic_config(stored.value))
            self._add(topic)
        topic.record, topic.revision = stored.value, stored.revision
        topic.config = self.topic_config(stored.value)
        for index in range(len(topic.partitions), stored.value.partition_count):
            partition = TopicPartition(name, index)
            topic.partitions.append(ReplicatedPartition(partition, self._node, self._logs))

    def topic_config(self, topic: TopicState) -> TopicConfig:
        return rules.lenient_topic_config(self._config.topic_defaults, topic)

    # -- waiting for the cluster ----------------------------------------------------------------

    def _wake(self, topic: str) -> None:
        waiting = self._waiting.get(topic)
        if waiting is None:
            return
        for condition, future in waiting:
            if not future.done() and condition():
                future.set_result(None)
        left = [item for item in waiting if not item[1].done()]
        if left:
            self._waiting[topic] = left
        else:
            del self._waiting[topic]

    async def _until(self, topic: str, condition: Condition, what: str) -> None:
        """Wait until this broker sees that it is so."""
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, []).append((condition, future))
        try:
            async with asyncio.timeout(_WAIT_S_MAX):
                await future
        except TimeoutError:
            raise ApiError(
                ErrorCode.request_timed_out, f"{what} within {_WAIT_S_MAX:.0f} s"
            ) from None

    # -- changing -------------------------------------------------------------------------------

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
        rules.check_name(name)
        self._check_free(name)
        wanted: tuple[tuple[int, ...], ...] = ()
        if assignments:
            rules.check_consecutive(assignments)
            wanted = tuple(tuple(assignments[index]) for index in range(len(assignments)))
            partition_count = len(wanted)
            replication_factor = max(len(replicas) for replicas in wanted)
        elif partition_count == rules.DEFAULT:
            partition_count = self._config.default_partitions
        rules.check_partition_count(partition_count)
        if replication_factor == rules.DEFAULT:
            here = sum(not broker.is_leaving for broker in self._node.view.brokers.values())
            replication_factor = min(self._config.default_replication_factor, max(here, 1))
        state = TopicState(
            name=name,
            id=uuid.uuid4(),
            partition_count=partition_count,
            replication_factor=replication_factor,
            assignment=wanted,
            overrides=dict(overrides or {}),
        )
        config = rules.topic_config(self._config.topic_defaults, state.overrides)
        decision = requests.create_topic(self._node.view, state)
        if validate_only:
            return Topic(state, 0, config)
        return await self._work.finish(self._create(state, decision))

    async def _create(self, state: TopicState, decision: Decision) -> Topic:
        if not await self._commit(decision):
            raise exists(state.name)
        try:
            await self._until_open(state)
        except StorageError as error:
            await self._take_back(state)
            raise StorageError(f"topic '{state.name}' was not created: {error.message}") from error
        topic = self._by_id.get(state.id)
        if topic is None:
            raise unknown(state.name)
        return topic

    async def _until_open(self, state: TopicState) -> None:
        """Until every replica of every partition is open; `StorageError` if one can not be."""

        def is_decided() -> bool:
            stored = self._node.view.topics.get(state.name)
            if stored is None or stored.value.id != state.id:
                return state.id in self._by_id  # gone again; or not there yet
            opening = requests.opening(self._node.view, state.name)
            return opening.pending == 0 or bool(opening.errors)

        await self._until(state.name, is_decided, f"topic '{state.name}' was not ready")
        stored = self._node.view.topics.get(state.name)
        if stored is None or stored.value.id != state.id:
            raise unknown(state.name)
        errors = requests.opening(self._node.view, state.name).errors
        if errors:
            partition, reason = next(iter(errors.items()))
            raise StorageError(f"{partition} on {reason}")

    async def _take_back(self, state: TopicState) -> None:
        stored = self._node.view.topics.get(state.name)
        if stored is not None and stored.value.id == state.id:
            await self._commit(requests.delete_topic(self._node.view, state.name))

    async def delete(self, topic: Topic) -> None:
        self._check_current(topic)
        await self._work.finish(self._delete(topic))

    async def _delete(self, topic: Topic) -> None:
        while self._topics.get(topic.name) is topic:
            if await self._commit(requests.delete_topic(self._node.view, topic.name)):
                break
        await self._until(
            topic.name,
            lambda: self._topics.get(topic.name) is not topic,
            f"topic '{topic.name}' was not seen to go",
        )

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
        if assignments is not None and len(assignments) != count - current:
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                f"{count - current} partition(s) are added,"
                f" but {len(assignments)} assignment(s) given",
            )
        placed = None if assignments is None else [tuple(replicas) for replicas in assignments]
        requests.grow_topic(self._node.view, topic.name, count, placed)
        if not validate_only:
            await self._work.finish(self._grow(topic, count, placed))

    async def _grow(
        self, topic: Topic, count: int, placed: Sequence[tuple[int, ...]] | None
    ) -> None:
        while True:
            self._check_current(topic)
            if await self._commit(requests.grow_topic(self._node.view, topic.name, count, placed)):
                break
        await self._until_open(topic.record)

    async def change_overrides(
        self, topic: Topic, change: OverridesChange, *, validate_only: bool = False
    ) -> None:
        self._changed(topic.record, change)
        if not validate_only:
            await self._work.finish(self._change_overrides(topic, change))

    def _changed(self, record: TopicState, change: OverridesChange) -> TopicState:
        overrides = dict(change(record.overrides))
        rules.topic_config(self._config.topic_defaults, overrides)
        return replace(record, overrides=overrides)

    async def _change_overrides(self, topic: Topic, change: OverridesChange) -> None:
        while True:
            self._check_current(topic)
            stored = Stored(topic.record, topic.revision)
            decision = requests.replace_topic(stored, self._changed(topic.record, change))
            if await self._commit(decision):
                return

    # -- the store ------------------------------------------------------------------------------

    async def _commit(self, decision: Decision) -> bool:
        """Whether it was written. If not, what the store has instead has been applied."""
        try:
            result = await self._store.commit(decision.transaction)
        except StoreError as error:
            raise ApiError(
                ErrorCode.request_timed_out, f"the metadata store did not answer: {error}"
            ) from error
        if isinstance(result, Rejected):
            for mismatch in result.mismatches:
                actual = mismatch.actual
                if actual is None:
                    self._node.apply(mismatch.compare.key, None, result.revision)
                else:
                    self._node.apply(actual.key, actual.value, actual.mod_revision)
            return False
        for put in decision.transaction.puts:
            self._node.apply(put.key, put.value, result.revision)
        return True
