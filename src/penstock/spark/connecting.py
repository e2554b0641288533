"""How a query's processes reach the brokers. The settings travel with tasks, connections do not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.spark.options import Options

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster

# Workers live for many tasks. A cluster is kept for those to come, but not over a fork.
_kept: Final[dict[tuple[int, ClusterSettings], Cluster]] = {}


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the brokers are and how long to wait for them."""

    bootstrap: str
    client_id: str
    request_timeout_ms: int
    retry_timeout_ms: int

    @classmethod
    def from_options(cls, options: Options) -> ClusterSettings:
        return cls(
            bootstrap=options["kafka.bootstrap.servers"],
            client_id=options["kafka.client.id"],
            request_timeout_ms=options["kafka.request.timeout.ms"],
            retry_timeout_ms=options["retryTimeout"],
        )

    def connect(self) -> Cluster:
        """A cluster of the caller's own, to be closed by it. Nothing is connected until it is used."""
        from penstock.client.cluster import Cluster

        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            retry_timeout_ms=self.retry_timeout_ms,
        )

    def shared(self) -> Cluster:
        """The cluster that all tasks of this worker share, never to be closed by them."""
        key = os.getpid(), self
        if key not in _kept:
            _kept.clear()
            _kept[key] = self.connect()
        return _kept[key]
