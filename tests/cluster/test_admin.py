"""Administration of real brokers by foreign clients: topics, moves, elections, settings, deletions."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonPartition

from penstock.cli.adminapi import (
    EARLIEST,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from penstock.client.connection import Connection, parse_bootstrap
from penstock.client.wire import Api, Messages
from penstock.errors import ErrorCode
from penstock.processes.inquiry import PartitionKnown
from penstock.testing import TestCluster, cluster
from tests.kafka.wire import Wire, request

DELETE_RECORDS = Api("DeleteRecords", 21, 0, 2, 2)
SLOW_BYTES_PER_S = 100_000  # what replicas that are behind may fetch


@pytest.fixture(scope="module")
def three() -> Iterator[TestCluster]:
    """Three brokers that copy what is behind slowly; each test leaves them healthy."""
    with cluster(
        lease_ttl_s=2, replica_lag_ms_max=1_000, catch_up_bytes_per_s_max=SLOW_BYTES_PER_S
    ) as running:
        yield running


@pytest.fixture
def admin(three: TestCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})


@pytest.fixture
def python_admin(three: TestCluster) -> Iterator[Any]:
    """kafka-python: the one of the clients that can move partitions."""
    client = KafkaAdminClient(bootstrap_servers=three.bootstrap.split(","))
    with contextlib.closing(client):
        yield client


def create(
    admin: AdminClient, three: TestCluster, *replicas: Sequence[int], **settings: str
) -> str:
    """A topic with these replicas of each partition, in sync."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    config = {key.replace("_", "."): value for key, value in settings.items()}
    by_hand = [list(some) for some in replicas]
    new = NewTopic(name, len(by_hand), replica_assignment=by_hand, config=config)
    admin.create_topics([new], operation_timeout=15)[name].result(20)
    in_sync = range(len(replicas))
    until_all(three, name, in_sync, lambda known: set(known.isr) == set(known.replicas))
    return name


def until(three: TestCluster, topic: str, index: int, is_so: Any) -> PartitionKnown:
    """What every broker knows of the partition, once they agree that it is so."""
    return until_all(three, topic, range(index, index + 1), is_so)[0]


def until_all(
    three: TestCluster, topic: str, indices: Sequence[int], is_so: Any
) -> list[PartitionKnown]:
    """The same of many partitions."""

    def found() -> list[PartitionKnown] | None:
        known: list[PartitionKnown] = []
        for broker in three.known().values():
            known = [p for p in broker.partitions if p.topic == topic and p.partition in indices]
            if len(known) < len(indices) or not all(map(is_so, known)):
                return None
        return known

    known: list[PartitionKnown] = three.wait_for(found, f"{topic} as it should be")
    return known


