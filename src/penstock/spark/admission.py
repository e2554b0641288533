"""Admission control: how much of what is there a batch of a stream takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from penstock.model import TopicPartition
from penstock.spark.errors import OptionError
from penstock.spark.offsets import Offsets
from penstock.spark.options import Options


class Admission:
    """How much a batch takes: maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._max: int | None = options["maxOffsetsPerTrigger"]
        self._min: int | None = options["minOffsetsPerTrigger"]
        self._delay_ms: int = options["maxTriggerDelay"]
        self._last_batch_at: float | None = None  # None: none yet, so the first one does not wait
        if self._min is not None and self._max is not None and self._min > self._max:
            raise OptionError(
                f"minOffsetsPerTrigger = {self._min} is above maxOffsetsPerTrigger = {self._max}"
            )

    def default_limit(self) -> ReadLimit:
        """As Spark is told. It knows no limit that is both; ours does, whichever comes back."""
        if self._max is not None:
            return ReadMaxRows(self._max)
        return ReadAllAvailable() if self._min is None else ReadMinRows(self._min)

    def end_of_batch(
        self, starts: Offsets, ends: Offsets, limit: ReadLimit, *, may_wait: bool
    ) -> Offsets | None:
        """Where a batch from `starts` ends, at most at `ends`; None if it should wait for more."""
        if isinstance(limit, ReadAllAvailable):
            return ends
        sizes = {one: ends[one] - starts[one] for one in ends if ends[one] > starts[one]}
        if may_wait and self._min is not None and self._should_wait(sum(sizes.values())):
            return None
        if not isinstance(limit, ReadMaxRows):
            return ends
        return {one: starts[one] + _share(one, sizes, limit.max_rows) for one in ends}

    def _should_wait(self, available: int) -> bool:
        now = self._clock()
        last = self._last_batch_at
        assert self._min is not None
        if available < self._min and last is not None and (now - last) * 1000 < self._delay_ms:
            return True
        self._last_batch_at = now
        return False


def _share(one: TopicPartition, sizes: Offsets, limit: int) -> int:
    """This partition's part of a limit, by what it has; at least one, so that none waits for ever."""
    size = sizes.get(one, 0)
    if not size:
        return 0
    return min(size, max(limit * size // sum(sizes.values()), 1))
