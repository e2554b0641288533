"""Replicas with one rule broken each, as a tired engineer might have written them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.cluster.following import Following
from penstock.cluster.leadership import Leadership
from penstock.cluster.local import BrokerTerm
from penstock.cluster.messages import (
    NO_EPOCH,
    Effect,
    EpochEnd,
    HighWatermark,
    ProposeIsr,
    ReplicaFetch,
    ReplicaFetched,
    Truncate,
)
from penstock.cluster.replica import Replica
from penstock.cluster.state import PartitionState
from penstock.errors import ErrorCode

# -- leases ---------------------------------------------------------------------------------------


class AppendsWithoutLease(Leadership):
    """Appends after the lease has run out."""

    def check_append(self, acks: int, now: float) -> None:
        super().check_append(acks, min(now, self._local.term.lease_until_s - 1))


class AnswersWithoutLease(Leadership):
    """Acknowledges after the lease has run out."""

    def _release(self, now: float) -> list[Effect]:
        return super()._release(min(now, self._local.term.lease_until_s - 1))


class CountsLeaseGenerously(BrokerTerm):
    """Counts the lease longer than the store may."""

    def lease_renewed(self, sent_at: float, ttl_s: float) -> None:
        super().lease_renewed(sent_at, ttl_s * 1.15)


class AnswersWhileLeaving(BrokerTerm):
    """Goes on after it has given up its lease."""

    def end(self) -> None:
        pass


# -- the high watermark ---------------------------------------------------------------------------


class ShowsAtOnce(Leadership):
    """Moves the high watermark to the leader's log end."""

    def _committed_end(self, isr: Mapping[int, str]) -> int:  # noqa: ARG002
        return self._local.log.log_end_offset


class CountsAnyReplica(Leadership):
    """Counts replicas outside the ISR."""

    def _committed_end(self, isr: Mapping[int, str]) -> int:
        if len(isr) == 1:
            return super()._committed_end(isr)
        ends = sorted((self._log_end(broker) for broker in self.state.replicas), reverse=True)
        return ends[len(isr) - 1]


class ForgetsProposals(Leadership):
    """Forgets that a proposed ISR may be in force."""

    def _possible_isrs(self) -> Iterator[Mapping[int, str]]:
        yield self.state.isr


class ForgetsUnknownProposals(Leadership):
    """Takes an unanswered proposal as not applied."""

    def proposal_unknown(self, proposal: ProposeIsr) -> None:
        super().proposal_unknown(proposal)
        if proposal.revision == self.revision:
            self._proposals.clear()


class LetsTheHighWatermarkFall(Leadership):
    """Lets the high watermark go back."""

    def _advance(self, now: float) -> list[Effect]:
        reached = min(self._committed_end(isr) for isr in self._possible_isrs())
        self._local.high_watermark = min(self._local.high_watermark, max(reached, 0))
        return super()._advance(now)


class TrustsItsOwnLogAtOnce(Leadership):
    """Shows its whole log when it is elected."""

    def begin(self, now: float) -> list[Effect]:
        self._local.high_watermark = self._local.log.log_end_offset
        effects = super().begin(now)
        return [*effects, HighWatermark(offset=self._local.high_watermark)]


class ReadsAboveTheHighWatermark(Replica):
    """Serves reads above the high watermark."""

    def readable_end(self, leader_epoch: int = NO_EPOCH) -> int:
        super().readable_end(leader_epoch)
        return self.local.log.log_end_offset


class TakesTheHighWatermarkFirst(Following):
    """Takes the high watermark before the records."""

    def fetched(self, fetch: ReplicaFetch, answer: ReplicaFetched) -> list[Effect]:
        if self._is_awaited(fetch) and answer.error is None:
            self._local.high_watermark = max(self._local.high_watermark, answer.high_watermark)
        return super().fetched(fetch, answer)


class IsAloneWithoutSync(Leadership):
    """Commits alone without a sync."""

    def _committed_end(self, isr: Mapping[int, str]) -> int:
        return min(self._log_end(member) for member in isr)


class ShrinksToOneWithoutSync(Leadership):
    """Becomes the only member without a sync."""

    def _propose(self, wanted: Mapping[int, str], now: float) -> list[Effect]:
        if len(wanted) > 1 or wanted == self.state.isr or self._awaits_outcome:
            return super()._propose(wanted, now)
        if not self._local.term.holds_lease(now):
            return []
        epoch = self.state.partition_epoch + 1
        state = replace(self.state, isr=dict(wanted), partition_epoch=epoch)
        self._proposals.append(state)
        self._awaits_outcome = True
        return [ProposeIsr(state=state, revision=self.revision)]


