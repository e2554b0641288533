"""Which leader epoch wrote which offsets: `[(0, 0), (3, 120)]` says epoch 3 began at offset 120."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class EpochEnd(NamedTuple):
    """`epoch` wrote nothing at or above `end_offset`. (-1, -1): that epoch, and all before, are unknown."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The epoch history of one partition: epochs and start offsets both ascend."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries = list(entries)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else -1

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, if it is a new one.

        Later epochs that were begun there, but never got a record, are forgotten: another leader's
        records of an older epoch have taken the place of what they would have written.
        """
        while self._entries and self._entries[-1][1] >= start_offset and self.latest > epoch:
            self._entries.pop()
        if epoch > self.latest:
            self._entries.append((epoch, start_offset))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The largest known epoch that is not above `epoch`, and where it ended; (-1, -1) if none.

        The offset is where the next epoch begins, or the log's end for the latest one.
        """
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        if not self._entries or epoch > self.latest or epoch < 0:
            return EpochEnd(-1, -1)
        after = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        if after == 0:
            return EpochEnd(epoch, self._entries[0][1])
        return EpochEnd(self._entries[after - 1][0], self._entries[after][1])

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 if no epoch began at or before it."""
        after = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[after - 1][0] if after else -1

    def trim_start(self, log_start_offset: int) -> None:
        """Forget epochs that ended at or before the log's start; the one in force there stays."""
        keep = max(0, bisect_right(self._entries, log_start_offset, key=lambda entry: entry[1]) - 1)
        del self._entries[:keep]
        if self._entries and self._entries[0][1] < log_start_offset:
            self._entries[0] = (self._entries[0][0], log_start_offset)

    def trim_end(self, log_end_offset: int) -> None:
        """Forget epochs that began at or above the log's end: their records were lost."""
        while self._entries and self._entries[-1][1] >= log_end_offset:
            self._entries.pop()
