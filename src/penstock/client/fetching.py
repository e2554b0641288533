"""Ranges of partitions, read at the speed of the network: whole batches out, nothing per record.

The request for what comes next leaves as soon as an answer is there, before anyone looks at it, so the
broker works while the caller does. A thread receives ahead of the caller, up to a bound; but what is read
from files of this machine is at hand, and best read when it is used, in pieces that stay in a cache.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from penstock.client.buffers import BufferPool
from penstock.client.cluster import EARLIEST, LATEST, Cluster
from penstock.client.errors import (
    BadAnswer,
    BrokerError,
    ClientError,
    LogEndsEarly,
    OffsetOutOfRange,
    broker_error,
    error_code,
)
from penstock.client.fetch_codec import PartitionData, Whole, whole_batches
from penstock.client.fetch_connection import FetchConnection
from penstock.client.retrying import Retry
from penstock.errors import ErrorCode
from penstock.model import TopicPartition

Isolation = Literal["read_uncommitted", "read_committed"]

FETCH_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 2 << 20
_LAST_FETCH_BYTES_MIN: Final = 64 << 10
_EMPTY_PAUSE_S: Final = 0.1
_JOIN_TIMEOUT_S: Final = 2.0  # a thread that is just connecting ends when that has ended
# So many answers without a record, from a broker whose log goes on: were the records compacted away?
_EMPTY_ANSWERS_MAX: Final = 4


class Fetched(NamedTuple):
    """Whole batches as the broker keeps them, none of which begins at or behind the range's end.

    The first may begin before the position that was asked for, the last may end behind the range's end.
    `data` is the caller's, to keep for as long as it is needed and to write to: its memory is used again when
    no view is left.
    """

    data: memoryview
    aborted: list[tuple[int, int]]  # producer id and first offset of aborted transactions
    log_start: int  # -1: the broker is too old to tell
    high_watermark: int
    next_offset: int  # where the next one goes on; at most the range's end


class RangeReader:
    """Reads [start, end) of one partition, once: iterate over it, and `close` it if you stop early.

    `fetch_bytes` is what comes at once, at most; a batch that is larger comes whole. `prefetch` answers
    wait for the caller at most, so memory is bounded by about (prefetch + 2) × fetch_bytes. With 0 there
    is no thread, and an answer is received when it is asked for. `reads_files`: records of a broker on
    this machine are read from its files, if it knows how to tell where they are.

    What passes (leader moved, connection lost, broker restarted) is tried again for the cluster's
    `retry_timeout_ms`. If the log ends before `end`, the reader waits `wait_ms` for it to grow, then
    raises `LogEndsEarly`. So it does if the log goes on, but no record comes: only in a compacted topic
    may there be none. Offsets that were deleted raise `OffsetOutOfRange`.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        fetch_bytes: int = FETCH_BYTES,
        prefetch: int = 2,
        isolation: Isolation = "read_uncommitted",
        wait_ms: int | None = None,
        reads_files: bool = True,
    ) -> None:
        self.partition = partition
        self._stop = threading.Event()
        self._source = _Source(
            cluster,
            partition,
            start,
            end,
            fetch_bytes=fetch_bytes,
            kept_max=prefetch + 3,
            is_committed=isolation == "read_committed",
            wait_ms=cluster.network.retry_timeout_ms if wait_ms is None else wait_ms,
            reads_files=reads_files,
            stop=self._stop,
        )
        self._ahead = _Ahead(self._source, prefetch) if prefetch else None

    def __iter__(self) -> Iterator[Fetched]:
        step = self._source.step
        try:
            while (fetched := step()) is not None:
                if self._ahead is not None and self._source.is_sent_more:
                    self._ahead.start()  # from now on it is the one who uses the source
                    step = self._ahead.step
                yield fetched
                del fetched  # or it would keep its buffer from being used again
        finally:
            self.close()

    def close(self) -> None:
        """End the thread and the connection. May be repeated, from any thread."""
        self._stop.set()
        self._source.close()
        if self._ahead is not None:
            self._ahead.close()


class _Ahead:
    """A thread that takes steps of a source ahead of its caller, `depth` of them at most."""

    def __init__(self, source: _Source, depth: int) -> None:
        self._source = source
        self._depth = depth
        self._changed = threading.Condition()
        self._ready: deque[Fetched | BaseException | None] = deque()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """May be repeated. Not when it is made: a process that is forked in between has its own."""
        if self._thread is None:
            name = f"read ahead {self._source.partition}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def step(self) -> Fetched | None:
        with self._changed:
            while not self._ready:
                if self._is_closed:
                    return None
                self._changed.wait()
            found = self._ready.popleft()
            self._changed.notify_all()
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self) -> None:
        while True:
            found: Fetched | BaseException | None
            try:
                found = self._source.step()
            except BaseException as error:
                found = error
            is_last = not isinstance(found, Fetched)
            with self._changed:
                while len(self._ready) >= self._depth and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                self._ready.append(found)
                self._changed.notify_all()
            if is_last:
                return
            del found

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT_S)


