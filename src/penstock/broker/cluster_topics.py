"""The topics of a cluster, as one of its brokers knows them.

The view of the metadata store is the truth: topics appear here, change and go when the watch shows it.
A change is a compare-and-swap on `topics/{name}`, which any broker may write: it says what is wanted, and
the controller makes the partitions follow. Whoever asked waits until this broker sees it done: all
replicas open, or one of them with the reason why it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.broker import topic_rules as rules
from penstock.broker.catalog import Catalog, Move, OverridesChange, Shape, exists, unknown
from penstock.broker.cluster_changes import ClusterChanges, Outcomes
from penstock.broker.replicated import ReplicatedPartition
from penstock.broker.topic_records import Topic
from penstock.cluster import elections, requests
from penstock.cluster.state import TopicState
from penstock.cluster.view import Change, ClusterView, PartitionChanged, Stored, TopicChanged
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.metadata.store import MetadataStore
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig

if TYPE_CHECKING:
    from penstock.cluster.node import ClusterNode
    from penstock.log import LogStore

__all__ = ["ClusterTopics"]

_WAIT_S_MAX: Final = 30.0  # for the cluster to do what was asked

T = TypeVar("T")


class ClusterTopics(Catalog):
    """An observer of the node: follows its view."""

    def __init__(
        self, store: MetadataStore, config: BrokerConfig, node: ClusterNode, logs: LogStore
    ) -> None:
        super().__init__(store, config)
        self._node = node
        self._logs = logs
        self._changes = ClusterChanges(store, node)

    # -- following the view ---------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        if isinstance(change, TopicChanged):
            self._topic_changed(change.topic)
        self._changes.seen(change)

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
            topic.partitions.append(
                ReplicatedPartition(partition, stored.value.id, self._node, self._logs)
            )

    def topic_config(self, topic: TopicState) -> TopicConfig:
        return rules.lenient_topic_config(self._config.topic_defaults, topic)

    async def close(self) -> None:
        self._changes.close()  # others may take long, or never do it
        await super().close()

    async def within(self, timeout_s: float, what: str, change: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                return await change
        except TimeoutError:
            text = f"{what} within {max(timeout_s, 0):g} s; it goes on"
            raise ApiError(ErrorCode.request_timed_out, text) from None

    # -- changing -------------------------------------------------------------------------------

    def _shape(
        self,
        partition_count: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]] | None,
    ) -> Shape:
        if assignments:
            rules.check_consecutive(assignments)
            wanted = tuple(tuple(assignments[index]) for index in range(len(assignments)))
            return Shape(len(wanted), max(map(len, wanted)), wanted)
        if replication_factor == rules.DEFAULT:
            here = sum(not broker.is_leaving for broker in self._node.view.brokers.values())
            replication_factor = min(self._config.default_replication_factor, max(here, 1))
        return Shape(partition_count, replication_factor)

    def _check_new(self, record: TopicState) -> None:
        requests.create_topic(self._node.view, record)

    async def _create(self, topic: Topic) -> Topic:
        state = topic.record
        if not await self._changes.commit(requests.create_topic(self._node.view, state)):
            raise exists(state.name)
        try:
            await self._until_open(state)
        except StorageError as error:
            await self._take_back(state)
            raise StorageError(f"topic '{state.name}' was not created: {error.message}") from error
        made = self.get_by_id(state.id)
        if made is None:
            raise unknown(state.name)
        return made

    async def _until_open(self, state: TopicState, first: int = 0) -> None:
        """Until every replica of the partitions from `first` on is open; `StorageError` if one can not be."""
        opening = _Opening(self._node.view, state, first)
        if not opening.is_decided:
            what = f"topic '{state.name}' was not ready"
            await self._changes.until(state.name, opening.look, what, _WAIT_S_MAX)
        if opening.is_gone:
            raise unknown(state.name)
        if opening.error is not None:
            raise StorageError(opening.error)

    async def _take_back(self, state: TopicState) -> None:
        stored = self._node.view.topics.get(state.name)
        if stored is not None and stored.value.id == state.id:
            await self._changes.commit(requests.delete_topic(self._node.view, state.name))

    async def delete(self, topic: Topic) -> None:
        self._check_current(topic)
        await self._work.finish(self._delete(topic))

    async def _delete(self, topic: Topic) -> None:
        while self._topics.get(topic.name) is topic:
            if await self._changes.commit(requests.delete_topic(self._node.view, topic.name)):
                break
        if self._topics.get(topic.name) is topic:
            await self._changes.until(
                topic.name,
                lambda _: self._topics.get(topic.name) is not topic,
                f"topic '{topic.name}' was not seen to go",
                _WAIT_S_MAX,
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
        placed = None if assignments is None else [tuple(replicas) for replicas in assignments]
        requests.grow_topic(self._node.view, topic.name, count, placed)
        if not validate_only:
            await self._work.finish(self._grow(topic, count, placed))

    async def _grow(
        self, topic: Topic, count: int, placed: Sequence[tuple[int, ...]] | None
    ) -> None:
        while True:
            self._check_current(topic)
            before = topic.record.partition_count
            decision = requests.grow_topic(self._node.view, topic.name, count, placed)
            if await self._changes.commit(decision):
                break
        await self._until_open(replace(topic.record, partition_count=count), before)

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
            if await self._changes.commit(decision):
                return

    # -- moving and electing --------------------------------------------------------------------

    async def move(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_count: bool = True,
    ) -> Outcomes:
        view = self._node.view
        return await self._work.finish(
            self._changes.commit_partitions(
                targets,
                lambda partition: requests.move(
                    view, partition, targets[partition], may_change_count=may_change_count
                ),
            )
        )

    def moves(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Move]:
        view = self._node.view
        asked = view.moving if partitions is None else partitions
        return {
            partition: Move(state.replicas, state.adding, state.removing)
            for partition in asked
            if partition in view.moving
            for state in (view.partitions[partition].value,)
        }

    async def elect(
        self, partitions: Iterable[TopicPartition], *, unclean: bool, timeout_s: float
    ) -> Outcomes:
        view = self._node.view
        outcomes = await self._work.finish(
            self._changes.commit_partitions(
                partitions, lambda partition: requests.elect(view, partition, unclean=unclean)
            )
        )
        if unclean:  # the controller elects; a preferred leader leads since the commit
            waiting = [partition for partition, error in outcomes.items() if error is None]
            decided = await asyncio.gather(*(self._until_led(p, timeout_s) for p in waiting))
            outcomes.update(zip(waiting, decided, strict=True))
        return outcomes

    async def _until_led(self, partition: TopicPartition, timeout_s: float) -> ApiError | None:
        """Wait for the controller to answer `is_unclean_wanted`."""
        view = self._node.view

        def is_open() -> bool:
            stored = view.partitions.get(partition)
            return stored is not None and stored.value.is_unclean_wanted

        if is_open():
            what = f"nobody was elected for {partition}"
            try:
                await self._changes.until(partition, lambda _: not is_open(), what, timeout_s)
            except ApiError as error:
                return error
        stored = view.partitions.get(partition)
        if stored is None:
            return unknown(partition.topic)
        if elections.is_led(view, stored.value):
            return None
        return ApiError(
            ErrorCode.eligible_leaders_not_available, f"no replica of {partition} could lead"
        )


class _Opening:
    """Follows new partitions until all are open, or one can not be. A change costs its own partition."""

    def __init__(self, view: ClusterView, topic: TopicState, first: int) -> None:
        self._view = view
        self._topic = topic
        self.error: str | None = None
        self.is_gone = False
        self._left = set(range(first, topic.partition_count))
        self._look_at_topic()
        for index in tuple(self._left):
            self._look_at(TopicPartition(topic.name, index))

    @property
    def is_decided(self) -> bool:
        return self.is_gone or self.error is not None or not self._left

    def look(self, change: Change) -> bool:
        match change:
            case TopicChanged():
                self._look_at_topic()
            case PartitionChanged():
                self._look_at(change.partition)
        return self.is_decided

    def _look_at_topic(self) -> None:
        stored = self._view.topics.get(self._topic.name)
        self.is_gone = stored is None or stored.value.id != self._topic.id

    def _look_at(self, partition: TopicPartition) -> None:
        if partition.partition in self._left:
            pending, error = requests.opening_of(self._view, partition)
            if error is not None:
                self.error = f"{partition} on {error}"
            elif not pending:
                self._left.discard(partition.partition)
