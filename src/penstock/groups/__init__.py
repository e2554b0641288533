"""Consumer groups: the classic protocol's state machine, its coordinators, and committed offsets."""

from penstock.groups.coordinator import GROUP_TYPE, GroupCoordinator, GroupOverview
from penstock.groups.messages import (
    Assignor,
    GroupDescription,
    GroupState,
    JoinedMember,
    JoinResult,
    Leaving,
    Member,
    SyncRequest,
    SyncResult,
)
from penstock.groups.offsets import CommittedOffset, NewOffset, OffsetTable
from penstock.groups.spread import SpreadCoordinator

__all__ = [
    "GROUP_TYPE",
    "Assignor",
    "CommittedOffset",
    "GroupCoordinator",
    "GroupDescription",
    "GroupOverview",
    "GroupState",
    "JoinResult",
    "JoinedMember",
    "Leaving",
    "Member",
    "NewOffset",
    "OffsetTable",
    "SpreadCoordinator",
    "SyncRequest",
    "SyncResult",
]
