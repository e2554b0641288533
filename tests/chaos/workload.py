"""Stock clients that write and read while the cluster is hurt, and note what they are told.

    workload = Workload(bootstrap, topic, partitions=6, seed=1)
    workload.start()
    …                                # faults
    workload.wait_for_progress(15)   # every partition acknowledges something written from now on
    workload.stop()                  # producers end first, then readers have read everything
    workload.history()

Each client runs in a thread of its own, and writes only into its own notes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from tests.chaos.history import NO_EPOCH, History, Seen, Value
from tests.chaos.members import GroupNotes, Member
from tests.chaos.readers import AioReader, ConfluentReader, Reader
from tests.chaos.settings import CONNECTION
from tests.chaos.writers import OnceWriter, Writer

__all__ = ["Workload", "read_all"]

_PROGRESS_POLL_S: Final = 0.05


class Workload:
    """Writers, readers and one group on one topic."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        seed: int,
        writers: int = 4,
        records_per_s: int = 150,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._stop_writing, self._stop_reading = threading.Event(), threading.Event()
        chances = random.Random(seed)
        self.writers: list[Writer | OnceWriter] = [
            Writer(
                f"w{number}", bootstrap, topic, partitions, chances.randrange(2**32), records_per_s,
            )
            for number in range(writers)
        ]  # fmt: skip
        self.writers.append(
            OnceWriter("once", bootstrap, topic, partitions, chances.randrange(2**32))
        )
        self.readers: list[Reader] = [
            ConfluentReader("confluent", bootstrap, topic, partitions),
            AioReader("aiokafka", bootstrap, topic, partitions),
        ]
        self.group = f"group-of-{topic}"
        self._group_notes = GroupNotes()
        self.members = [
            Member(f"m{n}", bootstrap, topic, self.group, self._group_notes, chances.randrange(2**32))
            for n in range(2)
        ]  # fmt: skip
        self._writing = [
            _thread(writer.name, writer.run, self._stop_writing) for writer in self.writers
        ]
        self._reading = [
            *(_thread(reader.name, reader.run, self._stop_reading) for reader in self.readers),
            *(_thread(member.name, member.run, self._stop_reading) for member in self.members),
        ]

    def start(self) -> None:
        for thread in (*self._writing, *self._reading):
            thread.start()

    @property
    def acknowledged(self) -> int:
        return sum(writer.acknowledged for writer in self.writers)

    def wait_for_progress(self, timeout_s: float) -> None:
        """Return when every partition and every writer has got a record through that was sent from now on."""
        before = time.monotonic()
        deadline_s = before + timeout_s
        partitions, writers = set(range(self._partitions)), set(self.writers)
        while partitions or writers:
            for writer in self.writers:
                through = {p for p in range(self._partitions) if writer.has_through(p, before)}
                partitions -= through
                if through:
                    writers.discard(writer)
            if time.monotonic() > deadline_s:
                text = f"after {timeout_s:g} s nothing new is acknowledged"
                text += f" in partition(s) {sorted(partitions)}" if partitions else ""
                text += "".join(f" of {writer.describe()}" for writer in writers)
                raise TimeoutError(text)
            time.sleep(_PROGRESS_POLL_S)

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """Let writers have their answers, readers read what there is, and end all. May be repeated."""
        self._stop_writing.set()
        _join(self._writing, timeout_s)
        if not self._stop_reading.is_set():
            self._let_readers_finish(timeout_s)
        self._stop_reading.set()
        _join(self._reading, timeout_s)

    def abandon(self) -> None:
        """End as soon as possible: the run has failed."""
        self._stop_writing.set()
        self._stop_reading.set()

    def history(self) -> History:
        """What was noted; logs, leaders and disks are others' to add."""
        return History(
            sent=[sent for writer in self.writers for sent in writer.sent()],
            unordered=frozenset(name for w in self.writers if not w.is_ordered for name in w.names),
            seen={reader.name: reader.seen for reader in self.readers},
            positions_lost={reader.name: reader.positions_lost for reader in self.readers},
            epochs_asked={reader.name: reader.epochs_asked for reader in self.readers},
            group={member.name: member.events for member in self.members},
            group_end=self._committed(),
            final={
                partition: list(read_all(self._bootstrap, self._topic, partition))
                for partition in range(self._partitions)
            },
        )

    def _let_readers_finish(self, timeout_s: float) -> None:
        ends = {p: end_offset(self._bootstrap, self._topic, p) for p in range(self._partitions)}
        deadline_s = time.monotonic() + timeout_s
        for reader in self.readers:
            while any(reader.positions.get(p, 0) < end for p, end in ends.items()):
                if any(lost.epoch == NO_EPOCH for lost in reader.positions_lost):
                    break
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{reader.name} is at {reader.positions}, not {ends}")
                time.sleep(_PROGRESS_POLL_S)

    def _committed(self) -> dict[int, int]:
        consumer = Consumer(
            {**CONNECTION, "bootstrap.servers": self._bootstrap, "group.id": self.group}
        )
        try:
            wanted = [TopicPartition(self._topic, p) for p in range(self._partitions)]
            return {
                found.partition: found.offset
                for found in consumer.committed(wanted, timeout=30)
                if found.offset >= 0
            }
        finally:
            consumer.close()


def _thread(
    name: str, run: Callable[[threading.Event], None], stop: threading.Event
) -> threading.Thread:
    return threading.Thread(target=run, args=(stop,), daemon=True, name=name)


def _join(threads: list[threading.Thread], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
        if thread.is_alive():
            raise TimeoutError(f"{thread.name} did not end within {timeout_s:g} s")


def read_all(bootstrap: str, topic: str, partition: int) -> Iterator[Seen]:
    """Every record of a partition, as a new consumer finds it."""
    end = end_offset(bootstrap, topic, partition)
    settings: dict[str, Any] = {
        **CONNECTION,
        "bootstrap.servers": bootstrap,
        "group.id": "final",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "check.crcs": True,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        position = 0
        while position < end:
            messages = consumer.consume(min(10_000, end - position), timeout=20)
            if not messages:
                raise TimeoutError(f"{topic}-{partition} gives nothing at {position} of {end}")
            for message in messages:
                error = message.error()
                if error is not None:
                    if not error.retriable():
                        raise AssertionError(error.str())
                    continue
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert value is not None
                epoch = message.leader_epoch()
                yield Seen(partition, offset, Value.decode(value), -1 if epoch is None else epoch)
                position = offset + 1
    finally:
        consumer.close()


def end_offset(bootstrap: str, topic: str, partition: int) -> int:
    consumer = Consumer({**CONNECTION, "bootstrap.servers": bootstrap, "group.id": "final"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
        return int(end)
    finally:
        consumer.close()
