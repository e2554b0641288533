"""One partition on one broker.

            the store names us, in this incarnation            the store names another
    OFFLINE ------------------------------------> LEADER <----------------------------> FOLLOWER
       ^                                             |      (always with a new epoch)       |
       +---------------------------------------------+--------------------------------------+
              nobody leads, the log is not open, or it was another incarnation of us that led

Roles come from the metadata store alone (rule 7). Every epoch is a new `Leadership` or `Following`, so
nothing learned in an old epoch is believed in a new one; what stays is the log and the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar

from penstock.cluster.following import Following
from penstock.cluster.leadership import Leadership
from penstock.cluster.local import LocalReplica
from penstock.cluster.messages import (
    NO_EPOCH,
    DropReplica,
    Effect,
    ProposeIsr,
    ReplicaFetch,
    ReplicaFetched,
    Role,
    RoleChanged,
)
from penstock.cluster.state import PartitionState
from penstock.errors import ApiError, ErrorCode

__all__ = ["Replica"]


class Replica:
    """Takes events, returns the effects to perform, in order. Synchronous; one caller at a time.

    `now` is the broker's own monotonic clock. The caller performs all effects before the next event.
    """

    leadership_type: ClassVar[type[Leadership]] = Leadership
    following_type: ClassVar[type[Following]] = Following

    def __init__(self, local: LocalReplica) -> None:
        self.local = local
        self.state: PartitionState | None = None  # as the store had it at `revision`
        self.revision = 0
        self.leadership: Leadership | None = None
        self.following: Following | None = None  # at most one of the two
        self._is_open = False

    @property
    def role(self) -> Role:
        if self.leadership is not None:
            return Role.LEADER
        return Role.FOLLOWER if self.following is not None else Role.OFFLINE

    @property
    def high_watermark(self) -> int:
        return self.local.high_watermark

    # -- where roles come from ------------------------------------------------------------------

    def update(self, state: PartitionState | None, revision: int, now: float) -> list[Effect]:
        """The partition as the store holds it at `revision`; None: it does not exist."""
        if revision <= self.revision:
            return []  # known already: our own commit, or a snapshot, was faster than the watch
        self.state, self.revision = state, revision
        if state is None or self.local.term.id not in state.replicas:
            return [*self._resign(), DropReplica()]
        return self._take_role(now)

    def opened(self, now: float) -> list[Effect]:
        """The log is open and may be used. The driver reports it, or the error, to the controller."""
        self._is_open = True
        return self._take_role(now)

    def registered_anew(self, now: float) -> list[Effect]:
        """The broker has a new term: what it led in the old one it leads no more."""
        return self._take_role(now)

    def _take_role(self, now: float) -> list[Effect]:
        state, term = self.state, self.local.term
        if state is None or not self._is_open or state.leader is None:
            return self._resign()
        if state.leader == term.id:
            if state.leader_incarnation != term.incarnation:
                return self._resign()
            return self._lead(state, now)
        return self._follow(state)

    def _lead(self, state: PartitionState, now: float) -> list[Effect]:
        current = self.leadership
        if current is not None and current.epoch == state.leader_epoch:
            if self.revision > current.revision:
                return current.update(state, self.revision, now)
            return []
        effects = self._end_role()
        self.leadership = self.leadership_type(self.local, state, self.revision, now)
        return [*effects, self._changed(), *self.leadership.begin(now)]

    def _follow(self, state: PartitionState) -> list[Effect]:
        if self.following is not None and self.following.epoch == state.leader_epoch:
            return []
        effects = self._end_role()
        self.following = self.following_type(self.local, state)
        return [*effects, self._changed()]

    def _resign(self) -> list[Effect]:
        if self.role is Role.OFFLINE:
            return []
        return [*self._end_role(), self._changed()]

    def _end_role(self) -> list[Effect]:
        effects = self.leadership.end() if self.leadership is not None else []
        self.leadership = self.following = None
        return effects

    def _changed(self) -> RoleChanged:
        state = self.state
        return RoleChanged(
            role=self.role,
            leader_epoch=NO_EPOCH if state is None else state.leader_epoch,
            leader=None if state is None else state.leader,
        )

    # -- clients --------------------------------------------------------------------------------

    def check_append(self, acks: int, now: float, leader_epoch: int = NO_EPOCH) -> None:
        """Whether a produce may be appended; `ApiError` if not. Append in the same step, then say so."""
        self._leading(leader_epoch).check_append(acks, now)

    def appended(
        self, now: float, *, end_offset: int, token: Hashable = None, wait_s: float | None = None
    ) -> list[Effect]:
        """See `Leadership.appended`. Follows a `check_append` with nothing in between."""
        assert self.leadership is not None
        return self.leadership.appended(now, end_offset=end_offset, token=token, wait_s=wait_s)

    def readable_end(self, leader_epoch: int = NO_EPOCH) -> int:
        """Consumers read below this; `ApiError` if they have to ask somebody else.

        It needs no lease: what is below the high watermark stays, whoever leads.
        """
        self._leading(leader_epoch)
        return self.local.high_watermark

    def _leading(self, leader_epoch: int) -> Leadership:
        """The leadership, for a client that believes in `leader_epoch`."""
        known = NO_EPOCH if self.state is None else self.state.leader_epoch
        if NO_EPOCH < leader_epoch < known:
            raise ApiError(ErrorCode.fenced_leader_epoch, "the leader epoch is an older one")
        if leader_epoch > known:
            raise ApiError(ErrorCode.unknown_leader_epoch, "the leader epoch is not known here yet")
        if self.leadership is None:
            raise ApiError(ErrorCode.not_leader_or_follower, "this broker does not lead it")
        return self.leadership

    # -- replication ----------------------------------------------------------------------------

    def fetch(self, fetch: ReplicaFetch, now: float) -> tuple[ReplicaFetched, list[Effect]]:
        """A follower asks us, as its leader."""
        if self.leadership is not None:
            return self.leadership.fetch(fetch, now)
        known = NO_EPOCH if self.state is None else self.state.leader_epoch
        newer = fetch.leader_epoch > known
        error = ErrorCode.unknown_leader_epoch if newer else ErrorCode.not_leader_or_follower
        return ReplicaFetched(error=error), []

    def next_fetch(self) -> ReplicaFetch | None:
        return self.following.next_fetch() if self.following is not None else None

    def fetch_lost(self, fetch: ReplicaFetch) -> None:
        if self.following is not None:
            self.following.fetch_lost(fetch)

    def fetched(self, fetch: ReplicaFetch, answer: ReplicaFetched) -> list[Effect]:
        return self.following.fetched(fetch, answer) if self.following is not None else []

    def fetched_appended(self, leader_epoch: int, high_watermark: int) -> list[Effect]:
        if self.following is None or self.following.epoch != leader_epoch:
            return []
        return self.following.appended(high_watermark)

    # -- what the leader has to know ------------------------------------------------------------

    def synced(self, now: float) -> list[Effect]:
        """The log was synced up to its `durable_offset`."""
        return self._as_leader(lambda leadership: leadership.synced(now))

    def tick(self, now: float) -> list[Effect]:
        return self._as_leader(lambda leadership: leadership.tick(now))

    def brokers_changed(self, now: float) -> list[Effect]:
        """Somebody registered or is gone. Only partitions that the broker holds have to be told."""
        return self._as_leader(lambda leadership: leadership.brokers_changed(now))

    def lease_renewed(self, now: float) -> list[Effect]:
        return self._as_leader(lambda leadership: leadership.lease_renewed(now))

    # A proposal that was rejected needs no event of its own: `update` with what the store held instead.

    def proposal_committed(self, proposal: ProposeIsr, revision: int, now: float) -> list[Effect]:
        return self.update(proposal.state, revision, now)

    def proposal_unknown(self, proposal: ProposeIsr) -> None:
        """The store did not answer, so it may have been applied or be applied yet."""
        if self.leadership is not None:
            self.leadership.proposal_unknown(proposal)

    def _as_leader(self, event: Callable[[Leadership], list[Effect]]) -> list[Effect]:
        return event(self.leadership) if self.leadership is not None else []
