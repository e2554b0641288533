"""What clients are told of the cluster, its topics and their offsets."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Caller, RequestContext
from penstock.kafka.handlers import (
    describe_cluster,
    describe_topic_partitions,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
)
from penstock.kafka.list_offsets_codec import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionAsked,
    PartitionOffset,
    TopicAsked,
)
from penstock.settings import BrokerConfig

if TYPE_CHECKING:
    from tests.topics.conftest import World

START_MS = 1_700_000_000_000  # where a ManualClock begins


def version(number: int) -> RequestContext:
    return RequestContext(api_version=number, client_id="test", caller=Caller("127.0.0.1"))


class TestMetadata:
    async def ask(
        self, world: World, *topics: str | uuid.UUID, number: int = 13, **options: Any
    ) -> metadata.MetadataResponse:
        asked = tuple(
            metadata.TopicAsked(name=None, topic_id=topic)
            if isinstance(topic, uuid.UUID)
            else metadata.TopicAsked(name=topic)
            for topic in topics
        )
        request = metadata.MetadataRequest(topics=asked, **options)
        return await metadata.handle(world.broker, request, version(number))

    async def test_it_names_this_broker_and_cluster(self, world: World) -> None:
        answer = await self.ask(world)
        assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [
            (7, "broker.example", 9092, "r1")
        ]
        assert (answer.cluster_id, answer.controller_id) == ("cluster", 7)

    async def test_this_broker_leads_every_partition(self, world: World) -> None:
        topic = await world.catalog.create("t", 2)
        (answer,) = (await self.ask(world, "t")).topics
        assert (answer.error_code, answer.name, answer.topic_id) == (ErrorCode.none, "t", topic.id)
        assert [(p.partition_index, p.leader_id, p.leader_epoch) for p in answer.partitions] == [
            (0, 7, 0),
            (1, 7, 0),
        ]
        assert answer.partitions[0].replica_nodes == answer.partitions[0].isr_nodes == (7,)
        assert answer.partitions[0].offline_replicas == ()

    async def test_null_asks_for_all_and_empty_for_none_but_in_version_0(
        self, world: World
    ) -> None:
        await world.catalog.create("t", 1)
        everything = metadata.MetadataRequest(topics=None)
        answer = await metadata.handle(world.broker, everything, version(1))
        assert [topic.name for topic in answer.topics] == ["t"]
        assert (await self.ask(world, number=1)).topics == []
        assert [t.name for t in (await self.ask(world, number=0)).topics] == ["t"]

    async def test_an_unknown_topic_is_created_if_the_client_and_the_broker_agree(
        self, world: World
    ) -> None:
        (refused,) = (await self.ask(world, "t", allow_auto_topic_creation=False)).topics
        assert refused.error_code is ErrorCode.unknown_topic_or_partition
        (created,) = (await self.ask(world, "t")).topics
        assert created.error_code is ErrorCode.none
        assert len(created.partitions) == 1

    async def test_a_broker_that_does_not_create_says_unknown(self, world: World) -> None:
        world.broker.config = BrokerConfig(auto_create_topics=False)
        (refused,) = (await self.ask(world, "t")).topics
        assert refused.error_code is ErrorCode.unknown_topic_or_partition

    @pytest.mark.parametrize("allow", [True, False])
    async def test_an_illegal_name_is_said_to_be_one(self, world: World, allow: bool) -> None:
        (refused,) = (await self.ask(world, "a/b", allow_auto_topic_creation=allow)).topics
        assert (refused.error_code, refused.name) == (ErrorCode.invalid_topic_exception, "a/b")

    async def test_a_topic_is_found_by_its_id(self, world: World) -> None:
        topic = await world.catalog.create("t", 1)
        nobody = uuid.uuid4()
        found, unknown = (await self.ask(world, topic.id, nobody)).topics
        assert (found.name, found.topic_id) == ("t", topic.id)
        assert (unknown.error_code, unknown.name, unknown.topic_id) == (
            ErrorCode.unknown_topic_id,
            None,
            nobody,
        )

    async def test_before_version_12_ids_are_refused(self, world: World) -> None:
        with pytest.raises(ApiError) as caught:
            await self.ask(world, uuid.uuid4(), number=11)
        assert caught.value.code is ErrorCode.invalid_request

    async def test_answers_come_in_the_order_asked_and_once(self, world: World) -> None:
        answer = await self.ask(world, "c", "a", "b/", "a", "d")
        assert [topic.name for topic in answer.topics] == ["c", "a", "b/", "d"]

    async def test_authorized_operations_are_told_when_asked_for(self, world: World) -> None:
        await world.catalog.create("t", 1)
        answer = await self.ask(
            world,
            "t",
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        assert answer.topics[0].topic_authorized_operations == 0b110111111000
        assert answer.cluster_authorized_operations == 0b1111110100000
        assert (await self.ask(world, "t")).topics[0].topic_authorized_operations == -(2**31)

    async def test_a_damaged_partition_is_offline_but_has_its_leader(
        self, world: World, tmp_path: Path
    ) -> None:
        await world.catalog.create("t", 2)
        await world.stop()
        os.rename(tmp_path / "t" / "1", tmp_path / "t" / "moved")
        (tmp_path / "t" / "1").write_text("not a directory")
        await world.start()
        (answer,) = (await self.ask(world, "t")).topics
        assert [p.offline_replicas for p in answer.partitions] == [(), (7,)]
        assert [p.leader_id for p in answer.partitions] == [7, 7]


class TestListOffsets:
    async def ask(
        self, world: World, timestamp: int, *, number: int = 11, epoch: int = -1, partition: int = 0
    ) -> PartitionOffset:
        asked = PartitionAsked(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        return (await self.ask_all(world, asked, number=number))[0]

    async def ask_all(
        self, world: World, *asked: PartitionAsked, number: int = 11
    ) -> list[PartitionOffset]:
        topic = TopicAsked("t", asked)
        request = ListOffsetsRequest(replica_id=-1, topics=(topic,))
        answer = list_offsets.handle(world.broker, request, version(number))
        if not isinstance(answer, ListOffsetsResponse):
            answer = await answer
        return list(answer.topics[0].partitions)

    async def fill(self, world: World) -> None:
        """Offsets 0 to 4 with times 10, 30, 20, 30, 25 after the start."""
        await world.catalog.create("t", 2)
        world.append("t", 0, START_MS + 10, START_MS + 30)
        world.append("t", 0, START_MS + 20, START_MS + 30, START_MS + 25)

    async def test_latest_is_the_end_and_earliest_the_start(self, world: World) -> None:
        await self.fill(world)
        latest, earliest = await self.ask(world, -1), await self.ask(world, -2)
        assert (latest.offset, latest.timestamp, latest.leader_epoch) == (5, -1, 0)
        assert (earliest.offset, earliest.timestamp, earliest.leader_epoch) == (0, -1, 0)

    async def test_an_empty_partition_begins_and_ends_at_0(self, world: World) -> None:
        await self.fill(world)
        answers = [await self.ask(world, when, partition=1) for when in (-1, -2, -4)]
        assert [answer.offset for answer in answers] == [0, 0, 0]

    @pytest.mark.parametrize(
        ("after_ms", "offset", "found_ms"), [(0, 0, 10), (10, 0, 10), (11, 1, 30), (30, 1, 30)]
    )
    async def test_a_time_has_the_first_offset_at_or_after_it(
        self, world: World, after_ms: int, offset: int, found_ms: int
    ) -> None:
        await self.fill(world)
        answer = await self.ask(world, START_MS + after_ms)
        assert (answer.offset, answer.timestamp) == (offset, START_MS + found_ms)
        assert (answer.error_code, answer.leader_epoch) == (ErrorCode.none, 0)

    async def test_a_time_after_the_last_record_has_none(self, world: World) -> None:
        await self.fill(world)
        answer = await self.ask(world, START_MS + 31)
        assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.none, -1, -1)

    async def test_the_largest_timestamp(self, world: World) -> None:
        await self.fill(world)
        answer = await self.ask(world, -3)
        assert (answer.offset, answer.timestamp) == (1, START_MS + 30)
        assert (await self.ask(world, -3, partition=1)).offset == -1

    @pytest.mark.parametrize("timestamp", [-5, -6])
    async def test_without_a_cold_tier_nothing_is_tiered(
        self, world: World, timestamp: int
    ) -> None:
        await self.fill(world)
        answer = await self.ask(world, timestamp)
        assert (answer.error_code, answer.offset) == (ErrorCode.none, -1)

    @pytest.mark.parametrize(
        ("timestamp", "first"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)]
    )
    async def test_a_special_time_is_unknown_before_its_version(
        self, world: World, timestamp: int, first: int
    ) -> None:
        await self.fill(world)
        for number in range(1, 12):
            answer = await self.ask(world, timestamp, number=number)
            expected = ErrorCode.none if number >= first else ErrorCode.unsupported_version
            assert answer.error_code is expected

    async def test_after_records_are_deleted_the_start_is_higher(self, world: World) -> None:
        await self.fill(world)
        await world.logs.delete_records_before(world.catalog.partition("t", 0).log, 2)
        assert (await self.ask(world, -2)).offset == 2
        assert (await self.ask(world, START_MS)).offset == 2

    async def test_the_leader_epoch_is_checked(self, world: World) -> None:
        await self.fill(world)
        await world.store.put("partitions/t/0", b'{"leader_epoch":3}')
        await world.restart()
        codes = [(await self.ask(world, -1, epoch=epoch)).error_code for epoch in (-1, 2, 3, 4)]
        assert codes == [
            ErrorCode.none,
            ErrorCode.fenced_leader_epoch,
            ErrorCode.none,
            ErrorCode.unknown_leader_epoch,
        ]
        assert (await self.ask(world, -2)).leader_epoch == 0
        assert (await self.ask(world, -1)).leader_epoch == 3

    async def test_a_partition_asked_for_twice_is_refused(self, world: World) -> None:
        await self.fill(world)
        asked = [PartitionAsked(partition_index=index, timestamp=-1) for index in (0, 1, 0)]
        codes = [answer.error_code for answer in await self.ask_all(world, *asked)]
        assert codes == [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.invalid_request]

    async def test_an_unknown_partition(self, world: World) -> None:
        await self.fill(world)
        answer = await self.ask(world, -1, partition=2)
        assert answer.error_code is ErrorCode.unknown_topic_or_partition


class TestOffsetForLeaderEpoch:
    def ask(self, world: World, epoch: int, current: int = -1) -> tuple[ErrorCode, int, int]:
        asked = offset_for_leader_epoch.PartitionAsked(
            partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        topic = offset_for_leader_epoch.TopicAsked(topic="t", partitions=(asked,))
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=(topic,))
        answer = offset_for_leader_epoch.handle(world.broker, request, version(4))
        (end,) = answer.topics[0].partitions
        return end.error_code, end.leader_epoch, end.end_offset

    async def test_an_epoch_ends_where_the_next_begins(self, world: World) -> None:
        await world.catalog.create("t", 1)
        world.append("t", 0, START_MS, START_MS)
        await world.store.put("partitions/t/0", b'{"leader_epoch":2}')
        await world.restart()
        world.append("t", 0, START_MS)
        assert self.ask(world, 0) == (ErrorCode.none, 0, 2)
        assert self.ask(world, 1) == (ErrorCode.none, 0, 2)
        assert self.ask(world, 2, current=2) == (ErrorCode.none, 2, 3)
        assert self.ask(world, 3) == (ErrorCode.none, -1, -1)
        assert self.ask(world, 2, current=1) == (ErrorCode.fenced_leader_epoch, -1, -1)

    async def test_the_epoch_of_the_leader_ends_with_the_log_if_it_has_no_records(
        self, world: World
    ) -> None:
        """Consumers take an unknown end for a log that was cut, and leave their place."""
        await world.catalog.create("t", 1)
        assert self.ask(world, 0) == (ErrorCode.none, 0, 0)
        assert self.ask(world, 1) == (ErrorCode.none, -1, -1)
        world.append("t", 0, START_MS, START_MS)
        await world.store.put("partitions/t/0", b'{"leader_epoch":2}')
        await world.restart()
        assert self.ask(world, 2) == (ErrorCode.none, 2, 2)
        await world.logs.delete_records_before(world.catalog.partition("t", 0).log, 2)
        await world.restart()
        assert self.ask(world, 0) == (ErrorCode.none, 0, 2)
        assert self.ask(world, 2) == (ErrorCode.none, 2, 2)


class TestDescribeTopicPartitions:
    def ask(
        self,
        world: World,
        *names: str,
        limit: int = 2_000,
        cursor: describe_topic_partitions.Cursor | None = None,
    ) -> describe_topic_partitions.DescribeTopicPartitionsResponse:
        request = describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=tuple(describe_topic_partitions.TopicAsked(name=name) for name in names),
            response_partition_limit=limit,
            cursor=cursor,
        )
        return describe_topic_partitions.handle(world.broker, request, version(0))

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 100])
    async def test_pages_follow_each_other_without_gap_or_repetition(
        self, world: World, limit: int
    ) -> None:
        for name, count in (("b", 3), ("a", 1), ("c", 2)):
            await world.catalog.create(name, count)
        seen: list[tuple[str | None, int]] = []
        cursor = None
        while True:
            page = self.ask(world, limit=limit, cursor=cursor)
            rows = [
                (topic.name, p.partition_index) for topic in page.topics for p in topic.partitions
            ]
            assert len(rows) <= limit
            seen += rows
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]

    async def test_unknown_and_illegal_topics_have_their_errors(self, world: World) -> None:
        await world.catalog.create("t", 1)
        answer = self.ask(world, "t", "u", "a/b")
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [
            ("a/b", ErrorCode.invalid_topic_exception),
            ("t", ErrorCode.none),
            ("u", ErrorCode.unknown_topic_or_partition),
        ]

    @pytest.mark.parametrize(("name", "index"), [("other", 0), ("t", -1)])
    async def test_a_cursor_must_stand_in_what_is_asked(
        self, world: World, name: str, index: int
    ) -> None:
        await world.catalog.create("t", 1)
        cursor = describe_topic_partitions.Cursor(topic_name=name, partition_index=index)
        with pytest.raises(ApiError) as caught:
            self.ask(world, "t", cursor=cursor)
        assert caught.value.code is ErrorCode.invalid_request


class TestInitProducerId:
    async def ask(self, world: World, **fields: Any) -> init_producer_id.InitProducerIdResponse:
        request = init_producer_id.InitProducerIdRequest(**{"transactional_id": None, **fields})
        return await init_producer_id.handle(world.broker, request, version(5))

    async def test_every_producer_gets_its_own_id(self, any_world: World) -> None:
        first = await self.ask(any_world)
        await any_world.restart()
        second = await self.ask(any_world)
        assert (first.producer_epoch, second.producer_epoch) == (0, 0)
        assert second.producer_id > first.producer_id >= 0

    async def test_transactions_are_refused_at_once(self, world: World) -> None:
        with pytest.raises(ApiError) as caught:
            await self.ask(world, transactional_id="tx")
        assert caught.value.code is ErrorCode.transactional_id_authorization_failed

    @pytest.mark.parametrize(
        "fields", [{"transactional_id": ""}, {"producer_id": 3}, {"producer_epoch": 3}]
    )
    async def test_half_a_request_is_invalid(self, world: World, fields: dict[str, Any]) -> None:
        with pytest.raises(ApiError) as caught:
            await self.ask(world, **fields)
        assert caught.value.code is ErrorCode.invalid_request


class TestDescribeCluster:
    @pytest.mark.parametrize(
        ("endpoint_type", "code"),
        [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)],
    )
    async def test_only_brokers_are_here(
        self, world: World, endpoint_type: int, code: ErrorCode
    ) -> None:
        request = describe_cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type
        )
        with pytest.raises(ApiError) as caught:
            describe_cluster.handle(world.broker, request, version(2))
        assert caught.value.code is code
