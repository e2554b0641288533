"""kafka-python: the protocol in pure Python, by its own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import kafka
import kafka.errors
from kafka import ConsumerRebalanceListener, OffsetAndMetadata
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

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
    Rebalances,
    Record,
    Refused,
    TopicPartition,
)

_ASSIGNORS: dict[str, Any] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class KafkaPythonClient(Client):
    name = "kafka-python"
    eager_assignors = ("range", "roundrobin", "sticky")
    null_headers = False
    chooses_creation = False  # it has a setting, and ignores it

    @cached_property
    def _admin(self) -> Any:
        return KafkaAdminClient(bootstrap_servers=self.bootstrap)

    def close(self) -> None:
        if "_admin" in self.__dict__:
            self._admin.close()

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
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=10,
            batch_size=batch_bytes,
            max_request_size=request_bytes_max,
            max_block_ms=int(DEADLINE_S * 1000),
        )
        try:
            with _refusals():
                sent = [
                    producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=partition,
                        timestamp_ms=message.timestamp_ms,
                    )
                    for message in messages
                ]
                done = [future.get(DEADLINE_S) for future in sent]
        finally:
            producer.close(DEADLINE_S)
        return [Placed(metadata.partition, metadata.offset) for metadata in done]

    def consumer(self, options: ConsumerOptions) -> Consumer:
        return KafkaPythonConsumer(self.bootstrap, options)

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
        wanted = {
            "num_partitions": partitions,
            "replication_factor": replicas,
            "configs": dict(settings or {}),
        }
        with _refusals():
            self._admin.create_topics({name: wanted}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with _refusals():
            self._admin.delete_topics([name])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partition_leaders(self, topic: str) -> list[int]:
        (described,) = self._admin.describe_topics([topic])
        _check(described["error_code"])
        return [partition["leader_id"] for partition in described["partitions"]]

    def grow(self, topic: str, partitions: int) -> None:
        with _refusals():
            self._admin.create_partitions({topic: partitions})

    def settings(self, topic: str) -> dict[str, str]:
        return self._settings("topic", topic)

    def broker_settings(self, broker_id: int) -> dict[str, str]:
        return self._settings("broker", str(broker_id))

    def _settings(self, kind: str, name: str) -> dict[str, str]:
        found = self._admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
        return {key: entry["value"] for key, entry in found[kind][name].items()}

    def set_setting(self, topic: str, name: str, value: str) -> None:
        self._alter(topic, {name: value})

    def reset_setting(self, topic: str, name: str) -> None:
        self._alter(topic, {name: ("DELETE", None)})

    def _alter(self, topic: str, changes: dict[str, Any]) -> None:
        resource = ConfigResource("topic", topic, changes)
        outcome = self._admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if outcome != "OK":
            raise Refused(int(outcome.split("]")[0].removeprefix("[Error ")), outcome)

    def delete_records(self, at: TopicPartition, before_offset: int) -> int:
        with _refusals():
            deleted = self._admin.delete_records({KafkaTopicPartition(*at): before_offset})
        return int(deleted[KafkaTopicPartition(*at)]["low_watermark"])

    def broker_ids(self) -> set[int]:
        cluster = self._admin.describe_cluster()
        ids = {broker["broker_id"] for broker in cluster["brokers"]}
        assert cluster["controller_id"] in ids
        return ids

    # Groups

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._admin.list_groups()}

    def describe_group(self, group: str) -> GroupDescription:
        described = self._admin.describe_groups([group])[group]
        assert described["error"] is None
        members = described["members"]
        return GroupDescription(
            state=described["group_state"].lower(),
            assignor=described["protocol_data"],
            assignments=[_assignment(member) for member in members],
            instance_ids={m["group_instance_id"] for m in members if m["group_instance_id"]},
        )

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        found = self._admin.list_group_offsets(group)[group]
        return {TopicPartition(*at): value.offset for at, value in found.items()}

    def set_group_offset(self, group: str, at: TopicPartition, offset: int) -> None:
        wanted = {KafkaTopicPartition(*at): OffsetAndMetadata(offset, "", -1)}
        with _refusals():
            outcome = self._admin.alter_group_offsets(group, wanted)
        _raise(outcome[KafkaTopicPartition(*at)])

    def delete_group_offset(self, group: str, at: TopicPartition) -> None:
        with _refusals():
            outcome = self._admin.delete_group_offsets(group, [KafkaTopicPartition(*at)])
        _raise(outcome[KafkaTopicPartition(*at)])

    def delete_group(self, group: str) -> None:
        outcome = self._admin.delete_groups([group])[group]
        if outcome != "OK":
            raise Refused(getattr(kafka.errors, outcome).errno, outcome)


class KafkaPythonConsumer(Consumer):
    # A join that ends while nobody polls is forgotten and made anew (3.0): better to poll without a break.
    poll_s = 0.15

    def __init__(self, bootstrap: str, options: ConsumerOptions) -> None:
        super().__init__()
        self._commits = options.auto_commit
        settings: dict[str, Any] = {}
        if options.fetch_bytes_max is not None:
            settings["fetch_max_bytes"] = options.fetch_bytes_max
            settings["max_partition_fetch_bytes"] = options.fetch_bytes_max
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=options.group,
            group_instance_id=options.instance_id,
            partition_assignment_strategy=[_ASSIGNORS[options.assignor]],
            auto_offset_reset=options.reset,
            enable_auto_commit=options.auto_commit,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=100,
            allow_auto_create_topics=options.creates_topics,
            isolation_level="read_committed" if options.read_committed else "read_uncommitted",
            metadata_max_age_ms=500,
            **settings,
        )

    def assign(self, *partitions: TopicPartition) -> None:
        self._consumer.assign([KafkaTopicPartition(*at) for at in partitions])

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(topics, listener=_Listener(self.rebalances))
        # Else it joins without knowing the partitions, and joins again as soon as it does. If a poll ends in
        # the midst of a join that has this cause, 3.0 forgets to finish it: `need_rejoin` has turned false.
        self._consumer.topics()

    def subscribe_pattern(self, pattern: str) -> None:
        self._consumer.subscribe(pattern=f"^{pattern}", listener=_Listener(self.rebalances))

    def _poll(self, seconds: float) -> list[Record]:
        with _refusals():
            found = self._consumer.poll(timeout_ms=int(seconds * 1000))
        return [_record(item) for records in found.values() for item in records]

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*at) for at in self._consumer.assignment()}

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._consumer.seek(KafkaTopicPartition(*at), offset)

    def seek_to_beginning(self, at: TopicPartition) -> None:
        self._consumer.seek_to_beginning(KafkaTopicPartition(*at))

    def seek_to_end(self, at: TopicPartition) -> None:
        self._consumer.seek_to_end(KafkaTopicPartition(*at))
        self.position(at)  # or it would be looked up at the next poll

    def position(self, at: TopicPartition) -> int:
        return int(self._consumer.position(KafkaTopicPartition(*at)))

    def offset_for_time(self, at: TopicPartition, timestamp_ms: int) -> int | None:
        key = KafkaTopicPartition(*at)
        found = self._consumer.offsets_for_times({key: timestamp_ms}).get(key)
        return None if found is None else int(found.offset)

    def bounds(self, at: TopicPartition) -> tuple[int, int]:
        key = KafkaTopicPartition(*at)
        first = self._consumer.beginning_offsets([key])[key]
        return first, self._consumer.end_offsets([key])[key]

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        with _refusals():
            self._consumer.commit(
                {
                    KafkaTopicPartition(*at): OffsetAndMetadata(value.offset, value.note, -1)
                    for at, value in offsets.items()
                }
            )

    def committed(self, at: TopicPartition) -> CommittedOffset | None:
        found = self._consumer.committed(KafkaTopicPartition(*at), metadata=True)
        return None if found is None else CommittedOffset(found.offset, found.metadata)

    def close(self) -> None:
        self._consumer.close(autocommit=self._commits)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._rebalances.assigned.append({TopicPartition(*at) for at in assigned})

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._rebalances.revoked.append({TopicPartition(*at) for at in revoked})


def _record(item: Any) -> Record:
    return Record(
        topic=item.topic,
        partition=item.partition,
        offset=item.offset,
        key=item.key,
        value=item.value,
        headers=tuple((name, value) for name, value in item.headers),
        timestamp_ms=item.timestamp,
    )


def _assignment(member: Any) -> set[TopicPartition]:
    if not member["member_assignment"]:
        return set()  # it has none while its group rebalances
    assigned = member["member_assignment"]["assigned_partitions"]
    return {
        TopicPartition(topic["topic"], partition)
        for topic in assigned
        for partition in topic["partitions"]
    }


def _check(code: int) -> None:
    if code:
        raise Refused(code, kafka.errors.for_code(code).__name__)


def _raise(outcome: Any) -> None:
    """For calls that return an error class, or none, for each partition."""
    if outcome is not None and outcome is not kafka.errors.NoError:
        raise Refused(outcome.errno, outcome.__name__)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except kafka.errors.NoOffsetForPartitionError as error:
        raise NoPosition(error) from error
    except kafka.errors.BrokerResponseError as error:
        raise Refused(error.errno, error) from error
