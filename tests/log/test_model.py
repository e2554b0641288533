"""A log under random use, crashes and restarts is at all times the same as a plain list.

The model knows what was written, what was cut off again, and what has to survive: all of it when the
process dies, all that was synced when the machine does. Some of the time the log is a replica's, and
what is above its high watermark is not shown.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import ApiError, ErrorCode
from penstock.log import PartitionLog, TimestampOffset
from penstock.log.checkpoint import FILE_NAME
from penstock.records.batch import read_header
from penstock.records.decode import Record, records_of
from tests.log.support import (
    NOW_MS,
    Disk,
    all_bytes,
    append_bytes,
    batch,
    cut,
    from_producer,
    placed,
    read_bytes,
    split,
    zero,
)

SECOND_MS = 1000
SIZES = st.integers(1, 3000)
COUNTS = st.integers(1, 5)
# Around the clock, and often out of order.
TIMES = st.integers(NOW_MS - 50 * SECOND_MS, NOW_MS + 50 * SECOND_MS)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-log-"))
        self.batches: list[bytes] = []  # of the whole log, by offset
        self.start = 0
        self.end = 0
        self.sequence = 0
        self.remembered: deque[int] = deque(maxlen=5)  # offsets of the producer's last batches
        self.epoch = 0
        self.high_watermark: int | None = None  # None: not tracked
        self.high_watermark_max = 0  # no recovery may come back with more

    def teardown(self) -> None:
        self.disk.kill()
        shutil.rmtree(self.root)

    @initialize(
        segment_bytes=st.sampled_from([1024, 5000, 20_000]),
        index_interval_bytes=st.sampled_from([0, 100, 1000]),
    )
    def open(self, **topic: Any) -> None:
        self.disk = Disk(self.root / "topic" / "0", **topic)

    # Writing

    @rule(count=COUNTS, value_bytes=SIZES, timestamp=TIMES, codec=st.integers(0, 4))
    def append(self, count: int, value_bytes: int, timestamp: int, codec: int) -> None:
        self._appended(batch(count, value_bytes=value_bytes, timestamp=timestamp, codec=codec))

    @rule(count=COUNTS)
    def append_idempotent(self, count: int) -> None:
        self._appended(from_producer(self.sequence, count))
        self.sequence += count
        self.remembered.append(self.end - count)

    @rule(count=st.integers(5, 40), timestamp=TIMES)
    def append_many(self, count: int, timestamp: int) -> None:
        for i in range(count):
            self._appended(batch(timestamp=timestamp + i % 7, value_bytes=60))

    @rule(
        counts=st.lists(COUNTS, min_size=1, max_size=6),
        gap=st.sampled_from([0, 0, 0, 7]),
        value_bytes=SIZES,
        timestamp=TIMES,
    )
    def append_fetched(self, counts: list[int], gap: int, value_bytes: int, timestamp: int) -> None:
        """Batches of the leader's, the first of them perhaps behind offsets that it lost."""
        base = self.end + gap
        fetched: list[bytes] = []
        for count in counts:
            produced = batch(count, value_bytes=value_bytes, timestamp=timestamp)
            fetched.append(bytes(placed(produced, base, self.epoch)))
            base += count
        assert self.disk.log.append_fetched(memoryview(b"".join(fetched))) == base
        self.batches += fetched
        self.end = base

    @rule()
    def append_damaged(self) -> None:
        damaged = placed(batch(2, value_bytes=50), self.end, self.epoch)
        damaged[-1] ^= 1
        with pytest.raises(ApiError):
            self.disk.log.append_fetched(damaged)

    @rule(by=st.integers(1, 3))
    def begin_epoch(self, by: int) -> None:
        self.epoch += by
        self.disk.log.begin_epoch(self.epoch)

    # Being a replica

    @rule(data=st.data())
    def track(self, data: st.DataObject) -> None:
        self._set_high_watermark(data)
        assert self.high_watermark is not None
        self.disk.log.track_high_watermark(self.high_watermark)

    @precondition(lambda self: self.high_watermark is not None)
    @rule(data=st.data())
    def move_high_watermark(self, data: st.DataObject) -> None:
        self._set_high_watermark(data)
        assert self.high_watermark is not None
        self.disk.log.set_high_watermark(self.high_watermark)

    def _set_high_watermark(self, data: st.DataObject) -> None:
        low = max(self.start, self.high_watermark or 0)
        ends = {read_header(item).last_offset + 1 for item in self.batches} | {self.end}
        self.high_watermark = data.draw(st.sampled_from(sorted(e for e in ends if e >= low)))
        self.high_watermark_max = max(self.high_watermark_max, self.high_watermark)

    @rule(data=st.data(), in_thread=st.booleans())
    def truncate(self, data: st.DataObject, in_thread: bool) -> None:
        bases = {read_header(item).base_offset for item in self.batches}
        ends = sorted(base for base in bases if base >= self.start)
        end = data.draw(st.sampled_from([*ends, self.end]))
        lost = self._has_of_producer_from(end)
        plan = self.disk.log.truncate(end)
        if plan is not None and in_thread:
            plan.run()
        self.batches = [item for item in self.batches if read_header(item).base_offset < end]
        self.end = end
        self._lower_high_watermark(end)
        self._check_producer_after_cut(end, lost)

    def _has_of_producer_from(self, end: int) -> bool:
        """Also if a power cut took what was remembered of them: the log may have found it again."""
        headers = map(read_header, self.batches)
        there = [header.base_offset for header in headers if header.producer_id >= 0]
        return any(base >= end for base in (*self.remembered, *there))

    def _check_producer_after_cut(self, end: int, lost: bool) -> None:
        kept = [base for base in self.remembered if base < end]
        producers = self.disk.log.active_producers()
        if kept or (lost and producers):
            self.sequence = producers[0].last_sequence + 1
        if kept:
            sent = [read_header(x) for x in self.batches if read_header(x).producer_id >= 0]
            assert self.sequence == sent[-1].base_sequence + sent[-1].record_count
        elif lost and not producers:
            self.sequence = 0
        self.remembered = deque(kept, maxlen=5)

    @rule(data=st.data())
    def restart_at(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(max(0, self.start - 3), self.end + 20))
        self.disk.log.restart_at(at)
        self.batches = []
        self.start = self.end = at
        self.sequence = 0
        self.remembered.clear()
        self.high_watermark = None if self.high_watermark is None else at
        self.high_watermark_max = at

    def _lower_high_watermark(self, end: int) -> None:
        self.high_watermark_max = min(self.high_watermark_max, end)
        if self.high_watermark is not None:
            self.high_watermark = min(self.high_watermark, end)

    @property
    def readable_end(self) -> int:
        return self.end if self.high_watermark is None else self.high_watermark

    def _started(self) -> PartitionLog:
        """What a restart of the process leaves."""
        log = self.disk.log
        self.high_watermark = None
        assert log.recovered_high_watermark <= max(self.high_watermark_max, self.start)
        log.leader_epoch = self.epoch
        return log

    @precondition(lambda self: self.remembered)
    @rule()
    def repeat(self) -> None:
        last = next(data for data in reversed(self.batches) if read_header(data).producer_id >= 0)
        header = read_header(last)
        again = self.disk.log.append(memoryview(bytearray(last)))
        assert again.base_offset == header.base_offset
        assert self.disk.log.log_end_offset == self.end

    def _appended(self, produced: memoryview) -> None:
        size = len(produced)
        appended = self.disk.log.append(produced)
        assert appended.base_offset == self.end
        assert len(produced) == size
        self.batches.append(bytes(produced))
        self.end = appended.end_offset

    # Reading

    @precondition(lambda self: self.readable_end > self.start)
    @rule(data=st.data(), bytes_max=st.sampled_from([0, 1, 100, 1000, 5000, 1 << 20]))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        offset = data.draw(st.integers(self.start, self.readable_end - 1))
        found = split(read_bytes(self.disk.log, offset, bytes_max))
        expected = [item for item in self._readable() if read_header(item).last_offset >= offset]
        assert found == expected[: len(found)]
        assert found or not expected, "the first batch is always there"
        assert len(found) <= 1 or sum(map(len, found)) <= bytes_max

    @rule()
    def read_as_a_replica(self) -> None:
        expected = [x for x in self.batches if read_header(x).last_offset >= self.start]
        assert all_bytes(self.disk.log) == expected

    @rule(beyond=st.integers(1, 100))
    def read_outside(self, beyond: int) -> None:
        for offset in (self.readable_end, self.end):
            assert self.disk.log.read(offset, 1000) is None
        for offset in (self.start - beyond, self.end + beyond):
            with pytest.raises(ApiError) as refused:
                self.disk.log.read(offset, 1000)
            assert refused.value.code is ErrorCode.offset_out_of_range

    @rule(timestamp=TIMES)
    def find_time(self, timestamp: int) -> None:
        expected = next((r for r in self._records() if r.timestamp >= timestamp), None)
        assert self._place(self.disk.log.find_timestamp(timestamp)) == self._place(expected)

    @rule()
    def find_newest(self) -> None:
        expected = max(self._records(), key=lambda r: (r.timestamp, -r.offset), default=None)
        assert self._place(self.disk.log.max_timestamp()) == self._place(expected)

    @staticmethod
    def _place(found: TimestampOffset | Record | None) -> tuple[int, int] | None:
        if found is None:
            return None
        at = found.timestamp if isinstance(found, Record) else found.timestamp_ms
        return found.offset, at

    def _records(self) -> list[Record]:
        return [r for data in self._readable() for r in records_of(data) if r.offset >= self.start]

    def _readable(self) -> list[bytes]:
        return [x for x in self.batches if read_header(x).last_offset < self.readable_end]

    # Deleting

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.readable_end))
        assert self.disk.log.delete_records_before(offset) == max(offset, self.start)
        self.start = max(offset, self.start)
        self.disk.checkpoint(durable=True)

    @rule(keep=st.one_of(st.none(), st.integers(0, 60_000)), seconds=st.sampled_from([0, 30, 200]))
    def apply_retention(self, keep: int | None, seconds: int) -> None:
        """Whatever it takes away, it is whole segments from the start, and only from there."""
        log = self.disk.log
        self.disk.clock.advance(seconds)
        log.reconfigure(
            type(log.config)(
                segment_bytes=log.config.segment_bytes,
                index_interval_bytes=log.config.index_interval_bytes,
                retention_ms=100 * SECOND_MS,
                retention_bytes=-1 if keep is None else keep,
                message_timestamp_after_max_ms=10**12,
            )
        )
        removal = log.expire_segments()
        if removal is not None:
            self.disk.checkpoint(durable=True)
            removal.run()
        assert self.start <= log.log_start_offset <= max(self.start, self.readable_end)
        self.start = log.log_start_offset
        assert self.disk.segments()[0] <= self.start

    # Surviving

    @rule(durable=st.booleans())
    def checkpoint(self, durable: bool) -> None:
        self.disk.checkpoint(durable=durable)

    @rule()
    def sync(self) -> None:
        self.disk.sync()
        assert self.disk.log.durable_offset == self.end

    @rule()
    def restart(self) -> None:
        self.disk.restart()
        self._started()

    @rule()
    def kill(self) -> None:
        self.disk.restart_after_kill()
        self._started()

    @rule(garbage=st.one_of(st.binary(min_size=1, max_size=200), st.just(bytes(5000))))
    def kill_with_garbage_behind(self, garbage: bytes) -> None:
        self.disk.kill()
        append_bytes(self.disk.segment(self.disk.segments()[-1]), garbage)
        self.disk.start()
        self._started()

    @rule(data=st.data())
    def kill_within_a_write(self, data: st.DataObject) -> None:
        """The last write was cut short; nobody was told that it was there."""
        torn = batch(3, value_bytes=100)
        self.disk.log.append(torn)
        self.disk.kill()
        path = self.disk.segment(self.disk.segments()[-1])
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.truncate(size - data.draw(st.integers(1, len(torn))))
        self.disk.start()
        self._started()
        if self.disk.log.log_end_offset != self.end:  # it had a segment of its own
            raise AssertionError("offsets of a torn batch were used")

    @rule(data=st.data(), share=st.floats(0, 1), keeps_checkpoint=st.booleans())
    def cut_power(self, data: st.DataObject, share: float, keeps_checkpoint: bool) -> None:
        """Any part of what was not synced is lost, from some byte on; so may be any index."""
        durable = max(self.disk.log.durable_offset, self.disk.segments()[0])
        synced = sum(read_header(item).base_offset < durable for item in self.batches)
        kept = synced + round(share * (len(self.batches) - synced))
        self.disk.cut_power()
        if kept < len(self.batches):
            self._lose(data, kept)
            self.remembered.clear()
        for path in sorted(self.disk.directory.glob("*index")):
            if int(path.stem) >= self.disk.segments()[-1] and data.draw(st.booleans()):
                path.write_bytes(bytes(path.stat().st_size // 2))
        if not keeps_checkpoint and self.start <= self.disk.segments()[0]:
            (self.disk.directory / FILE_NAME).unlink(missing_ok=True)
            self.remembered.clear()
        self.disk.start()
        log = self._started()
        self.batches = self.batches[:kept]
        end = read_header(self.batches[-1]).last_offset + 1 if kept else 0
        assert log.log_end_offset == end or log.log_end_offset in self.disk.segments()
        self.end = log.log_end_offset
        self._lower_high_watermark(self.end)
        self._recall_producer()

    def _lose(self, data: st.DataObject, kept: int) -> None:
        """Bytes from somewhere in the first batch that is not kept on, in all files behind it, too."""
        first_lost = read_header(self.batches[kept]).base_offset
        *_, segment = (base for base in self.disk.segments() if base <= first_lost)
        position = sum(
            len(item) for item in self.batches[:kept] if read_header(item).base_offset >= segment
        )
        last_byte = (
            len(self.batches[kept].rstrip(b"\0")) - 1
        )  # without it, zeros take something away
        position += data.draw(st.integers(0, last_byte))
        path = self.disk.segment(segment)
        if data.draw(st.booleans()):
            zero(path, position)
        else:
            cut(path, position)
        for base in self.disk.segments():
            if base > segment:
                how = data.draw(st.sampled_from(["gone", "empty", "zeros"]))
                if how == "gone":
                    self.disk.segment(base).unlink()
                elif how == "empty":
                    cut(self.disk.segment(base), 0)
                else:
                    zero(self.disk.segment(base))

    def _recall_producer(self) -> None:
        sent = [read_header(item) for item in self.batches if read_header(item).producer_id >= 0]
        self.sequence = sent[-1].base_sequence + sent[-1].record_count if sent else 0

    @rule(where=st.sampled_from(["index", "timeindex"]), how=st.sampled_from(["gone", "zero"]))
    def lose_indexes(self, where: str, how: str) -> None:
        """Indexes of sealed segments are hints: they may vanish, or be zeroed, at any time."""
        self.disk.stop()
        for path in sorted(self.disk.directory.glob(f"*.{where}"))[:-1]:
            if how == "gone":
                path.unlink()
            else:
                path.write_bytes(bytes(path.stat().st_size))
        self.disk.start()
        self._started()

    @invariant()
    def is_as_long_as_the_model(self) -> None:
        if hasattr(self, "disk"):
            log = self.disk.log
            assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
            assert log.durable_offset <= self.end
            assert log.high_watermark == self.readable_end
            last = read_header(self.batches[-1]) if self.batches else None
            if last is not None and last.last_offset >= self.start:
                assert log.last_epoch() == last.leader_epoch


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
