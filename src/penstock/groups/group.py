"""One consumer group as a state machine: requests and expired timers in, effects out.

    group.join(request, reply, now)
    for effect in group.take_effects(): ...   # answers, timers, records to store

Nothing here waits, and nothing here fails half way: a refused request changes no state. The rules are
those of Apache Kafka's classic protocol, with KIP-345 (static members), KIP-394 (a member joins with an
id) and KIP-814 (a static leader skips the assignment).
"""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import ErrorCode
from penstock.groups import consumer_protocol
from penstock.groups.messages import (
    JOIN_TIMER,
    NO_MEMBER,
    SYNC_TIMER,
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    GroupDescription,
    GroupRecord,
    GroupState,
    JoinRequest,
    JoinResult,
    Leaving,
    Member,
    Now,
    ReplacementStored,
    Reply,
    SetTimer,
    SyncRequest,
    SyncResult,
    TimerKey,
    TimerKind,
)
from penstock.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_S, Rebalance
from penstock.settings import BrokerConfig

__all__ = ["Group"]


class Group(Rebalance):
    """The events of one group. Every method is one step; take the effects after each."""

    @classmethod
    def restore(cls, record: GroupRecord, config: BrokerConfig, now: Now) -> Group:
        """The group as it was stored; every member gets a full session to be heard of."""
        group = cls(record.group_id, config, now)
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol = record.protocol
        for member in record.members:
            group.members.add(member)
            group._renew_session(member, now)
        if record.leader is not None and record.leader in group.members:
            group.members.leader = record.leader
        group.subscribed_topics = group.members.subscribed_topics(
            group.protocol_type, group.protocol
        )
        group.state = GroupState.STABLE if record.members else GroupState.EMPTY
        group.state_ms = record.state_ms
        if len(group.members) > config.group_members_max:
            group._prepare_rebalance(now, "the group has more members than it may")
        return group

    # -- join -----------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: Reply, now: Now) -> None:
        """Event: a client wants to be a member of the next generation."""
        if self.state is GroupState.DEAD:
            self._refuse_join(reply, ErrorCode.coordinator_not_available, request.member_id)
            return
        if not self._has_room(request):
            if request.member_id in self.members:
                self._drop_member(request.member_id)
            self._refuse_join(reply, ErrorCode.group_max_size_reached, NO_MEMBER)
        elif not self._agrees(request):
            self._refuse_join(reply, ErrorCode.inconsistent_group_protocol, request.member_id)
        elif request.member_id == NO_MEMBER:
            self._join_unknown(request, reply, now)
        elif request.member_id in self.pending and request.group_instance_id is None:
            self._drop_pending(request.member_id)
            self._add_member(request.member_id, request, reply, now)
        else:
            self._join_known(request, reply, now)
        self._maybe_complete_join(now)

    def _refuse_join(self, reply: Reply, error: ErrorCode, member_id: str) -> None:
        self._effects.append(AnswerJoin(reply, JoinResult(error_code=error, member_id=member_id)))

    def _has_room(self, request: JoinRequest) -> bool:
        """Whether the member may take a place. Those who have one keep it; so does a static member's."""
        members_max = self.config.group_members_max
        instance = request.group_instance_id
        if instance is not None and self.members.static_member_id(instance) is not None:
            return True
        if request.member_id == NO_MEMBER and len(self.pending) >= members_max:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            # A group over its limit sheds those who rejoin last.
            return request.member_id in self._joins or len(self._joins) < members_max
        if self.state is GroupState.EMPTY:
            return True
        return request.member_id in self.members or len(self.members) < members_max

    def _agrees(self, request: JoinRequest) -> bool:
        """Whether the member brings a protocol that all others support."""
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type) and bool(request.protocols)
        return request.protocol_type == self.protocol_type and self.members.supports_any(
            offer.name for offer in request.protocols
        )

    def _join_unknown(self, request: JoinRequest, reply: Reply, now: Now) -> None:
        """A client without a member id: new, or a static member that lost it."""
        if request.group_instance_id is not None:
            old_id = self.members.static_member_id(request.group_instance_id)
            if old_id is not None:
                self._replace_static(old_id, request, reply, now)
                return
        elif request.requires_member_id:
            # It comes back with the id it gets here; if that answer is lost, no dead member is left.
            member_id = request.new_member_id
            self.pending.add(member_id)
            deadline_s = now.seconds + request.session_timeout_ms / 1000
            self._effects.append(SetTimer(TimerKey(TimerKind.PENDING, member_id), deadline_s))
            self._refuse_join(reply, ErrorCode.member_id_required, member_id)
            return
        self._add_member(request.new_member_id, request, reply, now)

    def _join_known(self, request: JoinRequest, reply: Reply, now: Now) -> None:
        member_id = request.member_id
        error = self._check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            self._refuse_join(reply, error, member_id)
            return
        is_same = self.members[member_id].protocols == request.protocols
        leads = member_id == self.members.leader
        if is_same and (
            self.state is GroupState.COMPLETING_REBALANCE
            or (self.state is GroupState.STABLE and not leads)
        ):
            # Nothing changed, so it has not seen our answer: repeat it. A stable leader, however, joins
            # again because something else than its own subscription changed.
            self._effects.append(AnswerJoin(reply, self._joined(member_id)))
            return
        self.members.update(_updated(self.members[member_id], request))
        self._await_join(member_id, reply)
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(now, f"{member_id!r} joins again")

    def _add_member(self, member_id: str, request: JoinRequest, reply: Reply, now: Now) -> None:
        if not len(self.members):
            self.protocol_type = request.protocol_type
        if self._initial is not None and self.generation == 0:
            self._initial.extend = True
        self.members.add(
            Member(
                member_id=member_id,
                group_instance_id=request.group_instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=request.protocols,
            )
        )
        self._new.add(member_id)
        self._joins[member_id] = reply
        timer = TimerKey(TimerKind.SESSION, member_id)
        self._effects.append(SetTimer(timer, now.seconds + NEW_MEMBER_JOIN_TIMEOUT_S))
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(now, f"{member_id!r} joins")

    def _replace_static(self, old_id: str, request: JoinRequest, reply: Reply, now: Now) -> None:
        """A static member is back under a new id. While nothing else changes, nobody rebalances."""
        fenced = ErrorCode.fenced_instance_id
        self._answer_join(old_id, JoinResult(error_code=fenced, member_id=old_id))
        self._answer_sync(old_id, SyncResult(error_code=fenced))
        leader_before = self.members.leader or ""
        old = self.members[old_id]
        new = replace(_updated(old, request), member_id=request.new_member_id)
        self.members.rename(old_id, new)
        self._new.discard(old_id)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(new.member_id)
        self._effects.append(CancelTimer(TimerKey(TimerKind.SESSION, old_id)))
        self._renew_session(new, now)
        self._joins[new.member_id] = reply
        if self.state is GroupState.STABLE and self.members.select_protocol() == self.protocol:
            result = self._joined(new.member_id)
            if request.can_skip_assignment:
                result = replace(result, skip_assignment=new.member_id == self.members.leader)
            else:
                # An older client must not take itself for the leader: its assignment would get lost.
                result = replace(result, leader=leader_before, members=())
            self._store(ReplacementStored(old, new, reply, result), self.members.all())
        elif self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(now, f"static member {request.group_instance_id!r} is back")

    # -- sync -----------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, reply: Reply, now: Now) -> None:
        """Event: a member asks for its assignment; the leader brings everybody's."""
        error = self._check_sync(request)
        if error is not ErrorCode.none:
            self._effects.append(AnswerSync(reply, SyncResult(error_code=error)))
            return
        member_id = request.member_id
        self._has_synced(member_id)
        if self.state is GroupState.STABLE:
            member = self.members[member_id]
            self._effects.append(AnswerSync(reply, self._synced(member)))
            self._renew_session(member, now)
            return
        assert self.state is GroupState.COMPLETING_REBALANCE
        self._await_sync(member_id, reply)
        if member_id == self.members.leader:
            self._assign(request.assignments)

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._check_generation(
            request.member_id, request.group_instance_id, request.generation_id
        )
        if error is not ErrorCode.none:
            return error
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.inconsistent_group_protocol
        if request.protocol_name is not None and request.protocol_name != self.protocol:
            return ErrorCode.inconsistent_group_protocol
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    # -- heartbeat, leave, expiry ---------------------------------------------------------------

    def heartbeat(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: Now
    ) -> ErrorCode:
        """Event: the member lives. The answer tells it to rejoin when the group rebalances."""
        error = self._check_generation(member_id, group_instance_id, generation_id)
        if error is not ErrorCode.none:
            return error
        self._renew_session(self.members[member_id], now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, leaving: Leaving, now: Now) -> ErrorCode:
        """Event: a member goes; or it is sent away by its group instance id, without a member id."""
        member_id = leaving.member_id
        if member_id in self.pending:
            self._drop_pending(member_id)
            self._maybe_complete_join(now)
            return ErrorCode.none
        if member_id == NO_MEMBER and leaving.group_instance_id is not None:
            member_id = self.members.static_member_id(leaving.group_instance_id) or NO_MEMBER
        error = self._check_member(member_id, leaving.group_instance_id)
        if error is ErrorCode.none:
            self._remove_member(member_id, now, f"{member_id!r} leaves")
        return error

    def expire(self, timer: TimerKey, now: Now) -> None:
        """Event: a timer that was set has run out."""
        match timer.kind:
            case TimerKind.SESSION:
                self._expire_session(timer.member_id, now)
            case TimerKind.PENDING:
                if timer.member_id in self.pending:
                    self._drop_pending(timer.member_id)
                    self._maybe_complete_join(now)
            case TimerKind.JOIN:
                self._expire_join(now)
            case TimerKind.SYNC:
                self._expire_sync(now)

    def _expire_session(self, member_id: str, now: Now) -> None:
        if member_id not in self.members:
            return
        waits = member_id in self._joins or member_id in self._syncs
        if waits and member_id not in self._new:
            return  # it waits for us; the answer gives it a new session
        self._remove_member(member_id, now, f"{member_id!r} was not heard of in time")

    # -- offsets --------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, group_instance_id: str | None, generation_id: int, now: Now
    ) -> ErrorCode:
        """Event: somebody commits offsets. Members of the current generation may; it shows they live.

        So may anybody (generation -1), while the group is empty: admins, and consumers that assign
        themselves.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if self.state is GroupState.EMPTY and generation_id < 0:
            return ErrorCode.none
        error = self._check_generation(member_id, group_instance_id, generation_id)
        if error is not ErrorCode.none:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        self._renew_session(self.members[member_id], now)
        return ErrorCode.none

    def is_subscribed(self, topic: str) -> bool:
        """Whether members consume `topic`; if they are consumers and it cannot be told: yes."""
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.has_consumers

    @property
    def has_consumers(self) -> bool:
        """Whether the members, if there are any, speak the consumers' own protocol."""
        return self.protocol_type == consumer_protocol.PROTOCOL_TYPE

    # -- the end --------------------------------------------------------------------------------

    @property
    def is_vacant(self) -> bool:
        """There is nobody, nobody is on the way, and the group was never more than a name."""
        return self.state is GroupState.EMPTY and not self.pending and self.generation == 0

    def begin_delete(self) -> ErrorCode:
        """Event: the group is to be deleted. Until that is done, or `revive`d, it is dead."""
        if self.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        if self.state is not GroupState.EMPTY:
            return ErrorCode.non_empty_group
        for member_id in sorted(self.pending):
            self._drop_pending(member_id)
        self.state = GroupState.DEAD
        return ErrorCode.none

    def revive(self) -> None:
        """Event: the group could not be deleted."""
        assert self.state is GroupState.DEAD
        assert not len(self.members)
        self.state = GroupState.EMPTY

    def unload(self) -> None:
        """Event: this broker stops coordinating the group. Who waits looks for the coordinator anew."""
        gone = ErrorCode.not_coordinator
        for member in self.members.all():
            member_id = member.member_id
            self._answer_join(member_id, JoinResult(error_code=gone, member_id=member_id))
            self._answer_sync(member_id, SyncResult(error_code=gone))
            self._effects.append(CancelTimer(TimerKey(TimerKind.SESSION, member_id)))
        for member_id in sorted(self.pending):
            self._drop_pending(member_id)
        self._effects += [CancelTimer(JOIN_TIMER), CancelTimer(SYNC_TIMER)]
        self.state = GroupState.DEAD

    def describe(self) -> GroupDescription:
        """The group as an admin sees it. What members said and got is only known while stable."""
        is_stable = self.state is GroupState.STABLE
        members = self.members.all()
        if not is_stable:
            members = tuple(replace(member, protocols=(), assignment=b"") for member in members)
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol=(self.protocol or "") if is_stable else "",
            members=members,
        )

    # -- checks ---------------------------------------------------------------------------------

    def _check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            current = self.members.static_member_id(group_instance_id)
            if current is not None and current != member_id:
                return ErrorCode.fenced_instance_id
            if current is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def _check_generation(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self._check_member(member_id, group_instance_id)
        if error is ErrorCode.none and generation_id != self.generation:
            return ErrorCode.illegal_generation
        return error


def _updated(member: Member, request: JoinRequest) -> Member:
    """The member with what its new join says."""
    return replace(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
    )
