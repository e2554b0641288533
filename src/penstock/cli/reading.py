"""Reading a topic for `penstock consume`: where to start, when it is done, what to commit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli import offsets, output
from penstock.cli.failure import CommandError
from penstock.cli.signals import signals_held
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka import TopicPartition as Place

    from penstock.cli.adminapi import AdminClient
    from penstock.cli.contact import Cluster
    from penstock.cli.values import Position

BATCH_RECORDS_MAX: Final = 1_000
SILENCE_S_MAX: Final = 10.0
QUICK_S: Final = 0.01  # how long a record waits for others to be shown with
_LOOK_EVERY_S: Final = 2.0  # for partitions that a topic has got since
_LOOK_TIMEOUT_S: Final = 1.0
_NO_GROUP: Final = "penstock-consume"  # librdkafka wants a name; nothing is ever committed under it


class Reader:
    """Reads one topic, as a group member or on its own.

    Without `follow` it ends where the partitions ended when it started. A batch that it yielded
    counts as read, and is committed for the group, once the next one is asked for.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        group: str | None,
        partitions: Sequence[int],
        position: Position | None,
        follow: bool,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._group = group
        self._follow = follow
        self._wants_new = follow and group is None and not partitions  # members are told of them
        self._look_s = time.monotonic() + _LOOK_EVERY_S
        admin = cluster.admin()
        wanted = self._partitions(topic, cluster.topic(topic, admin).partitions, partitions)
        known = offsets.ranges(cluster, admin, wanted)
        self._ends = {where.partition: span.end for where, span in known.items()}
        self._starts = self._starting_offsets(admin, position, known)
        self._unread: set[int] = set()  # partitions assigned, and not yet read to the end
        self._assigned = False
        self._consumer = self._connect(topic)

    @staticmethod
    def _partitions(
        topic: str, there: Iterable[int], wanted: Sequence[int]
    ) -> list[TopicPartition]:
        numbers = sorted(there)
        for number in wanted:
            if number not in numbers:
                raise CommandError(
                    f"{topic} has no partition {number}: it has {len(numbers)}, counted from 0."
                )
        return [TopicPartition(topic, number) for number in wanted or numbers]

    def _starting_offsets(
        self,
        admin: AdminClient,
        position: Position | None,
        known: Mapping[TopicPartition, offsets.Range],
    ) -> dict[int, int]:
        """Offsets to start at, by partition; empty to start where the group is."""
        from penstock.cli.values import Position

        if position is None:
            if self._group is not None:
                return {}
            position = Position("earliest")
        starts = offsets.resolve(self._cluster, admin, position, known)
        # One offset for many partitions: those that do not reach it have nothing to show.
        problems = [offsets.out_of_range({where: start}, known) for where, start in starts.items()]
        if all(problems) and problems[0] is not None:
            raise problems[0]
        return {
            where.partition: min(max(start, known[where].start), known[where].end)
            for where, start in starts.items()
        }

    def _connect(self, topic: str) -> Consumer:
        consumer = self._cluster.consumer(
            **{
                "group.id": self._group or _NO_GROUP,
                "enable.auto.commit": self._group is not None,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest" if self._group is not None else "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 500,
                "fetch.queue.backoff.ms": 20,  # a full queue must not pause us for a second
            }
        )
        if self._group is not None:
            consumer.subscribe([topic], on_assign=self._on_assign)
        else:
            from confluent_kafka import TopicPartition as Place

            self._on_assign(consumer, [Place(topic, number) for number in self._ends])
        return consumer

    def _on_assign(self, consumer: Consumer, places: list[Place]) -> None:
        """Start at the chosen offsets, each the first time its partition comes to us."""
        self._assigned = True
        for place in places:
            place.offset = self._starts.pop(place.partition, place.offset)
        self._unread = {
            place.partition for place in places if place.offset < self._ends.get(place.partition, 0)
        }
        consumer.assign(places)

    def batches(self, records_max: int | None) -> Iterator[list[Message]]:
        """Records as they come; ends at the end of the log (unless following) or at the limit."""
        left = records_max
        heard_s = time.monotonic()
        while left is None or left > 0:
            if self._assigned and not self._unread and not self._follow:
                return
            room = BATCH_RECORDS_MAX if left is None else min(left, BATCH_RECORDS_MAX)
            events = self._poll(room)
            batch, failure = self._records(events)
            if batch:
                yield batch
                self._read(batch)
                if left is not None:
                    left -= len(batch)
            if failure is not None:
                raise failure
            if events:
                heard_s = time.monotonic()
                self._cluster.forget_errors()
            elif time.monotonic() - heard_s > SILENCE_S_MAX:
                self._on_silence()
                heard_s = time.monotonic()
            if self._wants_new and time.monotonic() >= self._look_s:
                self._take_new_partitions()
                self._look_s = time.monotonic() + _LOOK_EVERY_S

    def _records(self, events: list[Message]) -> tuple[list[Message], CommandError | None]:
        """The records among the events, and what went wrong behind them, if anything did.

        What arrived after the start of a bounded read is left out.
        """
        records = []
        failure = None
        for message in events:
            number = message.partition() or 0
            error = message.error()
            if error is not None:
                failure = self._on_event(error, number) or failure
                continue
            left = self._ends.get(number, 0) - (message.offset() or 0)
            if left <= 1:
                self._unread.discard(number)
            if left > 0 or self._follow:
                records.append(message)
        return records, failure

    def _on_event(self, error: KafkaError, number: int) -> CommandError | None:
        if error.name() == "_PARTITION_EOF":
            self._unread.discard(number)
            return None
        if error.retriable():
            return None
        return self._cluster.explain(error, f"{self._topic} partition {number}")

    def _on_silence(self) -> None:
        if not self._assigned:
            output.note(f"Waiting for the group {self._group} to share out its partitions.")
        elif not self._follow:
            raise self._cluster.silent()
        elif self._cluster.last_error:
            output.note(f"{self._cluster.last_error}; waiting for the broker to come back.")

    def _poll(self, room: int) -> list[Message]:
        """At most `room` events: the first as soon as it is there, then those already waiting."""
        with signals_held():
            first = self._consumer.poll(0.25)
            if first is None:
                return []
            more = self._consumer.consume(room - 1, timeout=QUICK_S) if room > 1 else []
        return [first, *more]

    def _take_new_partitions(self) -> None:
        """Read partitions that came to the topic, from their beginning. Silence means: ask again later."""
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Place

        try:
            with signals_held():
                known = self._consumer.list_topics(self._topic, timeout=_LOOK_TIMEOUT_S)
        except KafkaException:
            return
        new = known.topics[self._topic].partitions.keys() - self._ends.keys()
        self._ends.update(dict.fromkeys(new, 0))
        if new:
            self._consumer.incremental_assign([Place(self._topic, number, 0) for number in new])

    def _read(self, batch: list[Message]) -> None:
        if self._group is None:
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka import TopicPartition as Place

        last = {message.partition() or 0: message.offset() or 0 for message in batch}
        try:
            self._consumer.store_offsets(
                offsets=[Place(self._topic, number, offset + 1) for number, offset in last.items()]
            )
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            # All of these partitions went to other members, who read those records again.

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        """Commits what was read, and leaves the group."""
        self._consumer.close()
