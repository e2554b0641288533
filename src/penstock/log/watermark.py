"""Where the readable part of a replica's log ends, as a place in its files.

Consumers see only what is committed. Where that ends is asked by every read and moves with almost every
append, so neither may search for it: the ends of the batches above it are kept, and passed one by one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock.log.segment import Segment

_ENDS_MAX: Final = 65_536  # of batches: if more are above the high watermark, an index tells


class Place(NamedTuple):
    """Behind the first `byte` bytes of a segment, and before the record at `offset`."""

    offset: int
    segment: Segment
    byte: int


class Watermark:
    """The high watermark of a tracked log. `place.offset` is the high watermark.

    Invariant: `place` lies between two batches, and no record before it is at or above its offset.
    """

    __slots__ = ("_ends", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self._ends: deque[Place] = deque(maxlen=_ENDS_MAX)  # of batches above it, ascending

    def grown(self, end_offset: int, segment: Segment) -> None:
        """A batch that ends at `end_offset` is the last one of `segment` now."""
        self._ends.append(Place(end_offset, segment, segment.size))

    def grown_by_run(self, ends: list[Place]) -> None:
        self._ends.extend(ends)

    def pass_to(self, offset: int) -> Place | None:
        """The place of `offset`, if it is where a batch above the high watermark ends."""
        ends = self._ends
        found: Place | None = None
        while ends and ends[0].offset <= offset:
            found = ends.popleft()
        return found if found is not None and found.offset == offset else None

    def lower(self, offset: int) -> None:
        """Nothing from `offset` on may be read any more. `shorten` says what became of the files."""
        if self.place.offset > offset:
            self.place = self.place._replace(offset=offset)

    def shorten(self, end: Place, replaced: dict[Segment, Segment | None]) -> None:
        """The log ends at `end` now; of each segment in `replaced` only so much is left."""
        ends = [item for item in self._ends if item.offset <= end.offset]
        self._ends.clear()
        self._ends.extend(_moved(item, replaced, end) for item in ends)
        self.place = end if self.place.offset >= end.offset else _moved(self.place, replaced, end)

    def drop(self, gone: list[Segment], first: Segment) -> None:
        """The oldest segments are gone, and `first` comes first now."""
        if self.place.segment in gone:
            self.place = self.place._replace(segment=first, byte=0)


def _moved(place: Place, replaced: dict[Segment, Segment | None], end: Place) -> Place:
    if place.segment not in replaced:
        return place
    left = replaced[place.segment]
    if left is None:  # no record is between it and the end
        return Place(place.offset, end.segment, 0)
    return place._replace(segment=left)
