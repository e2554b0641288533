"""The leader of one epoch: what it may append, what may be read, who is in sync, who is answered.

The leader is the only one who changes the ISR, by compare-and-swap. Between sending a proposal and
learning its outcome, the store may hold the old ISR or the proposed one, so the leader obeys both:
everything is decided for *every ISR that may be in the store*. All proposals made against one revision
stay possible, whatever became of their answers, until the partition is seen at a higher revision: then
none of them can be applied any more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.cluster.local import LocalReplica
from penstock.cluster.messages import (
    ALL,
    NO_EPOCH,
    AnswerProduce,
    BeginEpoch,
    Effect,
    EpochEnd,
    HighWatermark,
    ProposeIsr,
    RefreshMetadata,
    ReplicaFetch,
    ReplicaFetched,
    SyncLog,
)
from penstock.cluster.state import PartitionState, Readiness
from penstock.cluster.waits import ProduceWaits
from penstock.errors import ApiError, ErrorCode

__all__ = ["Leadership"]


@dataclass(slots=True)
class Follower:
    """How far a follower has come, as its fetches of this epoch say."""

    caught_up_at: float  # when it last had all that we had
    log_end: int = -1  # -1: it has not fetched in this epoch
    incarnation: str = ""  # the registration that said so
    fetched_at: float = 0.0
    our_end_at_fetch: int = 0  # our log's end at that fetch

    def fetched(self, fetch: ReplicaFetch, our_end: int, now: float) -> None:
        """It is caught up if it has all we have now, or all we had when it last asked."""
        if fetch.offset >= our_end:
            self.caught_up_at = now
        elif fetch.offset >= self.our_end_at_fetch:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end = fetch.offset
        self.incarnation = fetch.incarnation
        self.fetched_at = now
        self.our_end_at_fetch = our_end


class Leadership:
    """One broker leads one partition in one epoch. It ends when the store names another epoch."""

    def __init__(
        self, local: LocalReplica, state: PartitionState, revision: int, now: float
    ) -> None:
        self._local = local
        self._id = local.term.id
        self.state = state
        self.revision = revision
        self.epoch = state.leader_epoch
        # At least all that was committed before: whoever is elected was in the ISR.
        self.epoch_start = local.log.log_end_offset
        self._followers = {
            broker: Follower(caught_up_at=now) for broker in state.replicas if broker != self._id
        }
        self._proposals: list[PartitionState] = []  # all compare with self.revision
        self._awaits_outcome = False  # of the last proposal
        self._wants_change = False  # of the ISR; it may have to wait for the lease
        self._is_syncing = False
        self._waits = ProduceWaits()
        self._end_seen = self.epoch_start  # our log's end when we last looked

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing: nobody waits, all in sync have all we have, nobody else is."""
        end = self._local.log.log_end_offset
        return not (
            len(self._waits)
            or self._proposals
            or self._wants_change
            or self._is_syncing
            or any(self._log_end(member) < end for member in self.state.isr)
        )

    def begin(self, now: float) -> list[Effect]:
        return [BeginEpoch(epoch=self.epoch), *self._review(now)]

    def end(self) -> list[Effect]:
        """Another epoch has begun. Whether those who wait will find their records is not known."""
        return self._answer(self._waits.pop_all(), ErrorCode.not_leader_or_follower)

    # -- what the store says --------------------------------------------------------------------

    def update(self, state: PartitionState, revision: int, now: float) -> list[Effect]:
        """The partition at a higher revision, in the same epoch."""
        assert state.leader_epoch == self.epoch, "another epoch is another leadership"
        assert revision > self.revision, "the store does not go back"
        self.state = state
        self.revision = revision
        self._proposals.clear()
        self._awaits_outcome = False
        for broker in state.replicas:
            if broker != self._id:
                self._followers.setdefault(broker, Follower(caught_up_at=now))
        return self._review(now)

    def proposal_unknown(self, proposal: ProposeIsr) -> None:
        """It may be applied, now or later. It stays possible; another one may be tried."""
        if proposal.revision == self.revision:
            self._awaits_outcome = False

    def brokers_changed(self, now: float) -> list[Effect]:
        return self._review(now)

    def lease_renewed(self, now: float) -> list[Effect]:
        return self._release(now)

    # -- producing ------------------------------------------------------------------------------

    def check_append(self, acks: int, now: float) -> None:
        """Whether records may be appended now; `ApiError` if not."""
        if not self._local.term.holds_lease(now):
            raise ApiError(ErrorCode.not_leader_or_follower, "the broker's lease has run out")
        if self.state.readiness(self._id) is not Readiness.READY:
            raise ApiError(ErrorCode.leader_not_available, "the partition is not ready yet")
        if acks == ALL and self._in_sync_count() < self._local.settings.min_insync_replicas:
            raise ApiError(
                ErrorCode.not_enough_replicas,
                f"{self._in_sync_count()} replicas are in sync,"
                f" {self._local.settings.min_insync_replicas} are needed",
            )

    def appended(
        self, now: float, *, end_offset: int, token: Hashable = None, wait_s: float | None = None
    ) -> list[Effect]:
        """Records that end at `end_offset` are in the log: new ones, or found there as a repeat.

        With a `token` its produce waits for acks=all; the answer may be among the effects already.
        """
        for follower in self._followers.values():
            if follower.log_end >= self._end_seen:
                follower.caught_up_at = now  # until this append it had all there was
        self._end_seen = max(self._end_seen, self._local.log.log_end_offset)
        if token is not None:
            wait_s = self._local.settings.produce_wait_s_max if wait_s is None else wait_s
            self._waits.add(token, end_offset, now + wait_s)
        return self._advance(now)

    def synced(self, now: float) -> list[Effect]:
        self._is_syncing = False
        return self._review(now)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: followers may lag, waits may be over. Call it a few times a second."""
        effects = self._review(now)
        return effects + self._answer(self._waits.pop_expired(now), ErrorCode.request_timed_out)

    # -- followers ------------------------------------------------------------------------------

    def fetch(self, fetch: ReplicaFetch, now: float) -> tuple[ReplicaFetched, list[Effect]]:
        """A follower asks. The driver adds the records to an answer that has nothing else to say."""
        answer = ReplicaFetched(high_watermark=self._local.high_watermark)
        error = self._refusal(fetch)
        if error is not None:
            newer = error is ErrorCode.unknown_leader_epoch
            return replace(answer, error=error), [RefreshMetadata()] if newer else []
        log = self._local.log
        is_beyond = fetch.last_epoch == NO_EPOCH and fetch.offset > log.log_end_offset
        if fetch.offset < log.log_start_offset or is_beyond:
            return replace(answer, log_start=log.log_start_offset), []
        diverging = self._divergence(fetch)
        if diverging is not None:
            return replace(answer, diverging=diverging), []
        self._followers[fetch.replica].fetched(fetch, log.log_end_offset, now)
        effects = self._review(now)
        return replace(answer, high_watermark=self._local.high_watermark), effects

    def _refusal(self, fetch: ReplicaFetch) -> ErrorCode | None:
        if fetch.cluster_id != self.state.cluster_id:
            return ErrorCode.unknown_topic_id
        if fetch.leader_epoch < self.epoch:
            return ErrorCode.fenced_leader_epoch
        if fetch.leader_epoch > self.epoch:
            return ErrorCode.unknown_leader_epoch
        if fetch.replica not in self._followers or fetch.replica not in self.state.replicas:
            return ErrorCode.not_leader_or_follower
        registered = self._local.brokers.get(fetch.replica)
        if registered is None or registered.incarnation != fetch.incarnation:
            # A fetch from before a restart tells of a log that may no longer be.
            return ErrorCode.stale_broker_epoch
        return None

    def _divergence(self, fetch: ReplicaFetch) -> EpochEnd | None:
        """Where the follower's last epoch ended here, if its log is not a beginning of ours."""
        log = self._local.log
        if fetch.last_epoch == NO_EPOCH:
            return None  # it has nothing that could differ
        end = log.end_offset_for_epoch(fetch.last_epoch)
        if end.epoch == fetch.last_epoch and fetch.offset <= end.end_offset:
            return None
        return end

    # -- the high watermark ---------------------------------------------------------------------

    def _possible_isrs(self) -> Iterator[Mapping[int, str]]:
        yield self.state.isr
        for proposal in self._proposals:
            yield proposal.isr

    def _in_sync_count(self) -> int:
        return min(len(isr) for isr in self._possible_isrs())

    def _committed_end(self, isr: Mapping[int, str]) -> int:
        """Up to where every member of `isr` has the log. One that is alone must have it on disk."""
        if len(isr) == 1:
            return self._local.log.durable_offset
        return min(self._log_end(member) for member in isr)

    def _log_end(self, member: int) -> int:
        if member == self._id:
            return self._local.log.log_end_offset
        return self._followers[member].log_end

    def _advance(self, now: float) -> list[Effect]:
        """Move the high watermark up, never down, and answer those who waited for it."""
        effects: list[Effect] = []
        reached = min(self._committed_end(isr) for isr in self._possible_isrs())
        if reached > self._local.high_watermark:
            self._local.high_watermark = reached
            effects.append(HighWatermark(offset=reached))
        if any(len(isr) == 1 for isr in self._possible_isrs()):
            effects += self._sync_up_to(self._local.log.log_end_offset)
        return effects + self._release(now)

    def _release(self, now: float) -> list[Effect]:
        """Answer what the high watermark has passed.

        Only under the lease: a broker that was paused says nothing until it knows that it still leads.
        What waits then is answered when the lease is renewed, the time is up or the epoch ends.
        """
        if not self._local.term.holds_lease(now):
            return []
        done = self._waits.pop_reached(self._local.high_watermark)
        enough = self._in_sync_count() >= self._local.settings.min_insync_replicas
        return self._answer(done, None if enough else ErrorCode.not_enough_replicas_after_append)

    @staticmethod
    def _answer(tokens: list[Hashable], error: ErrorCode | None) -> list[Effect]:
        return [AnswerProduce(token=token, error=error) for token in tokens]

    # -- the ISR --------------------------------------------------------------------------------

    def _review(self, now: float) -> list[Effect]:
        """Look at everything that may have changed: the high watermark, then who is in sync."""
        return self._advance(now) + self._propose(self._wanted_isr(now), now)

    def _propose(self, wanted: Mapping[int, str], now: float) -> list[Effect]:
        """Also what is in the store already, if something else may get there: that shuts it out."""
        self._wants_change = wanted != self.state.isr
        if self._awaits_outcome or (wanted == self.state.isr and not self._proposals):
            return []
        if not self._local.term.holds_lease(now):
            return []
        if len(wanted) == 1:
            # Alone, our disk is all there is: it must hold what was committed with the others.
            effects = self._sync_up_to(self._safe_end())
            if self._local.log.durable_offset < self._safe_end():
                return effects
        state = replace(
            self.state, isr=dict(wanted), partition_epoch=self.state.partition_epoch + 1
        )
        if state not in self._proposals:
            self._proposals.append(state)
        self._awaits_outcome = True
        return [ProposeIsr(state=state, revision=self.revision)]

    def _wanted_isr(self, now: float) -> Mapping[int, str]:
        isr = {
            member: storage
            for member, storage in self.state.isr.items()
            if member == self._id or self._stays_in_sync(member, storage, now)
        }
        for broker in self.state.replicas:
            if broker not in self.state.isr and self._may_join(broker, now):
                isr[broker] = self._local.brokers[broker].storage_id
        return isr

    def _stays_in_sync(self, member: int, storage_id: str, now: float) -> bool:
        registered = self._local.brokers.get(member)
        if registered is None or registered.storage_id != storage_id:
            return False  # the one that was in sync is gone
        if self.state.readiness(member) is Readiness.ERROR:
            return False
        if member in self.state.removing and self.state.isr.keys() >= set(self.state.target):
            return False
        return not self._lags(self._followers[member], now)

    def _lags(self, follower: Follower, now: float) -> bool:
        behind = self._local.log.log_end_offset - follower.log_end
        if behind <= 0:
            return False
        records_max = self._local.settings.lag_records_max
        if records_max is not None and behind > records_max and follower.log_end >= 0:
            return True
        return now - follower.caught_up_at > self._local.settings.lag_time_s_max

    def _may_join(self, broker: int, now: float) -> bool:
        """It must have all that may be committed: what we had when we were elected, and since."""
        follower = self._followers[broker]
        registered = self._local.brokers.get(broker)
        if registered is None or registered.incarnation != follower.incarnation:
            return False  # what it said before a restart is not believed
        if broker in self.state.removing or self.state.readiness(broker) is Readiness.ERROR:
            return False
        return follower.log_end >= self._safe_end() and not self._lags(follower, now)

    def _safe_end(self) -> int:
        """Nothing at or above this is committed; our own high watermark may still be too low."""
        return max(self._local.high_watermark, self.epoch_start)

    def _sync_up_to(self, offset: int) -> list[Effect]:
        if self._is_syncing or self._local.log.durable_offset >= offset:
            return []
        self._is_syncing = True
        return [SyncLog()]