def fill(three: TestCluster, topic: str, size: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all"})
    for _ in range(size // 50_000):
        producer.produce(topic, b"x" * 50_000, partition=partition)
    assert producer.flush(20) == 0


def move(client: Any, topic: str, targets: Mapping[int, Sequence[int] | None]) -> list[Any]:
    """The errors of the partitions, in order."""
    wanted = {PythonPartition(topic, index): target for index, target in targets.items()}
    outcomes = client.alter_partition_reassignments(wanted)
    return [outcomes[partition] for partition in wanted]


class TestMoves:
    def test_bring_a_partition_with_its_records_to_other_brokers(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        topic = create(admin, three, (0, 1))
        fill(three, topic, 100_000)
        assert move(python_admin, topic, {0: (2, 1)}) == [None]
        known = until(three, topic, 0, lambda known: set(known.replicas) == {1, 2})
        assert known.replicas == (2, 1)
        until(three, topic, 0, lambda known: set(known.isr) == {1, 2} and known.leader in (1, 2))
        assert python_admin.list_partition_reassignments() == {}

    def test_are_listed_while_they_last_and_can_be_cancelled(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        topic = create(admin, three, (0, 1))
        fill(three, topic, 3_000_000)  # half a minute away from being copied
        assert move(python_admin, topic, {0: (2, 1)}) == [None]
        listed = python_admin.list_partition_reassignments()
        assert listed == {
            PythonPartition(topic, 0): {
                "replicas": [2, 1, 0], "adding_replicas": [2], "removing_replicas": [0],
            }
        }  # fmt: skip
        assert python_admin.list_partition_reassignments({topic: [0, 5], "nothing": [0]}) == listed
        assert python_admin.list_partition_reassignments({"nothing": [0]}) == {}
        assert move(python_admin, topic, {0: None}) == [None]
        known = until(three, topic, 0, lambda known: set(known.replicas) == {0, 1})
        assert set(known.isr) == {0, 1}
        assert python_admin.list_partition_reassignments() == {}

    def test_are_refused_partition_by_partition(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        topic = create(admin, three, (0, 1), (1, 2))
        targets: dict[int, Sequence[int] | None] = {0: None, 1: (1, 7), 2: (0, 1)}
        assert [error.errno for error in move(python_admin, topic, targets)] == [
            ErrorCode.no_reassignment_in_progress,
            ErrorCode.invalid_replica_assignment,
            ErrorCode.unknown_topic_or_partition,
        ]

    def test_of_many_partitions_begin_at_once(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        count = 200
        topic = create(admin, three, *[(0, 1)] * count)
        assert move(python_admin, topic, dict.fromkeys(range(count), (1, 2))) == [None] * count
        until_all(three, topic, range(count), lambda known: set(known.replicas) == {1, 2})


class TestElections:
    def test_bring_the_preferred_leader_back(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        topic = create(admin, three, (0, 1, 2))
        assert move(python_admin, topic, {0: (1, 0, 2)}) == [None]
        until(three, topic, 0, lambda known: known.replicas == (1, 0, 2) and known.leader == 0)
        elected = admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(topic, 0), TopicPartition(topic, 9)]
        ).result(20)
        errors = {where.partition: error for where, error in elected.items()}
        assert errors[0] is None
        assert errors[9].name() == "UNKNOWN_TOPIC_OR_PART"
        until(three, topic, 0, lambda known: known.leader == 1 and known.leader_epoch > 0)
        again = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(20)
        assert [error.name() for error in again.values()] == ["ELECTION_NOT_NEEDED"]

    def test_of_all_partitions_name_those_that_changed(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        topic = create(admin, three, (0, 1, 2), (1, 2, 0))
        move(python_admin, topic, {1: (2, 1, 0)})
        elected = admin.elect_leaders(ElectionType.PREFERRED, None).result(20)
        mine = [where.partition for where in elected if where.topic == topic]
        assert mine == [1]

    def test_take_who_was_not_in_sync_if_asked_to(
        self, three: TestCluster, admin: AdminClient
    ) -> None:
        topic = create(admin, three, (0, 1))
        where = [TopicPartition(topic, 0)]
        refused = admin.elect_leaders(ElectionType.UNCLEAN, where).result(20)
        assert [error.name() for error in refused.values()] == ["ELECTION_NOT_NEEDED"]
        three.brokers[1].kill()
        until(three, topic, 0, lambda known: known.isr == (0,))
        three.brokers[0].kill()
        until(three, topic, 0, lambda known: not known.is_led)
        three.wait_for(lambda: three.brokers[2].known().controller == 2, "the last one to decide")
        survivor = AdminClient({"bootstrap.servers": three.brokers[2].address, "log_level": 0})
        nobody = survivor.elect_leaders(ElectionType.UNCLEAN, where).result(20)
        assert [error.name() for error in nobody.values()] == ["ELIGIBLE_LEADERS_NOT_AVAILABLE"]
        three.brokers[1].start()
        elected = survivor.elect_leaders(ElectionType.UNCLEAN, where).result(20)
        assert list(elected.values()) == [None]
        until(three, topic, 0, lambda known: known.leader == 1)
        three.brokers[0].start()
        three.wait_healthy()


class TestTopics:
    def test_have_as_many_replicas_as_asked_for_or_by_default(
        self, three: TestCluster, admin: AdminClient
    ) -> None:
        for asked, found in ((-1, 3), (2, 2), (1, 1)):
            name = f"topic-{uuid.uuid4().hex[:12]}"
            new = NewTopic(name, num_partitions=2, replication_factor=asked)
            admin.create_topics([new], operation_timeout=15)[name].result(20)
            until_all(three, name, range(2), lambda known, n=found: len(known.replicas) == n)

    @pytest.mark.parametrize(
        ("new", "error"),
        [
            ({"num_partitions": 1, "replication_factor": 4}, "INVALID_REPLICATION_FACTOR"),
            (
                {"num_partitions": 2, "replica_assignment": [[0, 1], [2]]},
                "INVALID_REPLICA_ASSIGNMENT",
            ),
            ({"num_partitions": 1, "replica_assignment": [[0, 9]]}, "INVALID_REPLICA_ASSIGNMENT"),
            ({"num_partitions": 1, "replica_assignment": [[0, 0]]}, "INVALID_REPLICA_ASSIGNMENT"),
        ],
    )
    def test_are_refused_if_the_brokers_are_not_there(
        self, admin: AdminClient, new: dict[str, Any], error: str
    ) -> None:
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([NewTopic("refused", **new)])["refused"].result(20)
        assert caught.value.args[0].name() == error

    def test_that_take_too_long_are_made_nevertheless(
        self, three: TestCluster, admin: AdminClient
    ) -> None:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        new = NewTopic(name, num_partitions=60, replication_factor=3)
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([new], operation_timeout=0.001)[name].result(20)
        assert caught.value.args[0].name() == "REQUEST_TIMED_OUT"
        until_all(three, name, range(60), lambda known: len(known.isr) == 3)

    def test_that_wait_for_another_broker_do_not_keep_one_from_stopping(
        self, three: TestCluster
    ) -> None:
        stopping, _, hanging = three.brokers
        assignment = {"partition_index": 0, "broker_ids": [broker.id for broker in three.brokers]}
        new = {
            "name": f"topic-{uuid.uuid4().hex[:12]}",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [assignment],
            "configs": [],
        }
        hanging.pause()
        with Wire(stopping.address) as wire:
            wire.send(
                request("create_topics", 5, topics=[new], timeout=60_000, validate_only=False)
            )
            assert wire.is_silent(0.5)
            stopping.terminate()
        hanging.resume()
        stopping.start()
        three.wait_healthy()

    def test_grow_on_the_brokers_asked_for(self, three: TestCluster, admin: AdminClient) -> None:
        topic = create(admin, three, (0, 1))
        more = NewPartitions(topic, 3, replica_assignment=[[2, 1], [1, 0]])
        admin.create_partitions([more], operation_timeout=15)[topic].result(20)
        assert until(three, topic, 1, lambda known: known.is_led).replicas == (2, 1)
        assert until(three, topic, 2, lambda known: known.is_led).replicas == (1, 0)

    def test_go_everywhere(self, three: TestCluster, admin: AdminClient) -> None:
        topic = create(admin, three, (0, 1, 2))
        admin.delete_topics([topic], operation_timeout=15)[topic].result(20)
        three.wait_for(
            lambda: all(known.partition(topic, 0) is None for known in three.known().values()),
            "nobody to know the topic",
        )

    def test_with_names_that_collide_go_one_by_one_if_both_were_made_at_once(
        self, admin: AdminClient
    ) -> None:
        first, second = "made.at_once", "made_at.once"
        both = [NewTopic(name, 1, replication_factor=1) for name in (first, second)]
        for made in admin.create_topics(both, operation_timeout=15).values():
            made.result(20)
        admin.delete_topics([second], operation_timeout=5)[second].result(20)
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([both[1]], operation_timeout=15)[second].result(20)
        assert caught.value.args[0].name() == "TOPIC_EXCEPTION"
        admin.delete_topics([first], operation_timeout=5)[first].result(20)
        admin.create_topics([both[1]], operation_timeout=15)[second].result(20)

    def test_obey_a_setting_that_was_changed_through_any_broker(
        self, three: TestCluster, admin: AdminClient
    ) -> None:
        topic = create(admin, three, (0,), (1,), (2,))
        entry = ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(20)

        def error(partition: int) -> str:
            producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all", "retries": 0})
            told: list[Any] = []
            producer.produce(
                topic, b"x", partition=partition, callback=lambda error, _: told.append(error)
            )
            producer.flush(20)
            return "" if told[0] is None else str(told[0].name())

        three.wait_for(
            lambda: {error(partition) for partition in range(3)} == {"NOT_ENOUGH_REPLICAS"},
            "every partition to refuse writes",
        )


class TestDeletingRecords:
    @staticmethod
    def delete(
        three: TestCluster, topic: str, offset: int, *, timeout_s: float = 15
    ) -> tuple[ErrorCode, int]:
        """What the leader answers, with the low watermark. No client that has to look for it."""

        def build(new: Messages) -> Any:
            asked = new("DeleteRecordsPartition", partition_index=0, offset=offset)
            return new(
                "DeleteRecordsRequest",
                topics=(new("DeleteRecordsTopic", name=topic, partitions=(asked,)),),
                timeout=datetime.timedelta(seconds=timeout_s),
            )

        address = parse_bootstrap(three.leader_of(topic).address)[0]
        connection = Connection(address, client_id="test", timeout_ms=20_000)
        with contextlib.closing(connection):
            answer = connection.call(DELETE_RECORDS, build)
        partition = answer.topics[0].partitions[0]
        return partition.error_code, partition.low_watermark

    @staticmethod
    def earliest(three: TestCluster, topic: str) -> int:
        admin = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})
        place = TopicPartition(topic, 0)
        found = admin.list_offsets({place: EARLIEST})[place].result(20).offset
        assert isinstance(found, int)
        return found

    def test_whoever_leads_next_does_not_show_them(
        self, three: TestCluster, admin: AdminClient, python_admin: Any
    ) -> None:
        topic = create(admin, three, (0, 1, 2))
        fill(three, topic, 500_000)
        for offset, leader in ((3, 1), (7, 2)):
            others = tuple({0, 1, 2} - {leader})
            assert self.delete(three, topic, offset) == (ErrorCode.none, offset)
            assert move(python_admin, topic, {0: (leader, *others)}) == [None]
            elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)])
            assert list(elected.result(20).values()) == [None]
            until(three, topic, 0, lambda known, wanted=leader: known.leader == wanted)
            assert self.earliest(three, topic) == offset

    def test_waits_for_the_replicas_in_sync_as_long_as_the_request_says(
        self, three: TestCluster, admin: AdminClient
    ) -> None:
        topic = create(admin, three, (0, 1))
        fill(three, topic, 500_000)
        three.brokers[1].pause()
        try:
            late, _ = self.delete(three, topic, 3, timeout_s=0.2)
            assert late is ErrorCode.request_timed_out
            assert self.delete(three, topic, 5) == (ErrorCode.none, 5), "it is not in sync any more"
            assert until(three, topic, 0, lambda known: known.isr == (0,)).leader == 0
        finally:
            three.brokers[1].resume()
        three.wait_healthy()

    def test_that_are_not_committed_yet_is_refused(
        self, three: TestCluster, admin: AdminClient
    ) -> None:
        topic = create(admin, three, (0, 1))
        assert self.delete(three, topic, 1) == (ErrorCode.offset_out_of_range, -1)
