"""The partitions of one process: logs on the machine's disk, fetches, produces and reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cluster.controller import BrokerReport
from penstock.cluster.local import LocalReplica
from penstock.cluster.messages import (
    ALL,
    AnswerProduce,
    AppendFetched,
    BeginEpoch,
    DropReplica,
    Effect,
    HighWatermark,
    ProposeIsr,
    ReplicaFetch,
    ReplicaFetched,
    Role,
    RoleChanged,
    SyncLog,
    Truncate,
)
from penstock.cluster.replica import Replica
from penstock.cluster.state import PartitionState, Readiness, encode_partition, partition_key
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.store import Committed, Compare, Put, Rejected, Transaction
from penstock.metadata.watching import apply_refused
from penstock.model import TopicPartition
from penstock.testing.simulation.disk import Position, Record, SimulatedLog, Stored

if TYPE_CHECKING:
    from penstock.testing.simulation.clients import Consumer, Producer
    from penstock.testing.simulation.process import Process

__all__ = ["Partitions", "Waiting"]

FETCH_RECORDS_MAX: Final = 8
FETCH_PAUSE_S: Final = 0.03
FETCH_TIMEOUT_S: Final = 0.3


class Waiting(NamedTuple):
    """A produce that waits: whom to answer, for what."""

    producer: Producer
    sequence: int
    offset: int
    epoch: int


class Partitions:
    """Carries out what this process's replicas decide."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._machine = process.machine
        self._world = process.world
        self.replicas: dict[TopicPartition, Replica] = {}
        self._opened: dict[TopicPartition, str | None] = {}

    # -- metadata -------------------------------------------------------------------------------

    def changed(self, partition: TopicPartition, revision: int) -> None:
        stored = self._process.view.partitions.get(partition)
        state = None if stored is None else stored.value
        revision = revision if stored is None else stored.revision
        replica = self.replicas.get(partition)
        if replica is None:
            if state is None or self._process.name not in state.replicas:
                self._machine.disk.pop(
                    partition, None
                )  # the store does not know what the disk holds
                return
            replica = self._create(partition, state.cluster_id)
        self._perform(replica, replica.update(state, revision, self._process.now()))

    def _create(self, partition: TopicPartition, cluster_id: str) -> Replica:
        disk = self._machine.disk
        stored = disk.get(partition)
        if stored is None or stored.cluster_id != cluster_id:
            stored = disk[partition] = Stored(cluster_id)
        local = LocalReplica(
            partition=partition,
            term=self._process.term,
            log=stored.log,
            settings=self._world.shape.replica_settings,
            brokers=self._process.view.brokers,
            high_watermark=min(stored.high_watermark, stored.log.log_end_offset),
        )
        replica = self.replicas[partition] = self._world.behaviour.replica(local)
        self._process.after(self._world.random.uniform(0, 0.05), self._open, replica)
        return replica

    def _open(self, replica: Replica) -> None:
        partition = replica.local.partition
        if self.replicas.get(partition) is not replica:
            return
        if self._world.open_errors and self._world.random.random() < self._world.open_errors:
            self._opened[partition] = "the disk refused"  # until the next start
            return
        self._opened[partition] = None
        self._perform(replica, replica.opened(self._process.now()))

    def brokers_changed(self) -> None:
        for replica in tuple(self.replicas.values()):
            self._perform(replica, replica.brokers_changed(self._process.now()))

    def registered_anew(self) -> None:
        for replica in tuple(self.replicas.values()):
            self._perform(replica, replica.registered_anew(self._process.now()))

    def lease_renewed(self) -> None:
        for replica in tuple(self.replicas.values()):
            self._perform(replica, replica.lease_renewed(self._process.now()))

    def leads_any(self) -> bool:
        return any(replica.leadership is not None for replica in self.replicas.values())

    def tick(self) -> None:
        for partition, replica in tuple(self.replicas.items()):
            self._perform(replica, replica.tick(self._process.now()))
            if self._world.random.random() < 0.05:
                self._machine.disk[partition].high_watermark = replica.high_watermark
            if self._world.random.random() < 0.02:
                self._log(replica).sync(self._log(replica).position)

    def report(self) -> BrokerReport:
        view = self._process.view.partitions
        return BrokerReport(
            broker=self._process.name,
            incarnation=self._process.term.incarnation,
            log_ends={p: r.local.log.log_end_offset for p, r in self.replicas.items()},
            opened={
                partition: error
                for partition, error in self._opened.items()
                if partition in view and self._is_news(view[partition].value, error)
            },
        )

    def _is_news(self, state: PartitionState, error: str | None) -> bool:
        wanted = Readiness.READY if error is None else Readiness.ERROR
        return state.readiness(self._process.name) is not wanted

    def has_errors(self) -> bool:
        return any(error is not None for error in self._opened.values())

    # -- effects --------------------------------------------------------------------------------

    def _log(self, replica: Replica) -> SimulatedLog:
        log = replica.local.log
        assert isinstance(log, SimulatedLog)
        return log

    def _perform(self, replica: Replica, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case HighWatermark():
                    self._world.checker.high_watermark(self._process, replica)
                case AnswerProduce():
                    self._answer(replica, effect.token, effect.error)
                case AppendFetched():
                    self._append_fetched(replica, effect)
                case ProposeIsr():
                    self._propose(replica, effect)
                case SyncLog():
                    position = self._log(replica).position
                    delay = self._world.random.uniform(0.001, 0.03)
                    self._process.after(delay, self._synced, replica, position)
                case BeginEpoch():
                    self._log(replica).begin_epoch(effect.epoch)
                case Truncate():
                    self._log(replica).truncate(effect.offset)
                case RoleChanged():
                    self._role_changed(replica, effect)
                case DropReplica():
                    self.replicas.pop(replica.local.partition, None)
                    self._opened.pop(replica.local.partition, None)
                    self._machine.disk.pop(replica.local.partition, None)
                case _:
                    pass
        self._world.checker.stepped(replica)

    def _role_changed(self, replica: Replica, effect: RoleChanged) -> None:
        partition = replica.local.partition
        if effect.role is Role.FOLLOWER:
            self._fetch(replica)
        elif effect.role is Role.LEADER:
            self._world.checker.leads(self._process, partition, effect.leader_epoch)

    def _synced(self, replica: Replica, position: Position) -> None:
        if self.replicas.get(replica.local.partition) is replica:
            self._log(replica).sync(position)
            self._perform(replica, replica.synced(self._process.now()))

    def _propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        partition = replica.local.partition
        key = partition_key(partition)
        self._world.checker.proposed(partition, proposal)

        def done(result: Any) -> None:
            now = self._process.now()
            if isinstance(result, Committed):
                self._perform(replica, replica.proposal_committed(proposal, result.revision, now))
            elif isinstance(result, Rejected):
                apply_refused(self._process.apply, result)
                self.changed(partition, result.revision)  # if the view knew it already
            else:
                replica.proposal_unknown(proposal)

        transaction = Transaction(
            compares=self._compares(key, proposal),
            puts=(Put(key=key, value=encode_partition(proposal.state)),),
        )
        self._process.commit(transaction, done)

    @staticmethod
    def _compares(key: str, proposal: ProposeIsr) -> tuple[Compare, ...]:
        if proposal.revision < 0:  # only a mutant does not compare
            return ()
        return (Compare(key=key, mod_revision=proposal.revision),)

    # -- replication ----------------------------------------------------------------------------

    def _fetch(self, replica: Replica) -> None:
        """Ask the leader, once; again when it has answered or the time is up."""
        fetch = replica.next_fetch()
        if fetch is None or replica.following is None:
            return
        leader = self._world.machines[replica.following.leader]
        self._world.network.send(
            self._process.name, leader, _serve, self._process.name, replica.local.partition, fetch
        )
        self._process.after(FETCH_TIMEOUT_S, self._fetch_lost, replica, fetch)

    def _fetch_lost(self, replica: Replica, fetch: ReplicaFetch) -> None:
        if replica.following is not None and replica.following.asked == fetch:
            replica.fetch_lost(fetch)
            self._fetch(replica)

    def serve(self, follower: int, partition: TopicPartition, fetch: ReplicaFetch) -> None:
        replica = self.replicas.get(partition)
        if replica is None:
            return
        answer, effects = replica.fetch(fetch, self._process.now())
        if answer.error is None and answer.diverging is None:
            self._world.checker.counted(replica, follower, fetch.offset)
            records = self._log(replica).records[fetch.offset : fetch.offset + FETCH_RECORDS_MAX]
            answer = replace(answer, records=tuple(records))
        machine = self._world.machines[follower]
        self._world.network.send(self._process.name, machine, _served, partition, fetch, answer)
        self._perform(replica, effects)

    def served(
        self, partition: TopicPartition, fetch: ReplicaFetch, answer: ReplicaFetched
    ) -> None:
        replica = self.replicas.get(partition)
        if replica is None:
            return
        effects = replica.fetched(fetch, answer)
        self._perform(replica, effects)
        following = replica.following
        if following is None or following.asked is not None:
            return
        if effects:
            self._fetch(replica)
        else:
            self._process.after(FETCH_PAUSE_S, self._fetch, replica)

    def _append_fetched(self, replica: Replica, effect: AppendFetched) -> None:
        log = self._log(replica)
        for record in effect.records:
            log.append(record)
        self._perform(replica, replica.fetched_appended(effect.leader_epoch, effect.high_watermark))

    # -- clients --------------------------------------------------------------------------------

    def produce(
        self, producer: Producer, partition: TopicPartition, sequence: int, acks: int
    ) -> None:
        replica = self.replicas.get(partition)
        now = self._process.now()
        try:
            if replica is None:
                raise ApiError(ErrorCode.unknown_topic_or_partition)
            replica.check_append(acks, now)
        except ApiError as error:
            self._reply(producer, sequence, error.code)
            return
        assert replica.leadership is not None
        epoch, log = replica.leadership.epoch, self._log(replica)
        end = log.repeated(producer.number, sequence)
        if end is None:
            log.append(Record(epoch, producer.number, sequence))
            end = log.log_end_offset
            self._world.checker.appended(self._process, partition, epoch)
        waiting = Waiting(producer, sequence, end - 1, epoch)
        if acks == ALL:
            self._perform(replica, replica.appended(now, end_offset=end, token=waiting))
        else:
            self._perform(replica, replica.appended(now, end_offset=end))
            self._reply(producer, sequence, None)

    def _answer(self, replica: Replica, token: Hashable, error: ErrorCode | None) -> None:
        assert isinstance(token, Waiting)
        if error is None:
            self._world.checker.acknowledged(self._process, replica, token)
        self._reply(token.producer, token.sequence, error)

    def _reply(self, producer: Producer, sequence: int, error: ErrorCode | None) -> None:
        self._world.network.send(self._process.name, producer, producer.answered, sequence, error)

    def read(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        replica = self.replicas.get(partition)
        try:
            if replica is None:
                raise ApiError(ErrorCode.unknown_topic_or_partition)
            end = replica.readable_end()
        except ApiError:
            self._world.network.send(self._process.name, consumer, consumer.refused)
            return
        assert replica.leadership is not None
        records = tuple(self._log(replica).records[offset : min(end, offset + FETCH_RECORDS_MAX)])
        epoch = replica.leadership.epoch
        self._world.checker.read(self._process.name, partition, epoch, end, offset, records)
        self._world.network.send(self._process.name, consumer, consumer.fetched, offset, records)


# Messages to a machine: delivered to the process that runs there when they arrive.


def _serve(process: Process, follower: int, partition: TopicPartition, fetch: ReplicaFetch) -> None:
    process.partitions.serve(follower, partition, fetch)


def _served(
    process: Process, partition: TopicPartition, fetch: ReplicaFetch, answer: ReplicaFetched
) -> None:
    process.partitions.served(partition, fetch, answer)
