"""confluent-kafka: librdkafka, in its newest version."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin

from tests.clients.client import (
    DEADLINE_S,
    Acks,
    Client,
    CommittedOffset,
    Consumer,
    ConsumerOptions,
    GroupDescription,
    Message,
    NoPosition,
    Placed,
    Record,
    Refused,
    TopicPartition,
)

ck_admin: Any = confluent_kafka.admin  # whose types do not name all that it exports

_NO_OFFSET = -1001


class ConfluentClient(Client):
    name = "confluent-kafka"
    eager_assignors = ("range", "roundrobin")

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def close(self) -> None:
        pass  # the admin client ends with its last reference

    def produce(
        self,
        topic: str,
        messages: Iterable[Message],
        *,
        partition: int | None = 0,
        acks: Acks = "all",
        codec: str = "none",
        idempotent: bool = False,
        batch_bytes: int = 1_000_000,
        request_bytes_max: int = 10_000_000,
    ) -> list[Placed]:
        placed: dict[int, Placed] = {}  # by the place among the messages
        errors: list[ck.KafkaError] = []

        def delivered(index: int, error: ck.KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                placed[index] = Placed(message.partition(), message.offset())

        producer = ck.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 10,
                "batch.size": batch_bytes,
                "message.max.bytes": request_bytes_max,
                "delivery.timeout.ms": int(DEADLINE_S * 1000),
                "log_level": 0,
            }
        )
        for index, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                partition=-1 if partition is None else partition,
                timestamp=message.timestamp_ms or 0,
                headers=list(message.headers),
                on_delivery=functools.partial(delivered, index),
            )
        unsent = producer.flush(DEADLINE_S)
        if errors:
            raise Refused(errors[0].code(), errors[0])
        assert unsent == 0, f"{unsent} records were not delivered in time"
        return [placed[index] for index in sorted(placed)]

    def consumer(self, options: ConsumerOptions) -> Consumer:
        return ConfluentConsumer(self.bootstrap, options)

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        new = ck_admin.NewTopic(name, partitions, replicas, config=dict(settings or {}))
        _result(self._admin.create_topics([new], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        _result(self._admin.delete_topics([name]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=DEADLINE_S).topics)

    def partition_leaders(self, topic: str) -> list[int]:
        wanted = ck.TopicCollection([topic])
        described = _result(self._admin.describe_topics(wanted))
        return [partition.leader.id for partition in described.partitions]

    def grow(self, topic: str, partitions: int) -> None:
        _result(self._admin.create_partitions([ck_admin.NewPartitions(topic, partitions)]))

    def settings(self, topic: str) -> dict[str, str]:
        return self._settings(ck_admin.ConfigResource("topic", topic))

    def broker_settings(self, broker_id: int) -> dict[str, str]:
        return self._settings(ck_admin.ConfigResource("broker", str(broker_id)))

    def _settings(self, resource: Any) -> dict[str, str]:
        entries = _result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def set_setting(self, topic: str, name: str, value: str) -> None:
        self._alter(topic, name, value, ck_admin.AlterConfigOpType.SET)

    def reset_setting(self, topic: str, name: str) -> None:
        self._alter(topic, name, None, ck_admin.AlterConfigOpType.DELETE)

    def _alter(self, topic: str, name: str, value: str | None, operation: Any) -> None:
        entry = ck_admin.ConfigEntry(name, value, incremental_operation=operation)
        resource = ck_admin.ConfigResource("topic", topic, incremental_configs=[entry])
        _result(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, at: TopicPartition, before_offset: int) -> int:
        until = ck.TopicPartition(at.topic, at.partition, before_offset)
        deleted = _result(self._admin.delete_records([until]))
        return int(deleted.low_watermark)

    def broker_ids(self) -> set[int]:
        cluster = self._admin.describe_cluster().result(DEADLINE_S)
        ids = {node.id for node in cluster.nodes}
        assert cluster.controller.id in ids
        return ids

    # Groups

    def groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result(DEADLINE_S)
        assert not listed.errors
        return {group.group_id for group in listed.valid}

    def describe_group(self, group: str) -> GroupDescription:
        described = _result(self._admin.describe_consumer_groups([group]))
        return GroupDescription(
            state=described.state.name.lower(),
            assignor=described.partition_assignor,
            assignments=[
                _as_set(member.assignment.topic_partitions) for member in described.members
            ],
            instance_ids={m.group_instance_id for m in described.members if m.group_instance_id},
        )

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        asked = ck.ConsumerGroupTopicPartitions(group)
        found = _result(self._admin.list_consumer_group_offsets([asked]))
        return {TopicPartition(p.topic, p.partition): p.offset for p in found.topic_partitions}

    def set_group_offset(self, group: str, at: TopicPartition, offset: int) -> None:
        wanted = ck.TopicPartition(at.topic, at.partition, offset)
        change = ck.ConsumerGroupTopicPartitions(group, [wanted])
        altered = _result(self._admin.alter_consumer_group_offsets([change]))
        for partition in altered.topic_partitions:
            if partition.error is not None:
                raise Refused(partition.error.code(), partition.error)

    def delete_group(self, group: str) -> None:
        _result(self._admin.delete_consumer_groups([group]))


class ConfluentConsumer(Consumer):
    def __init__(self, bootstrap: str, options: ConsumerOptions) -> None:
        super().__init__()
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": options.group or "none",
            "partition.assignment.strategy": options.assignor,
            "auto.offset.reset": "error" if options.reset == "none" else options.reset,
            "enable.auto.commit": options.auto_commit,
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": 100,
            "allow.auto.create.topics": options.creates_topics,
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        if options.fetch_bytes_max is not None:
            settings["fetch.max.bytes"] = options.fetch_bytes_max
            settings["message.max.bytes"] = options.fetch_bytes_max
            settings["max.partition.fetch.bytes"] = options.fetch_bytes_max
        self._consumer = ck.Consumer(settings)

    def assign(self, *partitions: TopicPartition) -> None:
        self._consumer.assign([ck.TopicPartition(*at) for at in partitions])

    def subscribe(self, *topics: str) -> None:
        def assigned(_: Any, partitions: list[Any]) -> None:
            self.rebalances.assigned.append(_as_set(partitions))

        def revoked(_: Any, partitions: list[Any]) -> None:
            self.rebalances.revoked.append(_as_set(partitions))

        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked)

    def subscribe_pattern(self, pattern: str) -> None:
        self.subscribe(f"^{pattern}")

    def _poll(self, seconds: float) -> list[Record]:
        with _refusals():
            first = self._consumer.poll(seconds)
            messages = [] if first is None else [first, *self._consumer.consume(500, 0)]
        records = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
                raise NoPosition(error)
            if error is not None:
                raise Refused(error.code(), error)
            records.append(_record(message))
        return records

    def assignment(self) -> set[TopicPartition]:
        return _as_set(self._consumer.assignment())

    def seek(self, at: TopicPartition, offset: int) -> None:
        # An assignment is taken up in the background; to assign again with an offset is at once.
        others = [p for p in self._consumer.assignment() if (p.topic, p.partition) != at]
        self._consumer.assign([*others, ck.TopicPartition(at.topic, at.partition, offset)])

    def seek_to_beginning(self, at: TopicPartition) -> None:
        self.seek(at, ck.OFFSET_BEGINNING)

    def seek_to_end(self, at: TopicPartition) -> None:
        self.seek(at, self.bounds(at)[1])

    def position(self, at: TopicPartition) -> int:
        (found,) = self._consumer.position([ck.TopicPartition(*at)])
        return found.offset

    def offset_for_time(self, at: TopicPartition, timestamp_ms: int) -> int | None:
        asked = [ck.TopicPartition(at.topic, at.partition, timestamp_ms)]
        (found,) = self._consumer.offsets_for_times(asked, DEADLINE_S)
        return None if found.offset == ck.OFFSET_END else found.offset

    def bounds(self, at: TopicPartition) -> tuple[int, int]:
        with _refusals():
            found = self._consumer.get_watermark_offsets(ck.TopicPartition(*at), DEADLINE_S)
        assert found is not None
        return found

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        wanted = [
            ck.TopicPartition(at.topic, at.partition, value.offset, value.note)
            for at, value in offsets.items()
        ]
        with _refusals():
            for done in self._consumer.commit(offsets=wanted, asynchronous=False):
                if done.error is not None:
                    raise Refused(done.error.code(), done.error)

    def committed(self, at: TopicPartition) -> CommittedOffset | None:
        with _refusals():
            (found,) = self._consumer.committed([ck.TopicPartition(*at)], DEADLINE_S)
        if found.offset == _NO_OFFSET:
            return None
        return CommittedOffset(found.offset, found.metadata or "")

    def close(self) -> None:
        self._consumer.close()


def _record(message: Any) -> Record:
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple((name, value) for name, value in message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
    )


def _as_set(partitions: Iterable[Any]) -> set[TopicPartition]:
    return {TopicPartition(p.topic, p.partition) for p in partitions}


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ck.KafkaException as error:
        raise Refused(error.args[0].code(), error) from error


def _result(futures: Mapping[Any, Future[Any]]) -> Any:
    """The outcome of an admin call on one thing."""
    (future,) = futures.values()
    with _refusals():
        return future.result(DEADLINE_S)
