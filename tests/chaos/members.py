"""Members of a group that commit what they have processed, and note where they start and what is answered."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import defaultdict
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos.history import Committed, GroupEvent, Processed, Started
from tests.chaos.settings import CONNECTION

__all__ = ["GroupNotes", "Member"]

_POLL_S: Final = 0.1
_LIFE_S: Final = (8.0, 30.0)  # then it leaves and another one comes, so that the group moves


class GroupNotes:
    """The highest commit answered for each partition, to whichever member."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: defaultdict[int, int] = defaultdict(int)

    def answered(self, partition: int, offset: int) -> None:
        with self._lock:
            self._highest[partition] = max(self._highest[partition], offset)

    def highest(self, partition: int) -> int:
        with self._lock:
            return self._highest[partition]


class Member:
    """One place in the group, taken by one consumer after another."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, group: str, notes: GroupNotes, seed: int
    ) -> None:
        self.name = name
        self.events: list[GroupEvent] = []
        self._topic = topic
        self._notes = notes
        self._chance = random.Random(seed)
        self._stop: threading.Event
        self._settings: dict[str, Any] = {
            **CONNECTION,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        self._positions: dict[int, int] = {}  # of what is assigned
        self._uncommitted: dict[int, int] = {}

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        while not stop.is_set():
            self._live()

    def _live(self) -> None:
        turns = int(self._chance.uniform(*_LIFE_S) / _POLL_S)
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe(
                [self._topic],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )
            while not self._stop.is_set() and turns > 0:
                turns -= 1
                with contextlib.suppress(KafkaException):
                    self._process(consumer.consume(1_000, timeout=_POLL_S))
                    self._commit(consumer)
        finally:
            with contextlib.suppress(KafkaException):
                consumer.close()
            self._positions.clear()
            self._uncommitted.clear()

    def _process(self, messages: list[Any]) -> None:
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if message.error() is not None or partition not in self._positions:
                continue
            self._note(partition, offset)
            self._positions[partition] = self._uncommitted[partition] = offset + 1

    def _note(self, partition: int, offset: int) -> None:
        last = self.events[-1] if self.events else None
        if isinstance(last, Processed) and (last.partition, last.end) == (partition, offset):
            self.events[-1] = last._replace(end=offset + 1)
        else:
            self.events.append(Processed(partition, offset, offset + 1))

    def _commit(self, consumer: Consumer) -> None:
        if not self._uncommitted:
            return
        asked = dict(self._uncommitted)
        offsets = [TopicPartition(self._topic, p, offset) for p, offset in asked.items()]
        for answer in consumer.commit(offsets=offsets, asynchronous=False) or ():
            if answer.error is None:
                self.events.append(Committed(answer.partition, asked[answer.partition]))
                self._notes.answered(answer.partition, asked[answer.partition])
                self._uncommitted.pop(answer.partition, None)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin where the group was, as the coordinator says, and hold that against what was answered."""
        before = {item.partition: self._notes.highest(item.partition) for item in partitions}
        while partitions and not self._stop.is_set():
            try:
                found = consumer.committed(partitions, timeout=5)
            except KafkaException:
                continue  # the coordinator is on its way to another broker
            if any(item.error is not None for item in found):
                continue
            for item in found:
                item.offset = max(0, item.offset)
                self.events.append(Started(item.partition, item.offset, before[item.partition]))
                self._positions[item.partition] = item.offset
            consumer.assign(found)
            return

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with contextlib.suppress(KafkaException):
            self._commit(consumer)
        self._lost(consumer, partitions)

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for item in partitions:
            self._positions.pop(item.partition, None)
            self._uncommitted.pop(item.partition, None)
