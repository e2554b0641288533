"""A partition's log in memory, on a disk that forgets what was not synced when the power fails."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from penstock.cluster.messages import EpochEnd
from penstock.log.epochs import LeaderEpochs

__all__ = ["Record", "SimulatedLog"]


class Record(NamedTuple):
    """One record; its offset is its place in the log. No two records have one (producer, sequence)."""

    epoch: int
    producer: int
    sequence: int


class SimulatedLog:
    """Offsets from 0. What was appended survives a killed process; what was synced, a power cut."""

    log_start_offset = 0

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.durable_offset = 0
        self._epochs = LeaderEpochs()
        self._last: dict[int, tuple[int, int]] = {}  # producer -> its last sequence and the offset

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def last_epoch(self) -> int:
        return self.records[-1].epoch if self.records else -1

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return EpochEnd(*self._epochs.end_offset_for(epoch, len(self.records)))

    def begin_epoch(self, epoch: int) -> None:
        self._epochs.assign(epoch, len(self.records))

    def repeated(self, producer: int, sequence: int) -> int | None:
        """The end offset of a record that is here already."""
        last = self._last.get(producer)
        if last is None or sequence > last[0]:
            return None
        return last[1] + 1

    def append(self, record: Record) -> None:
        self._epochs.assign(record.epoch, len(self.records))
        self._last[record.producer] = (record.sequence, len(self.records))
        self.records.append(record)

    def truncate(self, offset: int) -> None:
        if offset < len(self.records):
            del self.records[offset:]
            self._last = {r.producer: (r.sequence, at) for at, r in enumerate(self.records)}
        self.durable_offset = min(self.durable_offset, offset)
        self._epochs.trim_end(offset)

    def sync(self, offset: int) -> None:
        """A sync that began when the log ended at `offset` is done."""
        self.durable_offset = max(self.durable_offset, min(offset, len(self.records)))

    def reopen(self) -> None:
        """The process died: what it wrote is there, what it knew is not."""
        records, durable = self.records, self.durable_offset
        self.records, self._epochs, self._last = [], LeaderEpochs(), {}
        for record in records:
            self.append(record)
        self.durable_offset = durable

    def lose_power(self, random: Random) -> None:
        """Some of what was not synced is gone, often all of it."""
        some = random.randint(self.durable_offset, len(self.records))
        kept = random.choice((self.durable_offset, some))
        del self.records[kept:]
        self.reopen()
        self.durable_offset = kept
