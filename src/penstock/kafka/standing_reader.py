"""Readers that ask for everything each time: what changed between two requests is all that costs.

librdkafka and most clients that are not Java's use no fetch sessions: they name all of their partitions in
every request, and every answer has to mention all of them. But nearly all of a request's bytes, and of
the answer's, are those of the one before. So a connection keeps the reader of its last fetch, with the bytes
that named each partition and the bytes that tell of it when there are no records. A request is compared
with the one before, as bytes; only partitions that are named otherwise are read, and only those that have
news are looked at, in turn, as in a session. Of the others the answer says again what it said last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.broker.fetching import Directory, Position, Reader
from penstock.broker.topics import Partition
from penstock.errors import ApiError
from penstock.kafka.fetch_codec import FetchPartition, PackedPartitions
from penstock.kafka.primitives import Topic
from penstock.log import PartitionLog

# Of all connections, some 0.5 KB each; who comes then is read anew each time.
POSITIONS_MAX: Final = 500_000


class StandingPosition(Position):
    """With how the client names it, and what is said of it when there are no records."""

    __slots__ = ("named", "quiet")

    def __init__(self, key: Any, partition: Partition | ApiError) -> None:
        super().__init__(key, partition)
        self.named = b""
        self.quiet = b""  # empty: not known, or not any more


class StandingPositions:
    """How many there are, on all connections of a broker."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class StandingReader(Reader):
    """One connection's. `form` is what the bytes of an answer depend on besides what they tell."""

    __slots__ = ("_all", "_counted", "_named", "asked", "form")

    position_type: ClassVar[type[Position]] = StandingPosition

    def __init__(self, directory: Directory, form: object, everybodys: StandingPositions) -> None:
        super().__init__(directory)
        self.form = form
        self.asked: list[tuple[Topic, list[StandingPosition]]] = []  # by the last request
        self._named: dict[Topic, dict[bytes, StandingPosition]] = {}
        self._all = everybodys
        self._counted = 0  # of them, ours
        self.follow()

    def ask(self, topics: Sequence[tuple[Topic, Sequence[FetchPartition]]]) -> bool:
        """Take the positions that a request names. False if this reader is not for such a request."""
        count = sum(len(partitions) for _, partitions in topics)
        if self._all.count - self._counted + count > POSITIONS_MAX:
            return False
        merged: dict[Topic, PackedPartitions] = {}
        for topic, partitions in topics:
            if not isinstance(partitions, PackedPartitions):
                return False
            # librdkafka begins at another partition each time, and may come back to that one's topic.
            merged.setdefault(topic, partitions.none()).packed.extend(partitions.packed)
        asked = []
        for topic, packed in merged.items():
            positions = self._positions_of(topic, packed)
            if positions is None:
                return False
            asked.append((topic, positions))
        if self._named.keys() != merged.keys():
            self._forget_topics(merged)
        self.asked = asked
        self._all.count += count - self._counted
        self._counted = count
        return True

    def _positions_of(
        self, topic: Topic, partitions: PackedPartitions
    ) -> list[StandingPosition] | None:
        """Those of a topic, in the order asked; None if one is named twice."""
        asked = set(partitions.packed)
        named = self._named.setdefault(topic, {})
        positions: list[Any] = list(map(named.get, partitions.packed))
        if None in positions:
            for index, position in enumerate(positions):
                if position is None:
                    positions[index] = self._move(topic, named, partitions, index)
        if named.keys() != asked:
            for gone in named.keys() - asked:
                self.remove(named.pop(gone).key)
        return positions if len(named) == len(positions) else None

    def _move(
        self,
        topic: Topic,
        named: dict[bytes, StandingPosition],
        partitions: PackedPartitions,
        index: int,
    ) -> StandingPosition:
        asked = partitions[index]
        position = self.position((topic, asked.partition))
        assert isinstance(position, StandingPosition)
        named.pop(position.named, None)
        position.named = partitions.packed[index]
        named[position.named] = position
        position.stand(asked.offset, asked.bytes_max, asked.leader_epoch, asked.last_fetched_epoch)
        return position

    def _forget_topics(self, asked: dict[Topic, PackedPartitions]) -> None:
        for topic in self._named.keys() - asked.keys():
            for position in self._named.pop(topic).values():
                self.remove(position.key)

    def _on_growth(self, log: PartitionLog, size: int) -> None:
        position = self._by_log.get(log)
        if size == 0 and isinstance(position, StandingPosition):
            position.quiet = b""
        super()._on_growth(log, size)

    def _look_up_again(self) -> None:
        super()._look_up_again()
        for _, positions in self.asked:
            for position in positions:
                if position.told_high_watermark < 0:
                    position.quiet = b""

    def close(self) -> None:
        self._all.count -= self._counted
        self._counted = 0
        self._named.clear()
        self.asked = []
        super().close()
