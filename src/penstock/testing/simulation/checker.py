"""What must hold, all the time. The checker sees every disk, the store and the true time.

`committed` is the history: each record the moment the high watermark of a leader passed it. From then on
a consumer may have read it, so nothing there may ever change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.cluster.messages import ProposeIsr
from penstock.cluster.replica import Replica
from penstock.cluster.state import (
    PARTITIONS,
    PartitionState,
    broker_key,
    decode_broker,
    decode_partition,
    partition_of_key,
)
from penstock.metadata.store import Entry, Event
from penstock.model import TopicPartition
from penstock.testing.simulation.disk import Record, SimulatedLog

if TYPE_CHECKING:
    from penstock.testing.simulation.partitions import Waiting
    from penstock.testing.simulation.process import Process
    from penstock.testing.simulation.world import World

__all__ = ["Checker", "Violation"]


class Violation(Exception):
    """A rule was broken. The text says which."""


class Checker:
    """Raises `Violation` where a rule is broken, in the very step that breaks it."""

    def __init__(self) -> None:
        self.world: World
        self.committed: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        self.states: dict[TopicPartition, tuple[PartitionState, int]] = {}  # as the store has them
        self.acked: defaultdict[tuple[TopicPartition, int], set[int]] = defaultdict(set)
        self._proposals: defaultdict[TopicPartition, list[ProposeIsr]] = defaultdict(list)
        self._writers: dict[tuple[TopicPartition, int], str] = {}
        self._shown: dict[tuple[TopicPartition, int], int] = {}
        self._leaders: dict[tuple[TopicPartition, int], tuple[int, str | None]] = {}

    # -- what happens in the store --------------------------------------------------------------

    def stored(self, event: Event) -> None:
        if not event.key.startswith(PARTITIONS):
            return
        partition = partition_of_key(event.key)
        if event.value is None:
            self.states.pop(partition, None)
            return
        state = decode_partition(
            Entry(key=event.key, value=event.value, create_revision=1, mod_revision=1)
        )
        before = self.states.get(partition)
        self.states[partition] = (state, event.mod_revision)
        if before is not None and state.leader_epoch < before[0].leader_epoch:
            raise Violation(f"{partition}: epoch {state.leader_epoch} after a later one")
        self._check_isr(partition, state, {} if before is None else before[0].isr)
        if state.leader is not None:
            self._elected(partition, state, state.leader)

    def _check_isr(
        self, partition: TopicPartition, state: PartitionState, before: Mapping[int, str]
    ) -> None:
        """Whoever joins has all that is committed; whoever is left alone has it on its disk."""
        history = self.committed[partition]
        for member, storage_id in state.isr.items():
            if self.world.machines[member].storage_id != storage_id:
                continue  # its disk was lost since, so it can not be elected
            log = self._log(member, partition)
            if before.get(member) != storage_id and not _holds(log, history):
                raise Violation(
                    f"{partition}: broker {member} joins the ISR without all of the"
                    f" {len(history)} committed records"
                )
            if len(state.isr) == 1 and (log is None or log.durable_offset < len(history)):
                raise Violation(f"{partition}: broker {member} is left alone without a sync")

    def _elected(self, partition: TopicPartition, state: PartitionState, leader: int) -> None:
        key = (partition, state.leader_epoch)
        who = (leader, state.leader_incarnation)
        if self._leaders.setdefault(key, who) != who:
            raise Violation(f"{partition}: {self._leaders[key]} and {who} lead in one epoch")
        if self.world.machines[leader].storage_id == state.isr[leader]:
            self._check_complete(leader, partition, state.leader_epoch)
        # Else it has lost its disk since, and will never lead as the one that was elected.

    def leads(self, process: Process, partition: TopicPartition, epoch: int) -> None:
        """A broker begins to lead. If it is late, and another epoch has begun, it can do no harm."""
        if self.states[partition][0].leader_epoch == epoch:
            self._check_complete(process.name, partition, epoch)

    def _check_complete(self, leader: int, partition: TopicPartition, epoch: int) -> None:
        log = self._log(leader, partition)
        history = self.committed[partition]
        if not _holds(log, history):
            held = None if log is None else log.log_end_offset
            raise Violation(
                f"{partition}: broker {leader} leads in epoch {epoch} without all of the"
                f" {len(history)} committed records (its log ends at {held})"
            )

    def proposed(self, partition: TopicPartition, proposal: ProposeIsr) -> None:
        self._proposals[partition].append(proposal)

    def possible_isrs(self, partition: TopicPartition) -> list[Mapping[int, str]]:
        """The ISR in the store, and those it may hold next without anybody deciding anew."""
        state, revision = self.states[partition]
        live = [p for p in self._proposals[partition] if p.revision >= revision]
        self._proposals[partition] = live
        return [state.isr, *(proposal.state.isr for proposal in live)]

    # -- what brokers do ------------------------------------------------------------------------

    def appended(self, process: Process, partition: TopicPartition, epoch: int) -> None:
        self._check_lease(process, f"{partition}: append")
        state, _ = self.states[partition]
        if state.leader_epoch == epoch and process.name not in state.ready:
            raise Violation(f"{partition}: an append before broker {process.name} was ready")
        who = process.term.incarnation
        if self._writers.setdefault((partition, epoch), who) != who:
            raise Violation(f"{partition}: two leaders append in epoch {epoch}")

    def acknowledged(self, process: Process, replica: Replica, waiting: Waiting) -> None:
        partition = replica.local.partition
        self._check_lease(process, f"{partition}: acknowledgement")
        history = self.committed[partition]
        record = (waiting.producer.number, waiting.sequence)
        at = waiting.offset
        if at >= len(history) or history[at][1:] != record:
            raise Violation(f"{partition}: {record} at {at} is acknowledged and not committed")
        state, _ = self.states[partition]
        needed = replica.local.settings.min_insync_replicas
        if state.leader_epoch == waiting.epoch and len(state.isr) < needed:
            raise Violation(f"{partition}: acknowledged with {len(state.isr)} of {needed} in sync")
        self.acked[partition, record[0]].add(record[1])

    def told(self, partition: TopicPartition, producer: int, sequence: int) -> None:
        if sequence not in self.acked[partition, producer]:
            raise Violation(f"{partition}: {producer}/{sequence} was answered and not acknowledged")

    def high_watermark(self, process: Process, replica: Replica) -> None:
        """A replica moved its high watermark up."""
        partition, end = replica.local.partition, replica.high_watermark
        log = replica.local.log
        assert isinstance(log, SimulatedLog)
        history = self.committed[partition]
        known = min(end, len(history))
        # What was compared at the last move needs no second look: only the newest part does.
        since = max(0, known - 40)
        if log.records[since:known] != history[since:known]:
            raise Violation(f"{partition}: broker {process.name} has other records below {known}")
        if replica.leadership is None:
            if end > len(history):
                raise Violation(f"{partition}: a follower's high watermark is above the leader's")
            return
        fresh = log.records[len(history) : end]
        if fresh:
            self._check_members(partition, replica.leadership.epoch, len(history), fresh)
            history.extend(fresh)

    def _check_members(
        self, partition: TopicPartition, epoch: int, start: int, fresh: list[Record]
    ) -> None:
        """Every member of the ISR has what becomes readable, unless its disk has been lost since."""
        state, _ = self.states[partition]
        if state.leader_epoch != epoch:
            return  # elections check what the next leader has
        for member, storage_id in state.isr.items():
            if self.world.machines[member].storage_id != storage_id:
                continue
            log = self._log(member, partition)
            if log is None or log.records[start : start + len(fresh)] != fresh:
                raise Violation(
                    f"{partition}: broker {member} is in sync without the records from {start}"
                    f" to {start + len(fresh)} that epoch {epoch} shows"
                )
            if len(state.isr) == 1 and log.durable_offset < start + len(fresh):
                raise Violation(f"{partition}: shown by a single replica and not on its disk")

    def counted(self, replica: Replica, follower: int, end: int) -> None:
        """A leader takes it that a follower has its log up to `end`: then it has."""
        partition = replica.local.partition
        state, _ = self.states[partition]
        machine = self.world.machines[follower]
        assert replica.leadership is not None
        if state.leader_epoch != replica.leadership.epoch:
            return  # deposed: what it believes does not matter
        if state.isr.get(follower, machine.storage_id) != machine.storage_id:
            return
        registered = replica.local.brokers.get(follower)
        if registered is None or registered.storage_id != machine.storage_id:
            return
        ours, theirs = replica.local.log, self._log(follower, partition)
        assert isinstance(ours, SimulatedLog)
        since = max(0, end - 40)
        if theirs is None or ours.records[since:end] != theirs.records[since:end]:
            raise Violation(
                f"{partition}: broker {follower} is believed to have the log up to {end}, in vain"
            )

    def read(
        self,
        broker: int,
        partition: TopicPartition,
        epoch: int,
        end: int,
        offset: int,
        records: tuple[Record, ...],
    ) -> None:
        history = self.committed[partition]
        if tuple(history[offset : offset + len(records)]) != records:
            raise Violation(f"{partition}: broker {broker} shows records that are not committed")
        shown = self._shown.get((partition, epoch), 0)
        if end < shown:
            raise Violation(f"{partition}: high watermark {end} after {shown} in epoch {epoch}")
        self._shown[partition, epoch] = end

    def stepped(self, replica: Replica) -> None:
        """A replica has taken an event, and its effects are performed."""
        if replica.high_watermark > replica.local.log.log_end_offset:
            raise Violation(f"{replica.local.partition}: a high watermark above the log's end")

    # -- in the end -----------------------------------------------------------------------------

    def trouble(self) -> str | None:
        """Why the cluster has not settled yet; None if it has."""
        if not self.states:
            return "there are no partitions"
        for partition, (state, _) in self.states.items():
            if state.leader is None:
                return f"{partition} has no leader"
            if state.isr.keys() != set(state.replicas) or state.is_reassigning:
                return f"{partition} has ISR {sorted(state.isr)} of {state.replicas}"
            wanted = self.world.shape.replication_factor
            if len(state.replicas) < wanted or state.ready != set(state.replicas):
                return f"{partition} has replicas {state.replicas}, ready {sorted(state.ready)}"
            logs = [self._log(broker, partition) for broker in state.replicas]
            if any(log is None or log.records != self.committed[partition] for log in logs):
                return f"the logs of {partition} are not the same yet"
        return None

    def final(self) -> None:
        """Every acknowledged record is there, once, and each producer's records are in its order."""
        for (partition, producer), sequences in self.acked.items():
            found = [r.sequence for r in self.committed[partition] if r.producer == producer]
            if found != sorted(set(found)):
                raise Violation(
                    f"{partition}: records of producer {producer} twice or not in order"
                )
            missing = sequences - set(found)
            if missing:
                raise Violation(f"{partition}: acknowledged and lost: {sorted(missing)}")

    # -- helpers --------------------------------------------------------------------------------

    def _check_lease(self, process: Process, what: str) -> None:
        """The store must still hold the registration: before that, nobody else can be elected."""
        value = self.world.store.value(broker_key(process.name))
        if value is not None:
            key = broker_key(process.name)
            entry = Entry(key=key, value=value, create_revision=1, mod_revision=1)
            if decode_broker(entry).incarnation == process.term.incarnation:
                return
        raise Violation(f"{what} by broker {process.name} without a lease")

    def _log(self, broker: int, partition: TopicPartition) -> SimulatedLog | None:
        stored = self.world.machines[broker].disk.get(partition)
        state, _ = self.states.get(partition, (None, 0))
        if stored is None:
            # Not created yet: as good as an empty log.
            return SimulatedLog()
        if state is not None and stored.cluster_id != state.cluster_id:
            return None
        return stored.log


def _holds(log: SimulatedLog | None, history: list[Record]) -> bool:
    return log is not None and log.records[: len(history)] == history
