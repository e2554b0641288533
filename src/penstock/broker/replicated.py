"""A partition of a cluster, as one of its brokers serves it to clients and followers."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from penstock.broker.refusals import NEW_S, Refusals
from penstock.broker.topic_records import Partition
from penstock.cluster.messages import ALL, ReplicaFetch, ReplicaFetched
from penstock.cluster.state import PartitionState, Readiness, partition_cluster_id
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import Appended, PartitionLog
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cluster.node import ClusterNode
    from penstock.cluster.replicas import Hosted
    from penstock.log import LogStore

__all__ = ["ReplicatedPartition"]


class ReplicatedPartition(Partition):
    """What the cluster agreed on, and the replica that this broker holds, if it holds one.

    Topics and partitions are watched apart: after a topic was made anew under its name, what is known of
    a partition, and the replica that is here, may be those of the topic before. They are not ours then.
    """

    __slots__ = ("_cluster_id", "_epoch_of_refusals", "_node")

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        node: ClusterNode,
        logs: LogStore,
    ) -> None:
        super().__init__(topic_partition, logs)
        self._cluster_id = partition_cluster_id(topic_id, topic_partition.partition)
        self._node = node
        self._epoch_of_refusals = -1

    # -- what the cluster agreed on -------------------------------------------------------------

    @property
    def _state(self) -> PartitionState | None:
        stored = self._node.view.partitions.get(self.topic_partition)
        if stored is None or stored.value.cluster_id != self._cluster_id:
            return None
        return stored.value

    @property
    def leader_epoch(self) -> int:
        state = self._state
        return -1 if state is None else state.leader_epoch

    @property
    def leader(self) -> int:
        # Also if it is gone: clients that are told of two leaders in one epoch (and "none" counts
        # as one) believe neither, and librdkafka may never recover from that.
        state = self._state
        return -1 if state is None or state.leader is None else state.leader

    @property
    def is_led(self) -> bool:
        return self._node.view.is_live(self.leader)

    @property
    def replicas(self) -> tuple[int, ...]:
        state = self._state
        return () if state is None else state.replicas

    @property
    def isr(self) -> tuple[int, ...]:
        state = self._state
        return () if state is None else tuple(b for b in state.replicas if b in state.isr)

    @property
    def offline_replicas(self) -> tuple[int, ...]:
        state = self._state
        if state is None:
            return ()
        view = self._node.view
        return tuple(
            broker
            for broker in state.replicas
            if not view.is_live(broker) or state.readiness(broker) is Readiness.ERROR
        )

    # -- what is here ---------------------------------------------------------------------------

    @property
    def _hosted(self) -> Hosted | None:
        hosted = self._node.replicas.get(self.topic_partition)
        return None if hosted is None or hosted.cluster_id != self._cluster_id else hosted

    @property
    def local_log(self) -> PartitionLog | None:
        hosted = self._hosted
        return None if hosted is None else hosted.log

    @property
    def lag(self) -> int:
        hosted = self._hosted
        return 0 if hosted is None else hosted.lag

    @property
    def failure(self) -> ApiError | None:
        hosted = self._hosted
        if hosted is not None:
            return hosted.log.failure
        reason = self._node.replicas.opened.get(self.topic_partition)
        return None if reason is None else StorageError(reason)

    @property
    def log(self) -> PartitionLog:
        return self._led().log

    def _led(self) -> Hosted:
        """Our replica, if it leads."""
        hosted = self._hosted
        if hosted is None or hosted.replica.leadership is None:
            raise self._not_here()
        return hosted

    def _not_here(self) -> ApiError:
        if self.failure is not None and self.leader == self._node.term.id:
            return ApiError(self.failure.code, self.failure.message)
        if self._state is None:
            return ApiError(ErrorCode.leader_not_available, "the partition is being made")
        return ApiError(
            ErrorCode.not_leader_or_follower, f"this broker does not lead {self.topic_partition}"
        )

    def is_sure_to_lead(self) -> bool:
        return self._node.holds_lease()

    def latest_offset(self) -> int:
        hosted = self._led()
        leadership = hosted.replica.leadership
        assert leadership is not None
        if hosted.log.high_watermark < leadership.epoch_start:
            # What was committed before we led is not known yet: offsets must not seem to go back.
            raise ApiError(ErrorCode.offset_not_available, "a new leader waits for its followers")
        return hosted.log.high_watermark

    async def until_logs_begin_at(self, start: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await self._node.replicas.until_logs_begin_at(self._led(), start)
        except TimeoutError:
            text = f"not every replica in sync has deleted it within {max(timeout_s, 0):g} s"
            raise ApiError(ErrorCode.request_timed_out, text) from None

    # -- producing ------------------------------------------------------------------------------

    def append(self, records: memoryview, acks: int) -> Appended:
        hosted = self._hosted
        leadership = None if hosted is None else hosted.replica.leadership
        if leadership is not None and leadership.epoch != self._epoch_of_refusals:
            self._epoch_of_refusals = leadership.epoch
            new_until_s = self._logs.clock.monotonic_s() + NEW_S
            self._refusals = Refusals(epoch_start=leadership.epoch_start, new_until_s=new_until_s)
        return super().append(records, acks)

    def _append(self, records: memoryview, acks: int) -> Appended:
        return self._node.replicas.append(self._led(), records, acks)

    def must_wait(self, acks: int) -> bool:
        return acks == ALL or (acks != 0 and self.log.needs_sync_before_answer)

    def until_acknowledged(
        self, acks: int, end_offset: int, timeout_s: float
    ) -> asyncio.Future[None]:
        hosted = self._led()
        if acks != ALL:
            return self._logs.group_commit.until_durable(hosted.log, end_offset)
        return self._node.replicas.until_acknowledged(hosted, end_offset, timeout_s)

    # -- followers ------------------------------------------------------------------------------

    def follower_fetch(self, fetch: ReplicaFetch) -> ReplicaFetched:
        hosted = self._hosted
        if hosted is None:
            return ReplicaFetched(error=ErrorCode.not_leader_or_follower)
        return self._node.replicas.serve_fetch(hosted, fetch)