# -- the ISR --------------------------------------------------------------------------------------


class AnswersBelowTheMinimum(Leadership):
    """Acknowledges below min.insync.replicas."""

    def _in_sync_count(self) -> int:
        return len(self.state.replicas)


class ProposesWithoutCompare(Leadership):
    """Changes the ISR without compare-and-swap."""

    def _propose(self, wanted: Mapping[int, str], now: float) -> list[Effect]:
        effects = super()._propose(wanted, now)
        return [replace(e, revision=-1) if isinstance(e, ProposeIsr) else e for e in effects]


class IgnoresItsEpochsStart(Leadership):
    """Takes its own high watermark for the truth."""

    def _safe_end(self) -> int:
        return self._local.high_watermark


class TakesInAtItsHighWatermark(Leadership):
    """Takes followers in at its own high watermark."""

    def _may_join(self, broker: int, now: float) -> bool:
        start, self.epoch_start = self.epoch_start, 0
        may_join = super()._may_join(broker, now)
        self.epoch_start = start
        return may_join


class TakesInWhoeverFetches(Leadership):
    """Takes whoever fetches into the ISR."""

    def _safe_end(self) -> int:
        return 0


# -- epochs and incarnations ----------------------------------------------------------------------


class ServesOldEpochs(Leadership):
    """Accepts a fetch of an older epoch."""

    def _refusal(self, fetch: ReplicaFetch) -> ErrorCode | None:
        return super()._refusal(replace(fetch, leader_epoch=self.epoch))


class BelievesOldIncarnations(Leadership):
    """Believes fetches from before a restart."""

    def _refusal(self, fetch: ReplicaFetch) -> ErrorCode | None:
        registered = self._local.brokers.get(fetch.replica)
        if registered is not None:
            fetch = replace(fetch, incarnation=registered.incarnation)
        return super()._refusal(fetch)

    def _may_join(self, broker: int, now: float) -> bool:
        registered = self._local.brokers.get(broker)
        if registered is not None:
            self._followers[broker].incarnation = registered.incarnation
        return super()._may_join(broker, now)


class LeadsAfterARestart(Replica):
    """Goes on leading after a restart."""

    def _take_role(self, now: float) -> list[Effect]:
        state, term = self.state, self.local.term
        if state is not None and state.leader == term.id and state.leader_incarnation is not None:
            self.state = replace(state, leader_incarnation=term.incarnation)
        return super()._take_role(now)


class AppendsBeforeItIsReady(Leadership):
    """Appends before the partition is ready."""

    def check_append(self, acks: int, now: float) -> None:
        state = self.state
        self.state = replace(state, ready=state.ready | {self._id})
        try:
            super().check_append(acks, now)
        finally:
            self.state = state


# -- truncation -----------------------------------------------------------------------------------


class NeverDiverges(Leadership):
    """Lets followers keep what differs."""

    def _divergence(self, fetch: ReplicaFetch) -> EpochEnd | None:  # noqa: ARG002
        return None


class DivergesByOffsetOnly(Leadership):
    """Compares ends of logs and not epochs."""

    def _divergence(self, fetch: ReplicaFetch) -> EpochEnd | None:
        end = self._local.log.log_end_offset
        return None if fetch.offset <= end else EpochEnd(fetch.last_epoch, end)


class CountsADivergingFetch(Leadership):
    """Counts a fetch from a log that differs."""

    def fetch(self, fetch: ReplicaFetch, now: float) -> tuple[ReplicaFetched, list[Effect]]:
        answer, effects = super().fetch(fetch, now)
        if answer.diverging is not None:
            end = self._local.log.log_end_offset
            counted = replace(fetch, offset=min(fetch.offset, end))
            self._followers[fetch.replica].fetched(counted, end, now)
            effects = [*effects, *self._review(now)]
        return answer, effects


class TruncatesToItsHighWatermark(Replica):
    """Cuts the log to its own high watermark."""

    def _follow(self, state: PartitionState) -> list[Effect]:
        before = self.following
        effects = super()._follow(state)
        if self.following is before:
            return effects
        return [Truncate(offset=self.local.high_watermark), *effects]


class TakesAnyAnswer(Following):
    """Takes answers to fetches of the past."""

    def _is_awaited(self, fetch: ReplicaFetch) -> bool:  # noqa: ARG002
        return True
