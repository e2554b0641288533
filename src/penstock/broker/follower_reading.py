"""Reading as a follower: the whole log, and only while this broker leads what the follower believes in.

A fetch tells the leader where its follower stands. That is noted for the partitions that a request
names, once; those that it does not name stand where they stood. What the leader made of it stays with
the position until the follower names it again, so a session of a thousand quiet partitions costs
nothing. Whether the partition is still led in the follower's epoch is looked at whenever it is answered.
"""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from penstock.broker.fetching import Directory, Found, Position, Reader, fitting
from penstock.broker.topics import Partition
from penstock.cluster.messages import ReplicaFetch, ReplicaFetched
from penstock.cluster.state import partition_cluster_id
from penstock.errors import ApiError, ErrorCode
from penstock.log import PartitionLog

__all__ = ["FollowerReader"]

_GO_ON = ReplicaFetched()


class FollowerPosition(Position):
    """With what the leader made of it when the follower last named it."""

    __slots__ = ("cluster_id", "verdict")

    def __init__(self, key: Any, partition: Partition | ApiError) -> None:
        super().__init__(key, partition)
        topic, index = key
        # A follower knows topics by their ids; one that uses names is told that it knows nothing.
        by_id = isinstance(topic, uuid.UUID)
        self.cluster_id = partition_cluster_id(topic, index) if by_id else ""
        self.verdict = _GO_ON


class FollowerReader(Reader):
    """One registration of one follower."""

    __slots__ = ("_number", "incarnation", "replica")

    position_type: ClassVar[type[Position]] = FollowerPosition

    def __init__(self, directory: Directory, replica: int, incarnation: str) -> None:
        super().__init__(directory)
        self.replica = replica
        self.incarnation = incarnation
        self._number = 0

    def asked(self, position: Position, log_start: int) -> None:
        """The follower has named this position: it holds all from `log_start` to there."""
        assert isinstance(position, FollowerPosition)
        if isinstance(position.partition, ApiError):
            position.partition = self._directory.resolve(position.key)
        if isinstance(position.partition, ApiError):
            # Nobody noted where it stands: it has to say it again, though the partition may be known by then.
            position.verdict = ReplicaFetched(error=position.partition.code)
            return
        self._number += 1
        try:
            position.verdict = position.partition.follower_fetch(
                ReplicaFetch(
                    cluster_id=position.cluster_id,
                    replica=self.replica,
                    incarnation=self.incarnation,
                    leader_epoch=position.leader_epoch,
                    offset=position.offset,
                    last_epoch=position.last_fetched_epoch,
                    number=self._number,
                    log_start=log_start,
                )
            )
        except ApiError as error:
            position.verdict = ReplicaFetched(error=error.code)

    def _look_into(
        self, position: Position, log: PartitionLog, bytes_left: int, *, must_fit: bool
    ) -> Found:
        assert isinstance(position, FollowerPosition)
        verdict = position.verdict
        if verdict.error is not None:
            raise ApiError(verdict.error, "the follower's fetch was refused")
        allowed = min(position.bytes_max, bytes_left)
        found = Found(
            position,
            None,
            log.high_watermark,
            log.log_start_offset,
            end=log.log_end_offset,
            allowed=allowed,
        )
        if verdict.log_start is not None:
            error = ApiError(ErrorCode.offset_out_of_range, "the log begins above it")
            return found._replace(error=error)
        if verdict.diverging is not None:
            return found._replace(diverging=verdict.diverging)
        if bytes_left <= 0 and must_fit:
            return found
        records = log.read(position.offset, allowed, uncommitted=True)
        if records is None:
            return found._replace(end=position.offset)  # where the log ends, or a gap ends it
        return found._replace(records=fitting(records, allowed, must_fit=must_fit))

    # A follower reads what is appended; that the high watermark moved is told when it is answered.

    def _subscribe(self, log: PartitionLog) -> None:
        log.replica_subscribers[self._on_growth] = None
        log.subscribers[self._on_committed] = None

    def _unsubscribe(self, log: PartitionLog) -> None:
        log.replica_subscribers.pop(self._on_growth, None)
        log.subscribers.pop(self._on_committed, None)

    def _on_committed(self, log: PartitionLog, size: int) -> None:  # noqa: ARG002
        self._note(log)
