"""A partition's log in memory, on a disk that forgets what was not synced when the power fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from penstock.cluster.messages import EpochEnd
from penstock.log.epochs import LeaderEpochs

__all__ = ["Position", "Record", "SimulatedLog", "Stored"]


class Record(NamedTuple):
    """One record; its offset is its place in the log. No two records have one (producer, sequence)."""

    epoch: int
    producer: int
    sequence: int


class Position(NamedTuple):
    """Where a log ended, and how often it had been cut by then."""

    offset: int
    cuts: int


class SimulatedLog:
    """Offsets from 0. What was appended survives a killed process; what was synced, a power cut."""

    log_start_offset = 0

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.durable_offset = 0
        self._cuts = 0
        self._epochs = LeaderEpochs()
        self._offsets: dict[tuple[int, int], int] = {}  # (producer, sequence) -> offset

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def position(self) -> Position:
        return Position(len(self.records), self._cuts)

    def last_epoch(self) -> int:
        return self.records[-1].epoch if self.records else -1

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return EpochEnd(*self._epochs.end_offset_for(epoch, len(self.records)))

    def begin_epoch(self, epoch: int) -> None:
        self._epochs.assign(epoch, len(self.records))

    def repeated(self, producer: int, sequence: int) -> int | None:
        """The end offset of a record that is here already."""
        offset = self._offsets.get((producer, sequence))
        return None if offset is None else offset + 1

    def append(self, record: Record) -> None:
        self._epochs.assign(record.epoch, len(self.records))
        self._offsets[record[1:]] = len(self.records)
        self.records.append(record)

    def truncate(self, offset: int) -> None:
        if offset < len(self.records):
            del self.records[offset:]
            self._cuts += 1
            self._offsets = {r[1:]: at for at, r in enumerate(self.records)}
        self.durable_offset = min(self.durable_offset, offset)
        self._epochs.trim_end(offset)

    def sync(self, begun: Position) -> None:
        """A sync that began at `begun` is done. What was written over since is not covered."""
        if begun.cuts == self._cuts:
            self.durable_offset = max(self.durable_offset, begun.offset)

    def reopen(self) -> None:
        """The process died: what it wrote is there, what it knew is not."""
        records, durable = self.records, self.durable_offset
        self.records, self._epochs, self._offsets = [], LeaderEpochs(), {}
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


@dataclass(slots=True)
class Stored:
    """What a machine keeps of one partition."""

    cluster_id: str
    log: SimulatedLog = field(default_factory=SimulatedLog)
    high_watermark: int = 0  # as it was noted now and then
