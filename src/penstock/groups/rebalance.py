"""The rebalance: how a group gets from one generation to the next.

          first member joins            all joined, or time is up
    EMPTY ------------------> PREPARING ------------------------> COMPLETING
      ^                        ^  ^   |                           |       |
      |   all members are gone |  |   |                           |       | leader's assignment
      +------------------------|--|---+                           |       | is stored
                               |  +-------------------------------+       v
                               |     somebody joins, leaves, fails     STABLE
                               +------------------------------------------+

This half of the state machine holds the state, the waiting members and the effects, and makes the
transitions; `group.py` takes the requests.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ErrorCode
from penstock.groups.membership import Membership
from penstock.groups.messages import (
    JOIN_TIMER,
    NO_MEMBER,
    SYNC_TIMER,
    AnswerJoin,
    AnswerSync,
    AssignmentStored,
    CancelTimer,
    Effect,
    EmptiedStored,
    GroupRecord,
    GroupState,
    JoinResult,
    Member,
    Now,
    Purpose,
    ReplacementStored,
    Reply,
    SetTimer,
    StoreGroup,
    SyncResult,
    TimerKey,
    TimerKind,
)
from penstock.settings import BrokerConfig

logger = logging.getLogger(__name__)

# A new member does not know its id yet, so it cannot heartbeat while it waits: it gets this long.
NEW_MEMBER_JOIN_TIMEOUT_S = 300.0


@dataclass(slots=True)
class _InitialDelay:
    """A new group waits for more members: a while after each one, but not for ever."""

    remaining_s: float
    extend: bool = False  # somebody came during this delay


class Rebalance:
    """State, members, waiters and transitions of one group. Synchronous; see `Group`."""

    def __init__(self, group_id: str, config: BrokerConfig, now: Now) -> None:
        self.group_id = group_id
        self.config = config
        self.state = GroupState.EMPTY
        self.state_ms = now.wall_ms
        self.generation = 0
        self.protocol_type: str | None = None  # None: no member ever joined
        self.protocol: str | None = None
        self.members = Membership()
        # What the members of the current generation subscribe to; None if that is not known.
        self.subscribed_topics: frozenset[str] | None = None
        self.pending: set[str] = set()  # ids that were given out and have not joined
        self._new: set[str] = set()  # members whose first join is not answered
        self._joins: dict[str, Reply] = {}  # members that wait for their join; keys are members
        self._syncs: dict[str, Reply] = {}  # members that wait for their assignment
        self._unsynced: set[str] = set()  # members of this generation that have not asked for it
        self._initial: _InitialDelay | None = None  # only in PREPARING
        self._storing_generation: int | None = None  # its assignment is, or was, on the way
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """What has to be done since the last call, in order. The caller does all of it."""
        effects, self._effects = self._effects, []
        return effects

    # -- to rebalance ---------------------------------------------------------------------------

    def _prepare_rebalance(self, now: Now, reason: str) -> None:
        """Ask everybody to join again: at the next heartbeat, or now if they wait for a sync."""
        logger.info(
            "group %r prepares to rebalance from generation %d with %d members: %s",
            self.group_id, self.generation, len(self.members), reason,
        )  # fmt: skip
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._abandon_assignment(ErrorCode.rebalance_in_progress, now)
        self._unsynced.clear()
        self._effects.append(CancelTimer(SYNC_TIMER))
        was_empty = self.state is GroupState.EMPTY
        self._become(GroupState.PREPARING_REBALANCE, now)
        timeout_s = self.members.rebalance_timeout_s()
        if was_empty:
            delay_s = self.config.group_initial_rebalance_delay_ms / 1000
            if delay_s <= 0:
                self._complete_join(now)
                return
            self._initial = _InitialDelay(remaining_s=max(timeout_s - delay_s, 0))
            self._effects.append(SetTimer(JOIN_TIMER, now.seconds + delay_s))
        else:
            self._effects.append(SetTimer(JOIN_TIMER, now.seconds + timeout_s))
            self._maybe_complete_join(now)

    def _maybe_complete_join(self, now: Now) -> None:
        """Go on if everybody is here, those who were given an id included."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial is None
            and not self.pending
            and len(self._joins) == len(self.members)
        ):
            self._complete_join(now)

    def _expire_join(self, now: Now) -> None:
        """Time is up for those who have not joined."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        initial = self._initial
        if initial is not None and initial.extend and initial.remaining_s > 0:
            delay_s = min(self.config.group_initial_rebalance_delay_ms / 1000, initial.remaining_s)
            self._initial = _InitialDelay(remaining_s=initial.remaining_s - delay_s)
            self._effects.append(SetTimer(JOIN_TIMER, now.seconds + delay_s))
        else:
            self._complete_join(now)

    def _complete_join(self, now: Now) -> None:
        """Start the next generation with those who joined and the static members."""
        self._initial = None
        for member in self.members.all():
            if member.member_id not in self._joins and member.group_instance_id is None:
                logger.info("group %r: %r has not rejoined", self.group_id, member.member_id)
                self._drop_member(member.member_id)
        if len(self.members) and not self.members.elect_leader(self._joins):
            # Only static members are left and none of them joined: wait until one does, or all expire.
            timeout_s = self.members.rebalance_timeout_s()
            self._effects.append(SetTimer(JOIN_TIMER, now.seconds + timeout_s))
            return
        self._effects.append(CancelTimer(JOIN_TIMER))
        self.generation += 1
        self._unsynced.clear()
        self.protocol = self.members.select_protocol() if len(self.members) else None
        self.subscribed_topics = self.members.subscribed_topics(self.protocol_type, self.protocol)
        if not len(self.members):
            self._become(GroupState.EMPTY, now)
            self._store(EmptiedStored(), self.members.all())
            return
        self._become(GroupState.COMPLETING_REBALANCE, now)
        for member in self.members.all():
            self._answer_join(member.member_id, self._joined(member.member_id))
            self._new.discard(member.member_id)
            self._unsynced.add(member.member_id)
            self._renew_session(member, now)
        timeout_s = self.members.rebalance_timeout_s()
        self._effects.append(SetTimer(SYNC_TIMER, now.seconds + timeout_s))

    def _joined(self, member_id: str) -> JoinResult:
        """The answer to a member's join, as of the current generation."""
        leads = member_id == self.members.leader
        return JoinResult(
            error_code=ErrorCode.none,
            member_id=member_id,
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.members.leader or "",
            members=self.members.for_leader(self.protocol) if leads else (),
        )

    # -- to stable ------------------------------------------------------------------------------

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        """Store the leader's assignment; members get it when that is durable."""
        if self._storing_generation == self.generation:
            return  # the leader repeats itself
        self._storing_generation = self.generation
        self._store(
            AssignmentStored(self.generation, assignments),
            self.members.with_assignments(assignments),
        )

    def stored(self, purpose: Purpose, error: ErrorCode, now: Now) -> None:
        """Event: what a `StoreGroup` asked for is durable, or could not be made so (`error`).

        The group may have moved on meanwhile; then nothing more happens here.
        """
        match purpose:
            case AssignmentStored():
                self._assignment_stored(purpose, error, now)
            case ReplacementStored():
                self._replacement_stored(purpose, error, now)
            case EmptiedStored():
                pass  # at worst a restart finds the old generation, whose members then expire

    def _assignment_stored(self, purpose: AssignmentStored, error: ErrorCode, now: Now) -> None:
        if (
            self.state is not GroupState.COMPLETING_REBALANCE
            or self.generation != purpose.generation
        ):
            return
        if error is not ErrorCode.none:
            self._abandon_assignment(error, now)
            self._prepare_rebalance(now, f"the assignment could not be stored: {error.name}")
            return
        self.members.assign(purpose.assignments)
        self._become(GroupState.STABLE, now)
        for member in self.members.all():
            if self._answer_sync(member.member_id, self._synced(member)):
                self._renew_session(member, now)

    def _replacement_stored(self, purpose: ReplacementStored, error: ErrorCode, now: Now) -> None:
        new_id = purpose.new.member_id
        still_waits = self._joins.get(new_id) is purpose.reply
        if self.state is not GroupState.STABLE or not still_waits:
            return  # a rebalance began: its end answers the member
        if error is ErrorCode.none:
            self._answer_join(new_id, purpose.result)
            self._renew_session(self.members[new_id], now)
            return
        self._answer_join(new_id, JoinResult(error_code=error, member_id=NO_MEMBER))
        self._effects.append(CancelTimer(TimerKey(TimerKind.SESSION, new_id)))
        self.members.rename(new_id, purpose.old)
        self._renew_session(purpose.old, now)

    def _abandon_assignment(self, error: ErrorCode, now: Now) -> None:
        """Members that wait for an assignment of this generation get `error`; nobody keeps an old one."""
        self.members.assign({})
        for member in self.members.all():
            if self._answer_sync(member.member_id, SyncResult(error_code=error)):
                self._renew_session(member, now)

    def _synced(self, member: Member) -> SyncResult:
        return SyncResult(
            error_code=ErrorCode.none,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def _expire_sync(self, now: Now) -> None:
        """Time is up for those who have not asked for their assignment."""
        if (
            self.state not in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
            or not self._unsynced
        ):
            return
        for member_id in sorted(self._unsynced):
            self._drop_member(member_id)
        self._prepare_rebalance(now, "members did not ask for their assignment")

    def _has_synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._effects.append(CancelTimer(SYNC_TIMER))

    # -- members --------------------------------------------------------------------------------

    def _remove_member(self, member_id: str, now: Now, reason: str) -> None:
        """A member left or failed: the others rebalance."""
        self._drop_member(member_id)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self._prepare_rebalance(now, reason)
        else:
            self._maybe_complete_join(now)

    def _drop_member(self, member_id: str) -> None:
        """Take the member out. If it waits for something, it has to start anew."""
        self._answer_join(
            member_id, JoinResult(error_code=ErrorCode.unknown_member_id, member_id=NO_MEMBER)
        )
        self._answer_sync(member_id, SyncResult(error_code=ErrorCode.unknown_member_id))
        self.members.remove(member_id)
        self._new.discard(member_id)
        self._unsynced.discard(member_id)
        self._effects.append(CancelTimer(TimerKey(TimerKind.SESSION, member_id)))

    def _drop_pending(self, member_id: str) -> None:
        self.pending.discard(member_id)
        self._effects.append(CancelTimer(TimerKey(TimerKind.PENDING, member_id)))

    def _renew_session(self, member: Member, now: Now) -> None:
        deadline_s = now.seconds + member.session_timeout_ms / 1000
        self._effects.append(SetTimer(TimerKey(TimerKind.SESSION, member.member_id), deadline_s))

    # -- effects --------------------------------------------------------------------------------

    def _await_join(self, member_id: str, reply: Reply) -> None:
        """The member waits. If it waited already, that request was lost: let it go."""
        self._answer_join(
            member_id, JoinResult(error_code=ErrorCode.rebalance_in_progress, member_id=member_id)
        )
        self._joins[member_id] = reply

    def _await_sync(self, member_id: str, reply: Reply) -> None:
        self._answer_sync(member_id, SyncResult(error_code=ErrorCode.rebalance_in_progress))
        self._syncs[member_id] = reply

    def _answer_join(self, member_id: str, result: JoinResult) -> bool:
        """Answer the member's join if it waits for one; whether it did."""
        if member_id not in self._joins:
            return False
        self._effects.append(AnswerJoin(self._joins.pop(member_id), result))
        return True

    def _answer_sync(self, member_id: str, result: SyncResult) -> bool:
        if member_id not in self._syncs:
            return False
        self._effects.append(AnswerSync(self._syncs.pop(member_id), result))
        return True

    def _store(self, purpose: Purpose, members: tuple[Member, ...]) -> None:
        record = GroupRecord(
            group_id=self.group_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.members.leader,
            members=members,
            state_ms=self.state_ms,
        )
        self._effects.append(StoreGroup(record, purpose))

    def _become(self, state: GroupState, now: Now) -> None:
        logger.debug(
            "group %r: %s -> %s, generation %d",
            self.group_id,
            self.state,
            state,
            self.generation,
        )
        self.state = state
        self.state_ms = now.wall_ms
