"""A follower in one epoch: it fetches, cuts off what its leader does not have, and appends.

The first fetch asks the question of rule 4 at once: it carries the epoch of the follower's last record,
and the leader answers with records only if its own log has that epoch at that place. Else it says where
that epoch ended there, and the follower cuts its log to it and asks again. Each round goes back by at
least one epoch, so it ends. The follower's own high watermark plays no part: it may be too low, and
cutting there would drop what is committed.
"""

from __future__ import annotations

from itertools import count

from penstock.cluster.local import LocalReplica
from penstock.cluster.messages import (
    AppendFetched,
    Effect,
    EpochEnd,
    HighWatermark,
    RefreshMetadata,
    ReplicaFetch,
    ReplicaFetched,
    StartAt,
    Truncate,
)
from penstock.cluster.state import PartitionState
from penstock.errors import ErrorCode

__all__ = ["Following"]


class Following:
    """Follows `leader` in `epoch`. One fetch is under way at most."""

    def __init__(self, local: LocalReplica, state: PartitionState) -> None:
        assert state.leader is not None
        self._local = local
        self._cluster_id = state.cluster_id
        self.epoch = state.leader_epoch
        self.leader = state.leader
        self.asked: ReplicaFetch | None = None  # the fetch that is under way
        self._numbers = count(1)

    def next_fetch(self) -> ReplicaFetch | None:
        """What to ask the leader now; None while an answer is awaited."""
        if self.asked is not None:
            return None
        log = self._local.log
        self.asked = ReplicaFetch(
            cluster_id=self._cluster_id,
            replica=self._local.term.id,
            incarnation=self._local.term.incarnation,
            leader_epoch=self.epoch,
            offset=log.log_end_offset,
            last_epoch=log.last_epoch(),
            number=next(self._numbers),
        )
        return self.asked

    def fetch_lost(self, fetch: ReplicaFetch) -> None:
        """No answer will come, or it is not waited for any longer: another fetch may begin."""
        if self._is_awaited(fetch):
            self.asked = None

    def fetched(self, fetch: ReplicaFetch, answer: ReplicaFetched) -> list[Effect]:
        """The answer to `fetch`. Only the one that is under way counts: an old one, twice delivered
        by the network, could cut off what the leader has since counted on."""
        if not self._is_awaited(fetch):
            return []
        self.asked = None
        if answer.error is not None:
            stale = (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower)
            return [RefreshMetadata()] if answer.error in stale else []
        if answer.log_start is not None:
            self._local.high_watermark = answer.log_start
            return [StartAt(offset=answer.log_start)]
        if answer.diverging is not None:
            return self._truncate(answer.diverging)
        if answer.records:
            return [
                AppendFetched(
                    records=answer.records,
                    leader_epoch=self.epoch,
                    high_watermark=answer.high_watermark,
                )
            ]
        return self.appended(answer.high_watermark)

    def appended(self, leader_high_watermark: int) -> list[Effect]:
        """The fetched records are in the log: only now may the high watermark follow the leader's."""
        local = self._local
        known = min(leader_high_watermark, local.log.log_end_offset)
        if known <= local.high_watermark:
            return []
        local.high_watermark = known
        return [HighWatermark(offset=known)]

    def _is_awaited(self, fetch: ReplicaFetch) -> bool:
        return fetch == self.asked

    def _truncate(self, leader_end: EpochEnd) -> list[Effect]:
        log = self._local.log
        offset = self._truncation_offset(leader_end)
        self._local.high_watermark = min(self._local.high_watermark, offset)
        if log.log_start_offset == log.log_end_offset <= offset:
            # Only what is deleted differs: the next fetch is to ask without its epoch.
            return [StartAt(offset=log.log_end_offset)]
        return [Truncate(offset=offset)]

    def _truncation_offset(self, leader_end: EpochEnd) -> int:
        """Where our log and the leader's part, as far as this answer tells."""
        log = self._local.log
        ours = log.end_offset_for_epoch(leader_end.epoch)
        if ours.epoch < 0:  # the leader's epoch is older than all of ours: nothing is common
            return log.log_start_offset
        if ours.epoch < leader_end.epoch:  # we lack that epoch: go back to the one before, then ask
            return min(ours.end_offset, log.log_end_offset)
        return min(ours.end_offset, leader_end.end_offset, log.log_end_offset)
