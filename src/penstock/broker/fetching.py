"""Reading many partitions at once, and waiting for them without polling.

A `Reader` is somebody who reads: one fetch, or a fetch session that lives as long as its client wants
it to. It holds a position in each of its partitions and is told by their logs when they grow, so it
only ever looks at partitions that may have something new: a reader of a thousand quiet partitions
costs nothing, and an append costs one note for each reader that has read everything before it. A
reader that nobody waits for is told once and then left alone until it has looked, so a session whose
client died costs nothing either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple, Protocol

from penstock.broker.topics import Partition
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.log import ColdRead, FileSlice, PartitionLog


class Directory(Protocol):
    """Where a reader finds its partitions."""

    deletions: int  # how many topics have been deleted: when it changes, positions may be void

    def resolve(self, key: Any) -> Partition | ApiError:
        """The partition that a key names now, or why there is none."""


class Position:
    """Where a reader stands in one partition, and what it was told last."""

    __slots__ = (
        "bytes_max",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log",
        "offset",
        "partition",
        "told_high_watermark",
        "told_log_start",
    )

    def __init__(self, key: Any, partition: Partition | ApiError) -> None:
        self.key: Any = key  # whatever the front door calls this partition
        self.partition = partition  # or why there is none
        self.log: PartitionLog | None = None  # the one that tells the reader when it grows
        self.offset = 0
        self.bytes_max = 0
        self.leader_epoch = -1  # -1: the reader does not know
        self.last_fetched_epoch = -1
        self.told_high_watermark = -1
        self.told_log_start = -1

    def stand(
        self, offset: int, bytes_max: int, leader_epoch: int, last_fetched_epoch: int
    ) -> None:
        self.offset = offset
        self.bytes_max = max(0, bytes_max)
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch


class Found(NamedTuple):
    """What a partition had for its reader."""

    position: Position
    error: ApiError | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    records: FileSlice | ColdRead | None = None
    diverging: tuple[int, int] | None = None
    end: int = -1  # of what this reader may read
    allowed: int = 0  # bytes that its limits leave it

    @property
    def size(self) -> int:
        return self.records.size if isinstance(self.records, FileSlice) else 0

    @property
    def available(self) -> int:
        """How many bytes there are for the reader within its limits, of whole batches or not."""
        if isinstance(self.records, FileSlice):
            return max(self.size, self.allowed) if self.records.has_more else self.size
        return max(self.allowed, 0) if self.end > self.position.offset else 0


class Reader:
    """Positions in partitions, and which of them may have news. Lives on one event loop.

    Invariant: while following, every position is in `_ready`, or attached to its log, or both.
    """

    __slots__ = (
        "_by_log",
        "_bytes_missing",
        "_deletions_seen",
        "_directory",
        "_is_following",
        "_on_enough",
        "_positions",
        "_ready",
        "left_out_bytes",
    )

    position_type: ClassVar[type[Position]] = Position

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._deletions_seen = directory.deletions
        self._positions: dict[Hashable, Position] = {}
        self._by_log: dict[PartitionLog, Position] = {}
        self._ready: dict[Position, None] = {}  # may have something new; in the order to look
        self._is_following = False
        self._on_enough: Callable[[], None] | None = None
        self._bytes_missing = 0
        # What is there and did not fit, of a partition of which there is nothing else to be told.
        self.left_out_bytes = 0

    def __len__(self) -> int:
        return len(self._positions)

    def position(self, key: Hashable) -> Position:
        """The position in this partition, to be set by the caller; looked at next time."""
        position = self._positions.get(key)
        if position is None:
            found = self._directory.resolve(key)
            position = self._positions[key] = self.position_type(key, found)
        self._ready[position] = None
        return position

    def remove(self, key: Hashable) -> None:
        position = self._positions.pop(key, None)
        if position is not None:
            self._ready.pop(position, None)
            self._detach(position)

    def close(self) -> None:
        """Stop being told. Idempotent."""
        for log in self._by_log:
            self._unsubscribe(log)
        self._by_log.clear()
        self._positions.clear()
        self._ready.clear()
        self._on_enough = None

    # Being told

    def follow(self) -> None:
        """Be told by the logs from now on when they grow. Without it, only `collect` looks."""
        if not self._is_following:
            self._is_following = True
            for position in self._positions.values():
                if position not in self._ready:
                    self._attach(position)

    def when_grown(self, by_bytes: int, on_enough: Callable[[], None]) -> None:
        """Call `on_enough` once, when this many more bytes have been appended."""
        self.follow()
        for position in self._ready:
            self._attach(position)
        self._bytes_missing = by_bytes
        self._on_enough = on_enough

    def stop_waiting(self) -> None:
        self._on_enough = None

    def _attach(self, position: Position) -> None:
        if position.log is None and not isinstance(position.partition, ApiError):
            try:
                log = position.partition.log
            except ApiError:
                return  # reported when it is looked at
            position.log = log
            self._by_log[log] = position
            self._subscribe(log)

    def _detach(self, position: Position) -> None:
        if position.log is not None:
            del self._by_log[position.log]
            self._unsubscribe(position.log)
            position.log = None

    def _subscribe(self, log: PartitionLog) -> None:
        log.subscribers[self._on_growth] = None

    def _unsubscribe(self, log: PartitionLog) -> None:
        log.subscribers.pop(self._on_growth, None)

    def _on_growth(self, log: PartitionLog, size: int) -> None:
        """So many more bytes may be read; 0: something else has changed, so look at once."""
        if not self._note(log):
            return
        self._bytes_missing -= size
        if self._on_enough is not None and (self._bytes_missing <= 0 or size == 0):
            on_enough, self._on_enough = self._on_enough, None
            on_enough()

    def _note(self, log: PartitionLog) -> bool:
        """The log has news; whether somebody waits for them."""
        position = self._by_log.get(log)
        if position is None:
            return False  # it was let go of while the log told others
        self._ready[position] = None
        if self._on_enough is None:
            self._detach(position)  # until it has been looked at: that it grew is known now
            return False
        return True

    # Looking

    def collect(self, bytes_max: int, *, everything: bool) -> list[Found]:
        """What there is now, at most `bytes_max` of it, but for a first batch that is larger.

        Partitions with nothing new are left out unless `everything` is wanted. Once it is full, the rest
        is not looked at before the next time, when it comes first.
        """
        if self._deletions_seen != self._directory.deletions:
            self._look_up_again()
        found: list[Found] = []
        left = bytes_max
        has_records = False
        self.left_out_bytes = 0
        for position in list(self._positions.values() if everything else self._ready):
            if left <= 0 and has_records and not everything:
                break
            item = self._look(position, left, must_fit=has_records)
            is_told = everything or _is_news(item)
            if item.records is not None:
                has_records = True
                left -= item.size or position.bytes_max
                # Others first next time, so that one busy partition cannot starve the rest.
                self._ready.pop(position, None)
                self._ready[position] = None
            elif item.error is not None:
                self._detach(position)  # it may be another log that it is served from next
                self._ready[position] = None
            elif item.diverging is None:
                if item.end > position.offset:
                    left = 0  # its next batch does not fit: full, so nobody else's is sought
                    self.left_out_bytes = 0 if is_told else item.available
                else:
                    if everything or not is_told:  # else it stays until it has been told
                        self._ready.pop(position, None)
                    if self._is_following:
                        self._attach(position)
            if is_told:
                found.append(item)
        return found

    def peek(self, position: Position) -> Found:
        """Where a partition begins and ends, or why nobody may know; without a look for records."""
        return self._look(position, 0, must_fit=True)

    def _look_up_again(self) -> None:
        """Topics were deleted: their names may mean nothing, or another topic, by now."""
        self._deletions_seen = self._directory.deletions
        for position in self._positions.values():
            current = self._directory.resolve(position.key)
            if current is not position.partition and not isinstance(position.partition, ApiError):
                self._detach(position)
                position.partition = current
                position.told_high_watermark = -1
                self._ready[position] = None

    def _look(self, position: Position, bytes_left: int, *, must_fit: bool) -> Found:
        if isinstance(position.partition, ApiError):
            position.partition = self._directory.resolve(position.key)
        partition = position.partition
        if isinstance(partition, ApiError):
            return Found(position, partition)
        try:
            log = partition.log
            partition.check_leader_epoch(position.leader_epoch)
            return self._look_into(position, log, bytes_left, must_fit=must_fit)
        except ApiError as error:
            if error.code is ErrorCode.offset_out_of_range and not partition.is_sure_to_lead():
                reason = f"another broker may lead {partition.topic_partition} by now"
                return Found(position, ApiError(ErrorCode.not_leader_or_follower, reason))
            # A new one: what was raised holds on to our callers, who hold what we return.
            return Found(position, ApiError(error.code, error.message))
        except OSError as error:  # no file descriptor left, for one
            reason = f"cannot read {partition.topic_partition}: {error}"
            return Found(position, StorageError(reason))

    def _look_into(
        self, position: Position, log: PartitionLog, bytes_left: int, *, must_fit: bool
    ) -> Found:
        """What the log has at the position. `ApiError` if that is no place to read from."""
        diverging = _diverging(position, log)
        records = None
        allowed = min(position.bytes_max, bytes_left)
        hw = end = log.high_watermark
        if diverging is None and (bytes_left > 0 or not must_fit):
            records = log.read(position.offset, allowed)
            if records is None:
                end = position.offset  # where the log ends, or a gap ends it
            records = fitting(records, allowed, must_fit=must_fit)
        return Found(position, None, hw, log.log_start_offset, records, diverging, end, allowed)


def fitting(
    records: FileSlice | ColdRead | None, allowed: int, *, must_fit: bool
) -> FileSlice | ColdRead | None:
    """A first batch may be larger than what is allowed, but not behind what others had."""
    if must_fit and isinstance(records, FileSlice) and records.size > allowed:
        return None
    return records


def _diverging(position: Position, log: PartitionLog) -> tuple[int, int] | None:
    """Where the reader's log and ours part, if what it read last is not in ours."""
    if position.last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.end_offset_for_epoch(position.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise ApiError(
            ErrorCode.offset_out_of_range,
            f"nothing is known here of leader epoch {position.last_fetched_epoch}",
        )
    if epoch < position.last_fetched_epoch or end_offset < position.offset:
        return epoch, end_offset
    return None


def _is_news(item: Found) -> bool:
    position = item.position
    return (
        item.error is not None
        or item.records is not None
        or item.diverging is not None
        or item.high_watermark != position.told_high_watermark
        or item.log_start_offset != position.told_log_start
    )


async def warm(found: list[Found], bytes_max: int) -> list[Found]:
    """The same with every cold read done, in threads, and within `bytes_max` as `collect` means it."""

    async def one(item: Found) -> Found:
        if not isinstance(item.records, ColdRead):
            return item
        try:
            return item._replace(records=await asyncio.to_thread(item.records.run))
        except ApiError as error:
            return Found(item.position, error)

    warmed = []
    left = bytes_max
    for item in await asyncio.gather(*(one(item) for item in found)):
        does_not_fit = item.size > left and left < bytes_max
        warmed.append(item._replace(records=None) if does_not_fit else item)
        left -= warmed[-1].size
    return warmed
