"""The replicas that this broker holds: performs on real logs what each `Replica` decides.

A replica is here while its log is open. Which ones there should be comes from the metadata store; each
is opened in turn, and what came of it is kept for the controller (`opened`). Events go in, effects are
performed at once and in order, all on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.cluster.leadership import Leadership
from penstock.cluster.local import BrokerTerm, LocalReplica, ReplicaSettings
from penstock.cluster.log_starts import LogStarts
from penstock.cluster.messages import (
    AnswerProduce,
    AppendFetched,
    BeginEpoch,
    DropReplica,
    Effect,
    HighWatermark,
    ProposeIsr,
    RefreshMetadata,
    ReplicaFetch,
    ReplicaFetched,
    Role,
    RoleChanged,
    StartAt,
    SyncLog,
    Truncate,
)
from penstock.cluster.replica import Replica
from penstock.cluster.state import (
    PartitionState,
    Readiness,
    TopicState,
    partition_cluster_id,
    partition_key,
)
from penstock.cluster.view import ClusterView
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import Appended, LogStore, PartitionLog
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig

__all__ = ["Hosted", "Replicas"]

logger = logging.getLogger(__name__)

_FAILED_RETRY_S: Final = 1.0  # a follower that could not write tries again
_MISSING: Final = (
    "it was in sync, and its log is not in the data directory any more; others go on without it if they"
    " are in sync, else put it back"
)


class Hosted:
    """A replica with its open log."""

    __slots__ = (
        "cluster_id",
        "followed",
        "leader_high_watermark",
        "log",
        "partition",
        "replica",
        "starts",
        "topic_id",
    )

    def __init__(
        self, replica: Replica, log: PartitionLog, topic_id: uuid.UUID, cluster_id: str
    ) -> None:
        self.replica = replica
        self.partition = replica.local.partition
        self.log = log
        self.topic_id = topic_id
        self.cluster_id = cluster_id
        self.followed: int | None = None  # the leader that it is fetched from
        self.leader_high_watermark = -1  # as the leader said last
        self.starts = LogStarts()  # of our followers' logs

    @property
    def lag(self) -> int:
        """Committed records that it does not have yet."""
        return max(0, self.leader_high_watermark - self.log.log_end_offset)


class Fetchers(Protocol):
    """Who fetches what a follower asks for."""

    def follow(self, leader: int, replica: Replica, topic_id: uuid.UUID) -> None: ...

    def unfollow(self, leader: int, partition: TopicPartition) -> None: ...


class Replicas:
    """All replicas of this broker. One event loop; effects are performed before the next event."""

    def __init__(
        self,
        *,
        term: BrokerTerm,
        view: ClusterView,
        logs: LogStore,
        config: BrokerConfig,
        clock: Clock,
        topic_config: Callable[[TopicState], TopicConfig],
        propose: Callable[[Replica, ProposeIsr], None],
        refresh: Callable[[TopicPartition], None],
    ) -> None:
        self._term = term
        self._view = view
        self._logs = logs
        self._config = config
        self._clock = clock
        self._topic_config = topic_config
        self._propose = propose
        self._refresh = refresh
        self.fetchers: Fetchers | None = None  # set before anything is followed
        self.opened: dict[TopicPartition, str | None] = {}  # None: it is open; else why not
        # What a report has to look at: whoever writes one takes them out when they were told.
        self.grown: dict[TopicPartition, None] = {}  # logs with another end, or high watermark
        self.unconfirmed: dict[TopicPartition, None] = {}  # opened, and the store does not show it
        self._tried: dict[TopicPartition, str] = {}  # the cluster id of what was opened, or not
        self._hosted: dict[TopicPartition, Hosted] = {}
        self._busy: dict[Hosted, None] = {}  # leaders for which time matters
        self._led: dict[Hosted, None] = {}
        self._leads_none = asyncio.Event()
        self._leads_none.set()
        self._to_open: dict[TopicPartition, None] = {}
        self._has_to_open = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None

    def get(self, partition: TopicPartition) -> Hosted | None:
        return self._hosted.get(partition)

    def all(self) -> Iterable[Hosted]:
        return self._hosted.values()

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to open logs. What the disk holds and the store does not know goes."""
        for partition, cluster_id in self._logs.found_on_disk():
            stored = self._view.partitions.get(partition)
            if partition_key(partition) in self._view.unreadable:
                logger.error("what is known of a replica can not be read partition=%s", partition)
            elif cluster_id is not None and (
                stored is None or self._term.id not in stored.value.replicas
            ):
                logger.info("a replica that is kept elsewhere goes partition=%s", partition)
                self._remove(partition)
        self._opening = asyncio.create_task(self._open_for_ever())

    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    async def until_nothing_is_led(self) -> None:
        await self._leads_none.wait()

    # -- what the store says --------------------------------------------------------------------

    def changed(self, partition: TopicPartition, revision: int) -> None:
        """The partition has changed in the view; at `revision` if it was deleted."""
        stored = self._view.partitions.get(partition)
        state = None if stored is None else stored.value
        hosted = self._hosted.get(partition)
        if hosted is not None and state is not None and state.cluster_id != hosted.cluster_id:
            self._perform(hosted, hosted.replica.update(None, revision, self._now()))
            hosted = None  # its topic was made anew
        if hosted is not None:
            revision = revision if stored is None else stored.revision
            self._perform(hosted, hosted.replica.update(state, revision, self._now()))
            self._look_after(hosted)
            if partition in self.opened and self.is_news(partition):
                self.unconfirmed[partition] = None
        elif state is None or self._term.id not in state.replicas:
            self._to_open.pop(partition, None)
            self._forget_opening(partition)
        elif partition not in self.opened or self._may_begin_anew(partition, state):
            self._forget_opening(partition)
            self._open_soon(partition)

    def topic_changed(self, name: str) -> None:
        """The topic's settings may have changed, or it has become known only now."""
        stored = self._view.topics.get(name)
        if stored is None:
            return
        config = self._topic_config(stored.value)
        for index in range(stored.value.partition_count):
            partition = TopicPartition(name, index)
            hosted = self._hosted.get(partition)
            if hosted is not None:
                hosted.log.reconfigure(config)
                hosted.replica.local.settings = self._settings(config)
            else:
                self.changed(partition, 0)

    def brokers_changed(self) -> None:
        now = self._now()
        for hosted in tuple(self._led):
            self._perform(hosted, hosted.replica.brokers_changed(now))
            self._look_after(hosted)

    def registered_anew(self) -> None:
        """A new term: what was led in the old one is not led any more, until elected again."""
        now = self._now()
        for hosted in tuple(self._hosted.values()):
            self._perform(hosted, hosted.replica.registered_anew(now))

    def lease_renewed(self) -> None:
        now = self._now()
        for hosted in tuple(self._busy):
            self._perform(hosted, hosted.replica.lease_renewed(now))

    def tick(self) -> None:
        """Time has passed: for those whom it concerns."""
        now = self._now()
        for hosted in tuple(self._busy):
            effects = hosted.replica.tick(now)
            committed = hosted.replica.high_watermark
            if hosted.log.high_watermark < committed and hosted.log.failure is None:
                effects.append(HighWatermark(offset=committed))  # the last try has failed
            failure = self._perform(hosted, effects)
            leadership = hosted.replica.leadership
            if leadership is None or (leadership.is_settled and failure is None):
                self._busy.pop(hosted, None)

    def note_failures(self) -> None:
        """A log that failed while it was open is reported like one that did not open."""
        for hosted in self._hosted.values():
            failure = hosted.log.failure
            if failure is not None and self.opened.get(hosted.partition) is None:
                logger.error(
                    "a replica failed partition=%s error=%s", hosted.partition, failure.message
                )
                self._came_of_opening(hosted.partition, failure.message)

    def is_news(self, partition: TopicPartition) -> bool:
        """Whether the store does not show yet what came of opening it."""
        stored = self._view.partitions.get(partition)
        if stored is None or partition not in self.opened:
            return False
        wanted = Readiness.READY if self.opened[partition] is None else Readiness.ERROR
        return stored.value.readiness(self._term.id) is not wanted

    # -- opening --------------------------------------------------------------------------------

    def _open_soon(self, partition: TopicPartition) -> None:
        self._to_open[partition] = None
        self._has_to_open.set()

    async def _open_for_ever(self) -> None:
        """One log after the other; others on the event loop get their turn in between."""
        while True:
            await self._has_to_open.wait()
            self._has_to_open.clear()
            while self._to_open:
                partition = next(iter(self._to_open))
                del self._to_open[partition]
                try:
                    await self._open(partition)
                except Exception as error:
                    logger.exception("opening %s failed", partition)
                    self._came_of_opening(partition, f"an unexpected error: {error!r}")
                await asyncio.sleep(0)

    async def _open(self, partition: TopicPartition) -> None:
        wanted = self._wanted(partition)
        if wanted is None or partition in self._hosted:
            return
        state, topic = wanted
        self._tried[partition] = cluster_id = state.cluster_id
        if self._is_missing(partition, state):
            logger.error("a replica is missing partition=%s", partition)
            self._came_of_opening(partition, _MISSING)
            return
        log: PartitionLog | StorageError
        try:
            log = await self._logs.load(partition, self._topic_config(topic), cluster_id)
        except StorageError as error:
            log = error
        # A scan takes its time, so all of it may be different by now.
        wanted = self._wanted(partition)
        if wanted is None or wanted[0].cluster_id != cluster_id:
            self._let_go(partition, log)
            return
        self._tried[partition] = cluster_id
        if isinstance(log, StorageError):
            logger.error("a replica can not be opened partition=%s error=%s", partition, log)
            self._came_of_opening(partition, log.message)
            return
        self._host(partition, log, *wanted)

    def _wanted(self, partition: TopicPartition) -> tuple[PartitionState, TopicState] | None:
        """What is known of a replica that this broker should hold."""
        stored = self._view.partitions.get(partition)
        topic = self._view.topics.get(partition.topic)
        if stored is None or self._term.id not in stored.value.replicas:
            return None
        if topic is None or stored.value.cluster_id != _cluster_id(topic.value, partition):
            return None  # the watch of topics is behind: `topic_changed` comes back to it
        return stored.value, topic.value

    def _let_go(self, partition: TopicPartition, log: PartitionLog | StorageError) -> None:
        """Of a log that is not wanted any more. Of a topic made anew, opening it makes way."""
        if isinstance(log, PartitionLog):
            log.abandon()
        stored = self._view.partitions.get(partition)
        if stored is None or self._term.id not in stored.value.replicas:
            self._remove(partition)

    def _host(
        self, partition: TopicPartition, log: PartitionLog, state: PartitionState, topic: TopicState
    ) -> None:
        config = self._topic_config(topic)
        log.reconfigure(config)
        self._logs.admit(partition, log)
        local = LocalReplica(
            partition=partition,
            term=self._term,
            log=log,
            settings=self._settings(config),
            brokers=self._view.brokers,
            high_watermark=log.recovered_high_watermark,
        )
        log.track_high_watermark(log.recovered_high_watermark)
        hosted = Hosted(Replica(local), log, topic.id, state.cluster_id)
        self._hosted[partition] = hosted
        self._came_of_opening(partition, None)
        self.grown[partition] = None
        now = self._now()
        revision = self._view.partitions[partition].revision
        self._perform(hosted, hosted.replica.update(state, revision, now))
        self._perform(hosted, hosted.replica.opened(now))
        self._look_after(hosted)

    def _is_missing(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Whether others count on a log of ours that somebody has taken away: it is not to begin anew
        before they have stopped, for it could be elected, and all that is committed be cut off."""
        us = self._term.id
        is_said = state.errors.get(us) == _MISSING
        if us not in state.ready and not is_said:
            return False  # it never was there
        if self._logs.has_replica(partition, state.cluster_id):
            return False
        # Who is alone in sync is elected with any disk. A new one holds nothing; others may hold a part.
        is_alone = state.isr.keys() == {us} and len(state.replicas) > 1
        if is_alone and (is_said or self._logs.had_no_cluster):
            return True
        # Under a new storage id nobody has counted on it: it went with the power, before it was on disk.
        return state.isr.get(us) == self._term.storage_id and not self._logs.is_storage_new

    def _may_begin_anew(self, partition: TopicPartition, state: PartitionState) -> bool:
        if self._tried.get(partition) != state.cluster_id:
            return True  # its topic was made anew
        return self.opened[partition] is _MISSING and self._term.id not in state.isr

    def _forget_opening(self, partition: TopicPartition) -> None:
        self.opened.pop(partition, None)
        self._tried.pop(partition, None)

    def _came_of_opening(self, partition: TopicPartition, error: str | None) -> None:
        self.opened[partition] = error
        self.unconfirmed[partition] = None

    def _settings(self, config: TopicConfig) -> ReplicaSettings:
        return ReplicaSettings(
            min_insync_replicas=config.min_insync_replicas,
            lag_time_s_max=self._config.replica_lag_ms_max / 1000,
            lag_records_max=self._config.replica_lag_records_max or None,
            produce_wait_s_max=self._config.acks_wait_ms_max / 1000,
        )

    # -- clients --------------------------------------------------------------------------------

    def append(self, hosted: Hosted, records: memoryview, acks: int) -> Appended:
        """Append one batch as the leader; where it went. `until_acknowledged` follows for acks=all."""
        now = self._now()
        hosted.replica.check_append(acks, now)
        appended = hosted.log.append(records)
        self.grown[hosted.partition] = None
        if acks != -1:
            self._perform(hosted, hosted.replica.appended(now, end_offset=appended.end_offset))
            self._look_after(hosted)
        return appended

    def until_acknowledged(
        self, hosted: Hosted, end_offset: int, timeout_s: float
    ) -> asyncio.Future[None]:
        """Done when every replica in sync has what was appended. In the same step as the append."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait_s = min(timeout_s, self._config.acks_wait_ms_max / 1000)
        if hosted.replica.leadership is None:  # it ended while others of the request were appended
            self._answer(future, ErrorCode.not_leader_or_follower)
            return future
        effects = hosted.replica.appended(
            self._now(), end_offset=end_offset, token=future, wait_s=wait_s
        )
        self._perform(hosted, effects)
        self._look_after(hosted)
        return future

    def until_logs_begin_at(self, hosted: Hosted, start: int) -> asyncio.Future[None]:
        """Done when the logs of all live replicas in sync begin at `start`, or above.

        Our own does already: followers are told with the answers to their fetches, from now on.
        """
        assert hosted.replica.leadership is not None
        hosted.log.wake_subscribers()
        return hosted.starts.until(start, self._live_followers(hosted.replica.leadership))

    def _live_followers(self, leadership: Leadership) -> list[int]:
        return [
            member
            for member in leadership.state.isr
            if member != self._term.id and self._view.is_live(member)
        ]

    @staticmethod
    def _answer(token: Hashable, error: ErrorCode | None) -> None:
        assert isinstance(token, asyncio.Future)
        if token.done():
            return  # the client has hung up
        if error is None:
            token.set_result(None)
        else:
            token.set_exception(ApiError(error, _REASONS.get(error, "")))

    # -- replication ----------------------------------------------------------------------------

    def serve_fetch(self, hosted: Hosted, fetch: ReplicaFetch) -> ReplicaFetched:
        """A follower asks; what to answer, but for the records."""
        answer, effects = hosted.replica.fetch(fetch, self._now())
        if answer.error is None and fetch.log_start >= 0:
            hosted.starts.said(fetch.replica, fetch.log_start)
        self._perform(hosted, effects)
        self._look_after(hosted)
        return answer

    def fetched(self, replica: Replica, fetch: ReplicaFetch, answer: ReplicaFetched) -> None:
        """The leader has answered a fetch of ours."""
        hosted = self._hosted.get(replica.local.partition)
        if hosted is None or hosted.replica is not replica:
            return
        failure = self._perform(hosted, replica.fetched(fetch, answer))
        if failure is not None:
            self._pause(hosted)
        elif answer.error is None:
            hosted.leader_high_watermark = answer.high_watermark
            self._follow_log_start(hosted, answer.leader_log_start)

    def fetch_lost(self, replica: Replica, fetch: ReplicaFetch) -> None:
        replica.fetch_lost(fetch)

    @staticmethod
    def _follow_log_start(hosted: Hosted, leader_start: int) -> None:
        """What the leader has deleted goes here, too."""
        start = min(leader_start, hosted.log.high_watermark)
        if start > hosted.log.log_start_offset:
            hosted.log.delete_records_before(start)

    def _pause(self, hosted: Hosted) -> None:
        """It could not be written, a full disk perhaps: try again in a while."""
        self._unfollow(hosted)
        loop = asyncio.get_running_loop()
        loop.call_later(_FAILED_RETRY_S, self._resume, hosted)

    def _resume(self, hosted: Hosted) -> None:
        following = hosted.replica.following  # of another leader, perhaps, by now
        is_here = self._hosted.get(hosted.partition) is hosted
        is_sound = hosted.log.failure is None
        if is_here and is_sound and hosted.followed is None and following is not None:
            self._follow(hosted, following.leader)

    # -- effects --------------------------------------------------------------------------------

    def _perform(self, hosted: Hosted, effects: list[Effect]) -> Exception | None:
        """All of them, also behind one that the disk refuses, for others wait for those; its error."""
        failure: Exception | None = None
        for effect in effects:
            try:
                match effect:
                    case AnswerProduce():
                        self._answer(effect.token, effect.error)
                    case ProposeIsr():
                        self._propose(hosted.replica, effect)
                    case RoleChanged():
                        self._role_changed(hosted, effect)
                    case RefreshMetadata():
                        self._refresh(hosted.partition)
                    case DropReplica():
                        self._drop(hosted)
                    case _:
                        self._change_log(hosted, effect)
            except (ApiError, OSError) as error:
                logger.error(
                    "a replica can not do what it has to partition=%s effect=%s error=%s",
                    hosted.partition, type(effect).__name__, error,
                )  # fmt: skip
                failure = failure or error
        return failure

    def _change_log(self, hosted: Hosted, effect: Effect) -> None:
        log = hosted.log
        match effect:
            case HighWatermark():
                log.set_high_watermark(effect.offset)
                self.grown[hosted.partition] = None
            case AppendFetched():
                log.append_fetched(effect.records)
                self.grown[hosted.partition] = None
                self._perform(
                    hosted,
                    hosted.replica.fetched_appended(effect.leader_epoch, effect.high_watermark),
                )
            case SyncLog():
                self._sync(hosted)
            case BeginEpoch():
                log.begin_epoch(effect.epoch)
            case Truncate():
                logger.info(
                    "cutting what the leader does not have partition=%s from=%d to=%d",
                    hosted.partition, effect.offset, log.log_end_offset,
                )  # fmt: skip
                self._logs.settle(log.truncate(effect.offset))
                self.grown[hosted.partition] = None
            case StartAt():
                self._logs.settle(log.restart_at(effect.offset))
                self.grown[hosted.partition] = None

    def _role_changed(self, hosted: Hosted, effect: RoleChanged) -> None:
        self._led.pop(hosted, None)
        hosted.starts.end()
        self._unfollow(hosted)
        if effect.role is Role.FOLLOWER:
            assert effect.leader is not None
            self._follow(hosted, effect.leader)
        elif effect.role is Role.LEADER:
            self._led[hosted] = None
            self._leads_none.clear()
        if not self._led:
            self._leads_none.set()
        hosted.log.wake_subscribers()

    def _follow(self, hosted: Hosted, leader: int) -> None:
        assert self.fetchers is not None
        hosted.followed = leader
        self.fetchers.follow(leader, hosted.replica, hosted.topic_id)

    def _unfollow(self, hosted: Hosted) -> None:
        if hosted.followed is not None:
            assert self.fetchers is not None
            self.fetchers.unfollow(hosted.followed, hosted.partition)
            hosted.followed = None

    def _sync(self, hosted: Hosted) -> None:
        """Sync the log, with others that wait for that; the replica is told, whatever came of it."""
        syncing = self._logs.group_commit.until_durable(hosted.log, hosted.log.log_end_offset)

        def done(future: asyncio.Future[None]) -> None:
            future.cancelled() or future.exception()  # a failed log is noted by `note_failures`
            if self._hosted.get(hosted.partition) is hosted and hosted.log.failure is None:
                self._perform(hosted, hosted.replica.synced(self._now()))

        syncing.add_done_callback(done)

    def _drop(self, hosted: Hosted) -> None:
        partition = hosted.partition
        self._unfollow(hosted)
        del self._hosted[partition]
        hosted.starts.end()
        self._busy.pop(hosted, None)
        self._led.pop(hosted, None)
        self._forget_opening(partition)
        self.grown.pop(partition, None)
        self.unconfirmed.pop(partition, None)
        self._remove(partition)
        stored = self._view.partitions.get(partition)
        if stored is not None and self._term.id in stored.value.replicas:
            self._open_soon(partition)  # a topic made anew

    def _remove(self, partition: TopicPartition) -> None:
        try:
            self._logs.remove(partition)
        except OSError as error:  # out of service; the next start, or a new one, meets it again
            logger.error("a log can not be removed partition=%s error=%s", partition, error)

    def _look_after(self, hosted: Hosted) -> None:
        leadership = hosted.replica.leadership
        if leadership is not None:
            self._busy[hosted] = None
            if hosted.starts.is_awaited:
                hosted.starts.look(self._live_followers(leadership))

    def _now(self) -> float:
        return self._clock.monotonic_s()


def _cluster_id(topic: TopicState, partition: TopicPartition) -> str:
    return partition_cluster_id(topic.id, partition.partition)


_REASONS: Final = {
    ErrorCode.not_leader_or_follower: "another broker leads the partition by now",
    ErrorCode.request_timed_out: "the replicas in sync did not have it in time",
    ErrorCode.not_enough_replicas_after_append: "it was written, but to too few replicas",
}
