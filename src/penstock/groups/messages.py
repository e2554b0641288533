"""What goes into a group's state machine and what comes out of it: plain, frozen data.

Requests come in with the moment they came; answers and everything else that has to be done go out as
effects, which the coordinator performs in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

from penstock.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER = ""


class GroupState(StrEnum):
    """The classic protocol's states; the values are the names clients see."""

    EMPTY = "Empty"  # no members; offsets may be kept
    PREPARING_REBALANCE = "PreparingRebalance"  # waiting for every member to join
    COMPLETING_REBALANCE = "CompletingRebalance"  # waiting for the leader's assignment
    STABLE = "Stable"
    DEAD = "Dead"  # being deleted, or unloaded


class Now(NamedTuple):
    """A moment: `seconds` on the monotonic clock measures waits, `wall_ms` stamps what is kept."""

    seconds: float
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignor:
    """A way to assign partitions that a member supports, with what it tells the leader for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as the group knows it. A change makes a new one, so old ones can be put back."""

    member_id: str
    group_instance_id: str | None  # not None: a static member
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Assignor, ...]  # in the member's order of preference, never empty
    assignment: bytes = b""

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said for `protocol`; empty if it does not support it."""
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    member_id: str  # NO_MEMBER: not known to the group yet
    new_member_id: str  # the id to give if it is not
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Assignor, ...]
    requires_member_id: bool = False  # a new dynamic member has to come back with its id
    can_skip_assignment: bool = False  # a static leader may be told to keep the assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader is told of it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    error_code: ErrorCode
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader only


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None  # None: the client's version does not say
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)  # from the leader only


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Who leaves: by member id, or (member id empty) by group instance id."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group_id: str
    state: GroupState
    protocol_type: str  # "" if the group has none
    protocol: str  # "" unless stable
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What is kept of a group across a restart: a whole generation, with its assignments."""

    group_id: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[Member, ...]
    state_ms: int  # wall time of the last change of state


class TimerKind(Enum):
    SESSION = "session"  # of one member: it has not been heard of
    PENDING = "pending"  # of one pending member: it has not come back with its id
    JOIN = "join"  # of the group: members have not rejoined
    SYNC = "sync"  # of the group: members have not fetched their assignment


class TimerKey(NamedTuple):
    kind: TimerKind
    member_id: str = NO_MEMBER


JOIN_TIMER = TimerKey(TimerKind.JOIN)
SYNC_TIMER = TimerKey(TimerKind.SYNC)

# Whoever waits for an answer; the state machine only hands it back.
Reply: TypeAlias = object


class AnswerJoin(NamedTuple):
    reply: Reply
    result: JoinResult


class AnswerSync(NamedTuple):
    reply: Reply
    result: SyncResult


class SetTimer(NamedTuple):
    """Call `expire(key)` at `deadline_s`; replaces the timer that `key` had."""

    key: TimerKey
    deadline_s: float


class CancelTimer(NamedTuple):
    key: TimerKey


class AssignmentStored(NamedTuple):
    """The leader's assignment for `generation` was to be stored, before members get it."""

    generation: int
    assignments: Mapping[str, bytes]


class ReplacementStored(NamedTuple):
    """A static member's new id was to be stored, before the member learns it."""

    old: Member
    new: Member
    reply: Reply
    result: JoinResult  # the answer if it was


class EmptiedStored(NamedTuple):
    """That the group has no members was to be stored. Nobody waits for it."""


Purpose: TypeAlias = AssignmentStored | ReplacementStored | EmptiedStored


class StoreGroup(NamedTuple):
    """Make `record` durable, after those before it, then call `stored(purpose, …)`."""

    record: GroupRecord
    purpose: Purpose


Effect: TypeAlias = AnswerJoin | AnswerSync | SetTimer | CancelTimer | StoreGroup
