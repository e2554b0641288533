"""What the broker holds of each topic and partition."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import LogStore, PartitionLog
from penstock.model import TopicPartition, TopicRecord
from penstock.settings import TopicConfig

logger = logging.getLogger(__name__)

_OPEN_AT_ONCE: Final = 4  # logs opened before others on the event loop get a turn


class Partition:
    """One partition as this broker has it: open, or kept from service by `error`."""

    __slots__ = ("_log", "error", "index", "leader_epoch", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        log: PartitionLog | None = None,
        error: StorageError | None = None,
        leader_epoch: int = 0,
    ) -> None:
        assert (log is None) != (error is None), "a partition is open, or has the reason it is not"
        self.topic_partition = topic_partition
        self.index = topic_partition.partition
        self.leader_epoch = leader_epoch
        self.error = error
        self._log = log

    @property
    def log(self) -> PartitionLog:
        """The open log; raises the `StorageError` that kept it from opening."""
        if self._log is None:
            assert self.error is not None
            raise StorageError(self.error.message)  # a new one: each carries its own traceback
        return self._log

    @property
    def failure(self) -> ApiError | None:
        """Why nothing is served from here: it did not open, or failed since."""
        return self.error if self._log is None else self._log.failure

    def sound_log(self) -> PartitionLog:
        """The log, for whoever does not read or append; raises its `failure` if it has one."""
        if self.failure is not None:
            raise ApiError(self.failure.code, self.failure.message)
        return self.log

    @property
    def is_gone(self) -> bool:
        """Whether the topic was deleted, so that its name may mean another one by now."""
        return self._log is not None and self._log.is_deleted

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fence a client whose view of the leadership is older, or newer, than ours; -1 has no view."""
        if current_leader_epoch == self.leader_epoch or current_leader_epoch < 0:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.fenced_leader_epoch, "the leader epoch is an older one")
        raise ApiError(ErrorCode.unknown_leader_epoch, "the leader epoch is not known here yet")


@dataclass(slots=True, eq=False)
class Topic:
    """A topic in the catalog. Only the catalog changes it; `partitions[i]` is partition i."""

    record: TopicRecord  # as the store has it
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
    def overrides(self) -> dict[str, str]:
        """The topic's own settings, by Kafka name. Not to be changed in place."""
        return self.record.overrides

    def first_error(self) -> StorageError | None:
        """Why the first of its partitions that did not open did not."""
        return next((p.error for p in self.partitions if p.error is not None), None)


async def open_partitions(
    logs: LogStore,
    topic: Topic,
    indices: Iterable[int],
    epochs: Mapping[TopicPartition, int] | None = None,
) -> list[Partition]:
    """The topic's partitions with their logs open, or with the reason they are not.

    Logs belong to the event loop, so they are opened there, a few at a time.
    """
    partitions = []
    for index in indices:
        name = TopicPartition(topic.name, index)
        partitions.append(_open(logs, name, topic.config, (epochs or {}).get(name, 0)))
        if len(partitions) % _OPEN_AT_ONCE == 0:
            await asyncio.sleep(0)
    return partitions


def _open(logs: LogStore, name: TopicPartition, config: TopicConfig, epoch: int) -> Partition:
    try:
        log = logs.open(name, config)
    except StorageError as error:
        logger.error("a partition can not be opened partition=%s error=%s", name, error.message)
        return Partition(name, error=error, leader_epoch=epoch)
    log.leader_epoch = epoch
    return Partition(name, log=log, leader_epoch=epoch)
