"""Readers that follow a log's end, each with a position of its own, and note all that they see."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.chaos.history import NO_EPOCH, Lost, Seen, Value
from tests.chaos.settings import CONNECTION

__all__ = ["AioReader", "ConfluentReader", "Reader"]

_POLL_S: Final = 0.1
_LOST: Final = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError.OFFSET_OUT_OF_RANGE,
)
_TRUNCATED: Final = re.compile(r"truncation detected at offset \d+ \(leader epoch (\d+)\)")
_ASKED: Final = re.compile(
    r"\[(\d+)\]: querying broker for epoch validation of offset \d+ \(leader epoch (\d+)\)"
)


class Reader(Protocol):
    """Reads every partition from its beginning."""

    name: str
    seen: list[Seen]
    positions: dict[int, int]
    positions_lost: list[Lost]
    epochs_asked: set[tuple[int, int]]

    def run(self, stop: threading.Event) -> None: ...


class ConfluentReader:
    """confluent-kafka, with positions assigned by hand."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int) -> None:
        self.name = name
        self.seen: list[Seen] = []
        self.positions = dict.fromkeys(range(partitions), 0)
        self.positions_lost: list[Lost] = []
        self.epochs_asked: set[tuple[int, int]] = set()
        self._topic = topic
        self._settings: dict[str, Any] = {
            **CONNECTION,
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{name}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # a log that ends before what was read has lost it
            "check.crcs": True,
            # It says in its log only what it asks of brokers.
            "debug": "fetch",
            "log_level": 7,
        }

    def run(self, stop: threading.Event) -> None:
        consumer = Consumer(self._settings, logger=self)
        try:
            self._assign(consumer)
            while not stop.is_set():
                lost = len(self.positions_lost)
                for message in consumer.consume(1_000, timeout=_POLL_S):
                    self._note(message)
                if any(found.epoch != NO_EPOCH for found in self.positions_lost[lost:]):
                    self._assign(consumer)  # which has stopped reading
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(self._topic, p, at) for p, at in self.positions.items()])

    def log(self, _level: int, text: str, *values: Any) -> None:
        """What librdkafka has to say."""
        asked = _ASKED.search(text % values)
        if asked is not None:
            self.epochs_asked.add((int(asked[1]), int(asked[2])))

    def _note(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() in _LOST:
                text = error.str()
                truncated = _TRUNCATED.search(text)
                epoch = NO_EPOCH if truncated is None else int(truncated[1])
                self.positions_lost.append(Lost(text, message.partition(), epoch))
            return
        partition, offset, epoch = message.partition(), message.offset(), message.leader_epoch()
        value = Value.decode(message.value())
        self.seen.append(Seen(partition, offset, value, -1 if epoch is None else epoch))
        self.positions[partition] = offset + 1


class AioReader:
    """aiokafka, likewise. It knows no epochs of records."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int) -> None:
        self.name = name
        self.seen: list[Seen] = []
        self.positions = dict.fromkeys(range(partitions), 0)
        self.positions_lost: list[Lost] = []
        self.epochs_asked: set[tuple[int, int]] = set()
        self._bootstrap = bootstrap
        self._topic = topic

    def run(self, stop: threading.Event) -> None:
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        from aiokafka.errors import KafkaError as AioKafkaError

        while not stop.is_set():  # it gives up sometimes: another one goes on where it was
            with contextlib.suppress(AioKafkaError, OSError, asyncio.TimeoutError):
                await self._read(stop)

    async def _read(self, stop: threading.Event) -> None:
        import aiokafka
        from aiokafka.errors import OffsetOutOfRangeError

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            metadata_max_age_ms=2_000,
            request_timeout_ms=5_000,
        )
        await consumer.start()
        try:
            assigned = {aiokafka.TopicPartition(self._topic, p): p for p in self.positions}
            consumer.assign(list(assigned))
            for partition, index in assigned.items():
                consumer.seek(partition, self.positions[index])
            while not stop.is_set():
                try:
                    found = await consumer.getmany(timeout_ms=int(_POLL_S * 1000))
                except OffsetOutOfRangeError as error:
                    self.positions_lost.append(Lost(str(error)))
                    return
                for partition, messages in found.items():
                    self._note(partition.partition, messages)
        finally:
            await consumer.stop()

    def _note(self, partition: int, messages: list[Any]) -> None:
        for message in messages:
            self.seen.append(Seen(partition, message.offset, Value.decode(message.value)))
            self.positions[partition] = message.offset + 1
