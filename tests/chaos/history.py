"""What producers, readers and a group noted during a run, and what the logs held when it was over.

Plain facts, with no judgement: `checker` holds them against what was promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

__all__ = [
    "Batch",
    "Committed",
    "GroupEvent",
    "History",
    "Lost",
    "Outcome",
    "Processed",
    "Seen",
    "Sent",
    "Started",
    "Told",
    "Value",
]

NO_OFFSET = -1
NO_EPOCH = -1


class Value(NamedTuple):
    """What a record says: who sent it, and the how-manieth of that sender it is."""

    producer: str
    sequence: int

    def encode(self) -> bytes:
        return f"{self.producer}:{self.sequence}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Value:
        """Of anything: what is no record of ours is a producer that nobody knows."""
        text = data.decode(errors="replace")
        producer, _, sequence = text.rpartition(":")
        return cls(producer, int(sequence)) if sequence.isdigit() else cls(text, -1)


class Outcome(Enum):
    """What a producer was told of a record."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # it is not in the log, for certain
    UNKNOWN = "unknown"  # it may be in the log, or get there yet


class Sent(NamedTuple):
    """One record of a producer, to one partition, and what came of it."""

    value: Value
    partition: int
    outcome: Outcome
    offset: int = NO_OFFSET  # of an acknowledged one; NO_OFFSET if the client does not know it


class Seen(NamedTuple):
    """A record as somebody read it."""

    partition: int
    offset: int
    value: Value
    epoch: int = NO_EPOCH  # the leader's, as the record has it


class Lost(NamedTuple):
    """A reader was told that a log ends before what it has read."""

    text: str
    partition: int = -1
    epoch: int = NO_EPOCH  # of what it read last, if it says so


class Told(NamedTuple):
    """Who led a partition in an epoch, as some broker's metadata said."""

    partition: int
    epoch: int
    leader: int
    by: int = -1  # the broker that said it


class Started(NamedTuple):
    """A member of the group was given a partition, and reads on from what was committed."""

    partition: int
    offset: int
    acknowledged_before: int  # the highest commit answered before it asked


class Processed(NamedTuple):
    """A member handled the records [first, end)."""

    partition: int
    first: int
    end: int


class Committed(NamedTuple):
    """A commit was answered."""

    partition: int
    offset: int


GroupEvent = Started | Processed | Committed


class Batch(NamedTuple):
    """One batch as it is on a disk."""

    base_offset: int
    end_offset: int
    epoch: int
    data: bytes


@dataclass(kw_only=True)
class History:
    """A whole run."""

    sent: Sequence[Sent] = ()
    # Producers that may see their records out of order: no sequence numbers, and answers given up on.
    unordered: frozenset[str] = frozenset()
    seen: Mapping[str, Sequence[Seen]] = field(default_factory=dict)  # by reader, in order
    positions_lost: Mapping[str, Sequence[Lost]] = field(default_factory=dict)  # by reader
    # By reader: partitions and epochs whose end it has asked for.
    epochs_asked: Mapping[str, Set[tuple[int, int]]] = field(default_factory=dict)
    told: Sequence[Told] = ()
    group: Mapping[str, Sequence[GroupEvent]] = field(default_factory=dict)  # by member, in order
    group_end: Mapping[int, int] = field(default_factory=dict)  # committed, when all was over
    final: Mapping[int, Sequence[Seen]] = field(default_factory=dict)  # every record, by partition
    disks: Mapping[int, Mapping[int, Sequence[Batch]]] = field(default_factory=dict)
    # ^ of each partition, by broker; empty: nobody looked
