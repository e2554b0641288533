"""What replicas say to each other, and what a replica wants done: plain, frozen data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from penstock.cluster.state import PartitionState
from penstock.errors import ErrorCode
from penstock.log.epochs import EpochEnd as EpochEnd

NO_EPOCH = -1  # of a client that has no view of the leadership, and of an empty log
ALL = -1  # acks: answered when every member of the ISR has the records


class Role(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"  # not open, or nobody leads


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFetch:
    """A follower asks for what comes at `offset`, and thereby says that it holds everything before."""

    cluster_id: str  # of the partition: a topic made anew is another one
    replica: int
    incarnation: str  # the follower's registration
    leader_epoch: int  # the epoch it believes in
    offset: int
    last_epoch: int  # of its last record
    number: int  # tells apart fetches that ask the same
    log_start: int = -1  # where its log begins; -1: it does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFetched:
    """The leader's answer: one of `error`, `diverging`, `log_start`, or records, maybe none."""

    high_watermark: int = 0
    error: ErrorCode | None = None
    diverging: EpochEnd | None = None  # the follower's last epoch ended here at the leader
    log_start: int | None = None  # the log begins above the offset asked for: start anew from here
    leader_log_start: int = 0  # where the leader's log begins: what is below may go
    records: Any = None  # the driver's: what the log holds at the offset


# Effects, to be performed in order.


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpoch:
    """Note in the log's epoch history that `epoch` begins at the log's end."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Cut the log back so that it ends at `offset`, its epoch history and producer state too."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Drop all records: the log begins and ends at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFetched:
    """Append the leader's records as they are, then call `Replica.fetched_appended`."""

    records: Any
    leader_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLog:
    """Sync the log to disk, then call `Replica.synced`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Write `state` if the partition is still at `revision`, then say what came of it."""

    state: PartitionState
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerProduce:
    """A produce that waited is done; `error` None: every member of the ISR has it."""

    token: Hashable
    error: ErrorCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermark:
    """Records below `offset` may be read now."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """The replica's role in `leader_epoch`. Followers of another leader stop; a follower may fetch."""

    role: Role
    leader_epoch: int
    leader: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshMetadata:
    """Somebody knows a newer epoch: the watch is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReplica:
    """The partition is no longer kept on this broker: remove its log."""


Effect: TypeAlias = (
    BeginEpoch
    | Truncate
    | StartAt
    | AppendFetched
    | SyncLog
    | ProposeIsr
    | AnswerProduce
    | HighWatermark
    | RoleChanged
    | RefreshMetadata
    | DropReplica
)
