"""Data loss: a gap is reported once, with its range, and only if there is one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from penstock.model import TopicPartition
from penstock.spark.errors import DataLossError

log: Final = logging.getLogger("penstock.spark")

_HINT_FAIL = "set failOnDataLoss = false to go on without them"
_HINT_WARN = "set failOnDataLoss = true to have the query fail instead"


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) of a partition that can not be read any more. `end` is None if nobody knows."""

    partition: TopicPartition
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        until = f"to {self.end} (exclusive)" if self.end is not None else "on"
        return (
            f"data loss in {self.partition}: offsets {self.start} {until} are gone: {self.reason}"
        )


def report(gap: Gap, *, fail: bool) -> None:
    """Raise `DataLossError`, or write one warning."""
    if fail:
        raise DataLossError(f"{gap}; {_HINT_FAIL}")
    log.warning("%s; %s", gap, _HINT_WARN)


@dataclass(slots=True)
class GapReports:
    """Reports each gap once, however often a batch is planned."""

    fail: bool
    _reported: set[tuple[TopicPartition, int]] = field(default_factory=set)

    def report(self, gap: Gap) -> None:
        """Gaps of a partition are told apart by their start: what begins there can be lost only once."""
        key = gap.partition, gap.start
        if self.fail or key not in self._reported:
            self._reported.add(key)
            report(gap, fail=self.fail)
