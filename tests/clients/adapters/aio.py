"""aiokafka: the asyncio client. Its event loop runs in a thread, so that tests can be plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import aiokafka
from aiokafka import ConsumerRebalanceListener, errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as AioTopicPartition

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

T = TypeVar("T")

_ASSIGNORS: dict[str, Any] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class LoopThread:
    """An event loop to which other threads give work."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            with _refusals():
                return future.result(DEADLINE_S)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        async def cancel_all() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class AiokafkaClient(Client):
    name = "aiokafka"
    eager_assignors = ("range", "roundrobin", "sticky")
    is_cooperative = False
    reads_notes = False
    null_headers = False
    chooses_creation = False

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._thread = LoopThread()

    @cached_property
    def _admin(self) -> Any:
        async def start() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            return admin

        return self._run(start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self) -> None:
        if "_admin" in self.__dict__:
            self._run(self._admin.close())
        self._thread.close()

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
        async def produce() -> list[Placed]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=acks,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=10,
                max_batch_size=batch_bytes,
                max_request_size=request_bytes_max,
            )
            async with producer:
                sent = [
                    await producer.send(
                        topic,
                        message.value,
                        message.key,
                        partition=partition,
                        timestamp_ms=message.timestamp_ms,
                        headers=list(message.headers),
                    )
                    for message in messages
                ]
                done = await asyncio.gather(*sent)
            return [Placed(partition or 0, -1) if d is None else Placed(*d[1:4:2]) for d in done]

        return self._run(produce())

    def consumer(self, options: ConsumerOptions) -> Consumer:
        return AiokafkaConsumer(self._thread, self.bootstrap, options)

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
        new = NewTopic(name, partitions, replicas, topic_configs=dict(settings or {}))
        answer = self._run(self._admin.create_topics([new], validate_only=validate_only))
        ((_, code, message),) = [topic[:3] for topic in answer.topic_errors]
        _check(code, message)

    def delete_topic(self, name: str) -> None:
        answer = self._run(self._admin.delete_topics([name]))
        ((_, code),) = answer.topic_error_codes
        _check(code)

    def topics(self) -> set[str]:
        return set(self._run(self._admin.list_topics()))

    def partition_leaders(self, topic: str) -> list[int]:
        (described,) = self._run(self._admin.describe_topics([topic]))
        _check(described["error_code"])
        partitions = sorted(described["partitions"], key=lambda p: p["partition"])
        return [partition["leader"] for partition in partitions]

    def grow(self, topic: str, partitions: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(partitions)}))

    def settings(self, topic: str) -> dict[str, str]:
        return self._settings(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_settings(self, broker_id: int) -> dict[str, str]:
        return self._settings(ConfigResource(ConfigResourceType.BROKER, str(broker_id)))

    def _settings(self, resource: Any) -> dict[str, str]:
        (answer,) = self._run(self._admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = answer.resources
        _check(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def set_setting(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        (answer,) = self._run(self._admin.alter_configs([resource]))
        ((code, message, _, _),) = answer.resources
        _check(code, message)

    def delete_records(self, at: TopicPartition, before_offset: int) -> int:
        wanted = {AioTopicPartition(*at): RecordsToDelete(before_offset)}
        deleted = self._run(self._admin.delete_records(wanted))
        return int(deleted[AioTopicPartition(*at)])

    def broker_ids(self) -> set[int]:
        cluster = self._run(self._admin.describe_cluster())
        ids = {broker["node_id"] for broker in cluster["brokers"]}
        assert cluster["controller_id"] in ids
        return ids

    # Groups

    def groups(self) -> set[str]:
        return {group[0] for group in self._run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupDescription:
        (answer,) = self._run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, assignor, members, *_),) = answer.groups
        _check(code)
        assignments = [
            ConsumerProtocolMemberAssignment.decode(member[-1]).partitions() if member[-1] else []
            for member in members
        ]
        return GroupDescription(
            state=state.lower(),
            assignor=assignor,
            assignments=[{TopicPartition(*at) for at in partitions} for partitions in assignments],
            instance_ids=set(),  # not in the version of the protocol that it speaks
        )

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        found = self._run(self._admin.list_consumer_group_offsets(group))
        return {TopicPartition(*at): value.offset for at, value in found.items()}


class AiokafkaConsumer(Consumer):
    def __init__(self, thread: LoopThread, bootstrap: str, options: ConsumerOptions) -> None:
        super().__init__()
        self._run = thread.run
        settings: dict[str, Any] = {}
        if options.fetch_bytes_max is not None:
            settings["fetch_max_bytes"] = options.fetch_bytes_max
            settings["max_partition_fetch_bytes"] = options.fetch_bytes_max

        async def start() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=options.group,
                group_instance_id=options.instance_id,
                partition_assignment_strategy=[_ASSIGNORS[options.assignor]],
                auto_offset_reset=options.reset,
                enable_auto_commit=options.auto_commit,
                session_timeout_ms=options.session_timeout_ms,
                heartbeat_interval_ms=100,
                metadata_max_age_ms=500,
                isolation_level="read_committed" if options.read_committed else "read_uncommitted",
                **settings,
            )
            await consumer.start()
            return consumer

        self._consumer = self._run(start())

    def assign(self, *partitions: TopicPartition) -> None:
        async def assign() -> None:
            self._consumer.assign([AioTopicPartition(*at) for at in partitions])

        self._run(assign())

    def subscribe(self, *topics: str) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(topics, listener=_Listener(self.rebalances))

        self._run(subscribe())

    def subscribe_pattern(self, pattern: str) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(pattern=f"^{pattern}", listener=_Listener(self.rebalances))

        self._run(subscribe())

    def _poll(self, seconds: float) -> list[Record]:
        found = self._run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [_record(item) for records in found.values() for item in records]

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*at) for at in self._consumer.assignment()}

    def seek(self, at: TopicPartition, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(AioTopicPartition(*at), offset)

        self._run(seek())

    def seek_to_beginning(self, at: TopicPartition) -> None:
        self.position(at)  # as below
        self._run(self._consumer.seek_to_beginning(AioTopicPartition(*at)))

    def seek_to_end(self, at: TopicPartition) -> None:
        # It may be asking for the first position still, and takes that answer for this one's (0.14).
        self.position(at)
        self._run(self._consumer.seek_to_end(AioTopicPartition(*at)))

    def position(self, at: TopicPartition) -> int:
        return int(self._run(self._consumer.position(AioTopicPartition(*at))))

    def offset_for_time(self, at: TopicPartition, timestamp_ms: int) -> int | None:
        key = AioTopicPartition(*at)
        found = self._run(self._consumer.offsets_for_times({key: timestamp_ms}))[key]
        return None if found is None else int(found.offset)

    def bounds(self, at: TopicPartition) -> tuple[int, int]:
        key = AioTopicPartition(*at)
        first = self._run(self._consumer.beginning_offsets([key]))[key]
        return first, self._run(self._consumer.end_offsets([key]))[key]

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        wanted = {
            AioTopicPartition(*at): OffsetAndMetadata(value.offset, value.note)
            for at, value in offsets.items()
        }
        self._run(self._consumer.commit(wanted))

    def committed(self, at: TopicPartition) -> CommittedOffset | None:
        found = self._run(self._consumer.committed(AioTopicPartition(*at)))
        return None if found is None else CommittedOffset(found)

    def close(self) -> None:
        self._run(self._consumer.stop())


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


def _check(code: int, message: object = None) -> None:
    if code:
        raise Refused(code, message or errors.for_code(code).__name__)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except errors.NoOffsetForPartitionError as error:
        raise NoPosition(error) from error
    except errors.BrokerResponseError as error:
        raise Refused(error.errno, error) from error
