"""What the broker holds of each topic and partition."""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.refusals import Refusals
from penstock.cluster.messages import ReplicaFetch, ReplicaFetched
from penstock.cluster.state import TopicState
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import LogStore, PartitionLog
from penstock.log.partition_log import Appended
from penstock.model import TopicPartition
from penstock.settings import TopicConfig

logger = logging.getLogger(__name__)

_OPEN_AT_ONCE: Final = 4  # logs opened before others on the event loop get a turn


class Partition(ABC):
    """One partition as this broker knows it, wherever its leader is."""

    __slots__ = ("_logs", "_refusals", "index", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, logs: LogStore) -> None:
        self.topic_partition = topic_partition
        self.index = topic_partition.partition
        self._logs = logs
        self._refusals: Refusals | None = None  # None: there were none

    @property
    @abstractmethod
    def leader_epoch(self) -> int: ...

    @property
    @abstractmethod
    def leader(self) -> int:
        """The broker that was elected to serve it; -1: none was. The same for as long as the epoch is."""

    @property
    def is_led(self) -> bool:
        """Whether that broker is there."""
        return self.leader >= 0

    @property
    @abstractmethod
    def replicas(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def isr(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def offline_replicas(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def log(self) -> PartitionLog:
        """The log that clients read; `ApiError` if this broker does not serve it."""

    @property
    @abstractmethod
    def local_log(self) -> PartitionLog | None:
        """The log of the replica that this broker holds, in whatever role."""

    @property
    @abstractmethod
    def failure(self) -> ApiError | None:
        """Why nothing is served from here: it did not open, or failed since."""

    def append(self, records: memoryview, acks: int) -> Appended:
        """Append one produced batch. With `must_wait`, `until_acknowledged` follows in the same step."""
        refusals = self._refusals
        if refusals is not None:
            refusals.check(records, self.local_log, self._logs.clock.monotonic_s())
        try:
            appended = self._append(records, acks)
        except ApiError as error:
            if refusals is None:
                refusals = self._refusals = Refusals()
            now = self._logs.clock.monotonic_s()
            refusal = refusals.instead_of(error, records, self.local_log, now)
            if refusal is None:
                raise
            raise refusal from error
        if refusals is not None:
            refusals.taken(records)
        return appended

    @abstractmethod
    def _append(self, records: memoryview, acks: int) -> Appended: ...

    @abstractmethod
    def must_wait(self, acks: int) -> bool:
        """Whether the answer has to wait for more than the append."""

    @abstractmethod
    def until_acknowledged(
        self, acks: int, end_offset: int, timeout_s: float
    ) -> asyncio.Future[None]:
        """Done when what was appended is as safe as `acks` asks; `ApiError` if it is not."""

    @abstractmethod
    def follower_fetch(self, fetch: ReplicaFetch) -> ReplicaFetched:
        """A follower asks: what to answer it, but for the records."""

    async def until_logs_begin_at(self, start: int, timeout_s: float) -> None:  # noqa: ARG002
        """Until every other log in sync has left out what ours has. REQUEST_TIMED_OUT: some have not."""
        return

    def sound_log(self) -> PartitionLog:
        """The log, for whoever does not read or append; raises its `failure` if it has one."""
        if self.failure is not None:
            raise ApiError(self.failure.code, self.failure.message)
        return self.log

    @property
    def is_gone(self) -> bool:
        """Whether the topic was deleted, so that its name may mean another one by now."""
        log = self.local_log
        return log is not None and log.is_deleted

    @property
    def lag(self) -> int:
        """Committed records that the replica on this broker does not have yet."""
        return 0

    def is_sure_to_lead(self) -> bool:
        """Whether nobody else can lead by now, so that what is not in our log is nowhere."""
        return True

    def latest_offset(self) -> int:
        """The end of what consumers may read; OFFSET_NOT_AVAILABLE while it is not known yet."""
        return self.sound_log().high_watermark

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fence a client whose view of the leadership is older, or newer, than ours; -1 has no view."""
        if current_leader_epoch == self.leader_epoch or current_leader_epoch < 0:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.fenced_leader_epoch, "the leader epoch is an older one")
        raise ApiError(ErrorCode.unknown_leader_epoch, "the leader epoch is not known here yet")


class LocalPartition(Partition):
    """A partition of a broker that is alone: open, or kept from service by `error`."""

    __slots__ = ("_leader_epoch", "_log", "_replicas", "error")

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        logs: LogStore,
        *,
        log: PartitionLog | None = None,
        error: StorageError | None = None,
        leader_epoch: int = 0,
    ) -> None:
        assert (log is None) != (error is None), "a partition is open, or has the reason it is not"
        super().__init__(topic_partition, logs)
        self._leader_epoch = leader_epoch
        self._replicas = (broker_id,)
        self.error = error
        self._log = log

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._replicas

    @property
    def leader(self) -> int:
        # A damaged partition keeps its leader, so that whoever uses it is told the storage error.
        return self.replicas[0]

    @property
    def isr(self) -> tuple[int, ...]:
        return self.replicas

    @property
    def offline_replicas(self) -> tuple[int, ...]:
        return () if self.failure is None else self.replicas

    @property
    def log(self) -> PartitionLog:
        """The open log; raises the `StorageError` that kept it from opening."""
        if self._log is None:
            assert self.error is not None
            raise StorageError(self.error.message)  # a new one: each carries its own traceback
        return self._log

    @property
    def local_log(self) -> PartitionLog | None:
        return self._log

    @property
    def failure(self) -> ApiError | None:
        return self.error if self._log is None else self._log.failure

    def _append(self, records: memoryview, acks: int) -> Appended:
        log = self.log
        if acks == -1 and log.config.min_insync_replicas > 1:
            raise ApiError(
                ErrorCode.not_enough_replicas,
                f"min.insync.replicas is {log.config.min_insync_replicas}, there is one replica",
            )
        return log.append(records)

    def must_wait(self, acks: int) -> bool:
        return acks == -1 or (acks != 0 and self.log.needs_sync_before_answer)

    def until_acknowledged(
        self,
        acks: int,  # noqa: ARG002 - with one replica it is the same for all who wait
        end_offset: int,
        timeout_s: float,  # noqa: ARG002 - a disk answers, or fails
    ) -> asyncio.Future[None]:
        return self._logs.group_commit.until_durable(self.log, end_offset)

    def follower_fetch(self, fetch: ReplicaFetch) -> ReplicaFetched:  # noqa: ARG002
        return ReplicaFetched(error=ErrorCode.not_leader_or_follower)


@dataclass(slots=True, eq=False)
class Topic:
    """A topic in the catalog. Only the catalog changes it; `partitions[i]` is partition i."""

    record: TopicState  # as the store has it
    revision: int  # of that record: what the next change is compared with
    config: TopicConfig  # the broker's defaults under the topic's overrides
    partitions: list[Partition] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def id(self) -> uuid.UUID:
        return self.record.id

    @property
    def overrides(self) -> Mapping[str, str]:
        """The topic's own settings, by Kafka name."""
        return self.record.overrides


async def open_partitions(
    logs: LogStore,
    topic: Topic,
    indices: Iterable[int],
    broker_id: int,
    epochs: Mapping[TopicPartition, int] | None = None,
) -> list[Partition]:
    """The topic's partitions with their logs open, or with the reason they are not.

    Logs belong to the event loop, so they are opened there, a few at a time.
    """
    partitions: list[Partition] = []
    for index in indices:
        name = TopicPartition(topic.name, index)
        epoch = (epochs or {}).get(name, 0)
        partitions.append(_open(logs, name, broker_id, topic.config, epoch))
        if len(partitions) % _OPEN_AT_ONCE == 0:
            await asyncio.sleep(0)
    return partitions


def _open(
    logs: LogStore, name: TopicPartition, broker_id: int, config: TopicConfig, epoch: int
) -> LocalPartition:
    try:
        log = logs.open(name, config)
    except StorageError as error:
        logger.error("a partition can not be opened partition=%s error=%s", name, error.message)
        return LocalPartition(name, broker_id, logs, error=error, leader_epoch=epoch)
    log.leader_epoch = epoch
    return LocalPartition(name, broker_id, logs, log=log, leader_epoch=epoch)


def first_error(partitions: Iterable[Partition]) -> StorageError | None:
    """Why the first of these that did not open did not."""
    for partition in partitions:
        if isinstance(partition, LocalPartition) and partition.error is not None:
            return partition.error
    return None
