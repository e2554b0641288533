"""A stream's progress as a consumer group: any Kafka tool shows the lag of a Spark query.

It is shown there and never read back: where a query goes on is in its checkpoint alone.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import ClientError
from penstock.spark.connecting import ClusterSettings
from penstock.spark.offsets import Offsets
from penstock.spark.options import Options
from penstock.spark.subscription import Subscription

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster

log: Final = logging.getLogger("penstock.spark")

_NAME_LENGTH_MAX: Final = 120
_PATIENCE_MS: Final = 5_000  # a batch should not wait for long because its progress is not shown
_PAUSE_S: Final = 60.0  # nor should every batch, if it is not to be shown for long


def group_name(options: Options, subscription: Subscription, app_name: str) -> str:
    """`kafka.group.id`, or a name that says which query it is: `spark-<application>-<topics>`."""
    if options["kafka.group.id"]:
        return str(options["kafka.group.id"])
    prefix = options["groupIdPrefix"] or (f"spark-{app_name}" if app_name else "spark")
    name = re.sub(r"[^\w.,:@*+()\[\]|-]+", "-", f"{prefix}-{subscription}")
    if len(name) > _NAME_LENGTH_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: _NAME_LENGTH_MAX - 9]}-{digest}"
    return name


class Progress:
    """Commits what is done. A failure costs a warning and never the query."""

    def __init__(
        self, group: str, where: ClusterSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.group = group
        self._where = replace(
            where,
            request_timeout_ms=min(where.request_timeout_ms, _PATIENCE_MS),
            retry_timeout_ms=min(where.retry_timeout_ms, _PATIENCE_MS),
        )
        self._clock = clock
        self._connected: Cluster | None = None
        self._committed: Offsets = {}
        self._failed_at: float | None = None  # None: the last one was stored
        self._is_shared = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connected": None}

    def commit(self, offsets: Offsets) -> None:
        """All before these offsets is done. Nothing happens if that was said before."""
        if not offsets or offsets == self._committed:
            return
        if self._failed_at is not None and self._clock() < self._failed_at + _PAUSE_S:
            return
        if self._connected is None:
            self._connected = self._where.connect()
        cluster = self._connected
        try:
            self._warn_if_shared(cluster)
            cluster.commit_offsets(self.group, offsets)
        except ClientError as error:
            if self._failed_at is None:
                log.warning("the progress of group %s is not shown: %s", self.group, error)
            self._failed_at = self._clock()
        else:
            self._failed_at = None
            self._committed = dict(offsets)

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()

    def _warn_if_shared(self, cluster: Cluster) -> None:
        """Two queries in one group show the lag of neither."""
        if self._is_shared or not self._committed:
            return
        found = cluster.committed_offsets(self.group, self._committed)
        if any(found.get(one, offset) != offset for one, offset in self._committed.items()):
            self._is_shared = True
            log.warning(
                "somebody else commits to group %s, so its lag means nothing; "
                "give each query a kafka.group.id or groupIdPrefix of its own", self.group,
            )  # fmt: skip