class _Source:
    """The range, step by step, in whatever thread asks. `stop` ends its pauses."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        fetch_bytes: int,
        kept_max: int,
        is_committed: bool,
        wait_ms: int,
        reads_files: bool,
        stop: threading.Event,
    ) -> None:
        self.partition = partition
        self._cluster = cluster
        self._position = start
        self._end = end
        self._fetch_bytes = fetch_bytes
        self._wait_ms = wait_ms
        self._stop = stop
        self._connection = FetchConnection(
            cluster,
            partition,
            BufferPool(kept_max),
            is_committed=is_committed,
            reads_files=reads_files,
            stop=stop,
        )
        self._retry = Retry(f"reading {partition}", cluster.network.retry_timeout_ms, stop)
        self._seen_offsets = self._seen_bytes = 0
        self._bytes_min = 0  # the size of the next batch, if less than that was asked for
        self._empty_since = 0.0
        self._empty_answers = 0
        self._not_compacted = ""  # how we know; empty: nobody was asked yet

    @property
    def is_sent_more(self) -> bool:
        """Whether more is to come, and not from a file, as far as what came last tells."""
        return self._position < self._end and not self._connection.reads_files

    def close(self) -> None:
        self._connection.close()

    def step(self) -> Fetched | None:
        """What comes next; None at the end of the range, or after `close`."""
        while self._position < self._end and not self._stop.is_set():
            try:
                answer = self._connection.fetch(
                    self._position,
                    self._likely_left(self._fetch_bytes),
                    self._likely_left(min(self._fetch_bytes, _PIECE_BYTES)),
                )
                fetched = self._take(answer)
            except ClientError as error:
                if self._stop.is_set():
                    return None
                self._connection.drop()
                self._retry.pause(error)
                continue
            self._retry.succeeded()
            if fetched is not None:
                return fetched
        self._connection.close()
        self._connection.close_files()
        return None

    def _likely_left(self, bytes_max: int) -> int:
        """Not much more than what is left of the range, as far as what came so far tells."""
        if self._seen_offsets:
            left = (self._end - self._position) * self._seen_bytes // self._seen_offsets
            bytes_max = min(bytes_max, left + left // 8 + _LAST_FETCH_BYTES_MIN)
        return max(bytes_max, self._bytes_min)

    def _take(self, answer: PartitionData) -> Fetched | None:
        """What an answer holds for the caller, None if nothing. The position moves behind it."""
        if answer.error_code:
            self._refuse(error_code(answer.error_code))
        whole = self._whole(answer.records)
        if whole.missing:
            self._bytes_min = self._checked_size(answer, whole.missing)
            return None
        self._bytes_min = 0
        if whole.next_offset == self._position:
            self._wait_for_more(answer)
            return None
        self._empty_answers = 0
        self._seen_offsets += whole.next_offset - self._position
        self._seen_bytes += whole.size
        self._position = whole.next_offset
        if self._position < self._end:
            self._connection.go_on(whole.size, self._position, self._likely_left(self._fetch_bytes))
        return Fetched(
            answer.records[: whole.size],
            answer.aborted,
            answer.log_start,
            answer.high_watermark,
            whole.next_offset,
        )

    def _checked_size(self, answer: PartitionData, size: int) -> int:
        """Of a first batch that did not come whole. An old broker may cut it; a file has all of it."""
        if answer.reference is not None and size > answer.reference.size:
            raise BadAnswer(
                f"{self._connection.broker} told of {answer.reference.size} bytes of {self.partition}, "
                f"but the batch at offset {self._position} has {size}"
            )
        return size

    def _whole(self, records: memoryview) -> Whole:
        try:
            return whole_batches(records, self._position, self._end)
        except ValueError as error:
            raise BadAnswer(
                f"{self._connection.broker} sent bytes that are no record batches for "
                f"{self.partition} at offset {self._position}: {error}"
            ) from error

    def _refuse(self, code: ErrorCode) -> None:
        what = f"{self._connection.broker} refused to read {self.partition}"
        if code is ErrorCode.offset_out_of_range:
            self._check_range()
            raise BrokerError(ErrorCode.offset_not_available, what)  # it is there: ask again
        raise broker_error(code, what)

    def _check_range(self) -> None:
        earliest = self._cluster.offsets({self.partition: EARLIEST})[self.partition] or 0
        latest = self._cluster.offsets({self.partition: LATEST})[self.partition] or 0
        if not earliest <= self._position <= latest:
            raise OffsetOutOfRange(self.partition, self._position, earliest, latest)

    def _wait_for_more(self, answer: PartitionData) -> None:
        """There was no record, after the broker has waited for one itself."""
        now = time.monotonic()
        if not self._empty_answers:
            self._empty_since = now
        self._empty_answers += 1
        readable = self._connection.readable_end(answer)
        is_over = now - self._empty_since >= self._wait_ms / 1000
        if readable < self._end or answer.throttle_ms:
            if is_over:
                raise self._ends_early(answer, readable)
        elif is_over or self._empty_answers >= _EMPTY_ANSWERS_MAX:
            if self._is_compacted():
                self._position = self._end
                return
            if is_over:
                raise self._held_back(readable)
        self._stop.wait(_EMPTY_PAUSE_S)

    def _is_compacted(self) -> bool:
        """Asks once. If nobody tells, it is not: a false alarm is better than records lost in silence."""
        if not self._not_compacted:
            try:
                if self._cluster.is_compacted(self.partition.topic):
                    return True
                self._not_compacted = "the topic is not compacted"
            except ClientError as error:
                self._not_compacted = f"whether it is compacted, nobody tells: {error.message}"
        return False

    def _held_back(self, readable: int) -> LogEndsEarly:
        return LogEndsEarly(
            f"{self._connection.broker} says that {self.partition} goes on to offset {readable}, but had "
            f"no record of [{self._position}, {self._end}) for {self._wait_ms / 1000:g} s; is its "
            f"storage slow, or has it lost them? ({self._not_compacted})"
        )

    def _ends_early(self, answer: PartitionData, readable: int) -> LogEndsEarly:
        why = "is the range from another topic of that name, or was the log cut back?"
        if readable < answer.high_watermark:
            why = "a transaction that is still open holds back what follows; end it, or read_uncommitted"
        return LogEndsEarly(
            f"{self.partition} was to be read to offset {self._end}, but at "
            f"{self._connection.broker} it ends at {readable}, and nothing came for "
            f"{self._wait_ms / 1000:g} s; {why}"
        )
