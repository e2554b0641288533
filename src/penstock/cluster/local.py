"""What both roles of a replica share: the broker's term, the log as they see it, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from penstock.cluster.messages import EpochEnd
from penstock.cluster.state import BrokerRegistration
from penstock.model import TopicPartition

CLOCK_DRIFT_MAX: Final = 0.05  # how much slower than the store's our clock may run


class ReplicaLog(Protocol):
    """The log as the state machines read it. Only effects change it."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """LEO: the next offset to write."""

    @property
    def durable_offset(self) -> int:
        """Everything below survives a power cut."""

    def last_epoch(self) -> int:
        """The epoch of the last record; -1 if there is none."""

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The largest known epoch not above `epoch`, and where it ended; (-1, -1) if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    min_insync_replicas: int = 1
    lag_time_s_max: float = 10.0  # a follower that was not caught up for longer leaves the ISR
    lag_records_max: int | None = None  # and one that is further behind, if set
    produce_wait_s_max: float = 5.0


@dataclass(slots=True, kw_only=True)
class BrokerTerm:
    """This broker as it is registered, for all its replicas. A new registration begins a new term."""

    id: int
    storage_id: str
    incarnation: str = ""  # none yet
    lease_until_s: float = -inf  # on our clock; before this the lease is held for certain
    is_over: bool = True  # we gave the lease up, or the store said that it has ended

    def holds_lease(self, now: float) -> bool:
        return now < self.lease_until_s

    def begin(self, incarnation: str, sent_at: float, ttl_s: float) -> None:
        """We are registered, under a lease that was asked for at `sent_at`."""
        self.incarnation = incarnation
        self.lease_until_s, self.is_over = -inf, False
        self.lease_renewed(sent_at, ttl_s)

    def lease_renewed(self, sent_at: float, ttl_s: float) -> None:
        """The store extended the lease at some time after `sent_at`, on our clock.

        It counts `ttl_s` from then; we count from before, and less by what our clock may lose.
        """
        if not self.is_over:
            until = sent_at + ttl_s * (1 - CLOCK_DRIFT_MAX)
            self.lease_until_s = max(self.lease_until_s, until)

    def end(self) -> None:
        """To be called before the lease is revoked: nothing is answered from here on."""
        self.lease_until_s, self.is_over = -inf, True


@dataclass(slots=True, kw_only=True)
class LocalReplica:
    """A replica's own things, whatever its role. Roles come and go with epochs; this stays."""

    partition: TopicPartition
    term: BrokerTerm
    log: ReplicaLog
    settings: ReplicaSettings
    brokers: Mapping[int, BrokerRegistration]  # who is registered, as far as the watch has come
    high_watermark: int = 0  # <= log end; never goes back within an epoch
