"""What administrators may ask and change."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.broker.topic_configs import Operation
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Caller, RequestContext
from penstock.kafka.handlers import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    incremental_alter_configs,
)

if TYPE_CHECKING:
    from tests.topics.conftest import World

CONTEXT = RequestContext(api_version=7, client_id="test", caller=Caller("127.0.0.1"))
START_MS = 1_700_000_000_000  # where a ManualClock begins
TOPIC, BROKER = 2, 4


def new_topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Mapping[int, tuple[int, ...]] | None = None,
) -> create_topics.NewTopic:
    return create_topics.NewTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=tuple(
            create_topics.Config(name=key, value=value) for key, value in (configs or {}).items()
        ),
        assignments=tuple(
            create_topics.Assignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ),
    )


class TestCreateTopics:
    async def ask(
        self, world: World, *topics: create_topics.NewTopic, validate_only: bool = False
    ) -> dict[str, create_topics.TopicResult]:
        request = create_topics.CreateTopicsRequest(topics=topics, validate_only=validate_only)
        answer = await create_topics.handle(world.broker, request, CONTEXT)
        return {result.name: result for result in answer.topics}

    async def test_each_topic_has_its_own_answer(self, world: World) -> None:
        answers = await self.ask(world, new_topic("a", 2), new_topic("b/"), new_topic("c", 1, 3))
        assert {name: answer.error_code for name, answer in answers.items()} == {
            "a": ErrorCode.none,
            "b/": ErrorCode.invalid_topic_exception,
            "c": ErrorCode.invalid_replication_factor,
        }
        topic = world.catalog.get("a")
        assert topic is not None
        assert (answers["a"].num_partitions, answers["a"].topic_id) == (2, topic.id)
        assert answers["c"].error_message

    async def test_the_answer_shows_the_settings_in_force(self, world: World) -> None:
        answers = await self.ask(world, new_topic("a", configs={"retention.ms": "5"}))
        configs = {config.name: config for config in answers["a"].configs or ()}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
        assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("86400000", 5)

    async def test_a_setting_without_a_value_is_refused(self, world: World) -> None:
        answers = await self.ask(world, new_topic("a", configs={"retention.ms": None}))
        assert answers["a"].error_code is ErrorCode.invalid_config
        assert answers["a"].error_message == "retention.ms is given no value"
        assert world.catalog.get("a") is None

    async def test_a_topic_named_twice_is_not_created(self, world: World) -> None:
        answers = await self.ask(world, new_topic("a"), new_topic("b"), new_topic("a"))
        assert answers["a"].error_code is ErrorCode.invalid_request
        assert answers["b"].error_code is ErrorCode.none
        assert world.catalog.get("a") is None

    async def test_validate_only_creates_nothing(self, world: World) -> None:
        answers = await self.ask(world, new_topic("a", 5), validate_only=True)
        assert (answers["a"].error_code, answers["a"].num_partitions) == (ErrorCode.none, 5)
        assert world.catalog.all() == []

    async def test_a_manual_assignment_stands_alone(self, world: World) -> None:
        here = {0: (7,), 1: (7,)}
        answers = await self.ask(
            world,
            new_topic("a", -1, -1, assignments=here),
            new_topic("b", 2, -1, assignments=here),
            new_topic("c", -1, 1, assignments=here),
            new_topic("d", -1, -1, assignments={0: (1,)}),
        )
        assert [answers[name].error_code for name in "abcd"] == [
            ErrorCode.none,
            ErrorCode.invalid_request,
            ErrorCode.invalid_request,
            ErrorCode.invalid_replica_assignment,
        ]
        assert answers["a"].num_partitions == 2

    async def test_a_request_adds_no_more_than_10_000_partitions(self, world: World) -> None:
        with pytest.raises(ApiError) as caught:
            await self.ask(world, new_topic("a", 9_999), new_topic("b", 2))
        assert caught.value.code is ErrorCode.policy_violation


class TestDeleteTopics:
    async def ask(
        self, world: World, *topics: tuple[str | None, uuid.UUID | None]
    ) -> list[tuple[str | None, ErrorCode]]:
        request = delete_topics.DeleteTopicsRequest(
            topics=tuple(delete_topics.TopicNamed(name=name, topic_id=id_) for name, id_ in topics)
        )
        answer = await delete_topics.handle(world.broker, request, CONTEXT)
        return [(result.name, result.error_code) for result in answer.responses]

    async def test_by_name_and_by_id(self, world: World) -> None:
        await world.catalog.create("a", 1)
        topic = await world.catalog.create("b", 1)
        answers = await self.ask(world, ("a", None), (None, topic.id))
        assert answers == [("a", ErrorCode.none), ("b", ErrorCode.none)]
        assert world.catalog.all() == []

    async def test_what_is_not_there(self, world: World) -> None:
        answers = await self.ask(world, ("a", None), (None, uuid.uuid4()))
        assert answers == [
            ("a", ErrorCode.unknown_topic_or_partition),
            (None, ErrorCode.unknown_topic_id),
        ]

    async def test_a_topic_is_named_once_and_in_one_way(self, world: World) -> None:
        a, b = await world.catalog.create("a", 1), await world.catalog.create("b", 1)
        answers = await self.ask(
            world, ("a", None), ("a", None), ("b", b.id), (None, None), ("c", None)
        )
        assert [code for _, code in answers] == [
            *[ErrorCode.invalid_request] * 3,
            ErrorCode.unknown_topic_or_partition,
        ]
        answers = await self.ask(world, ("a", None), (None, a.id))
        assert sorted(code.name for _, code in answers) == ["invalid_request", "none"]


class TestCreatePartitions:
    async def test_each_topic_has_its_own_answer(self, world: World) -> None:
        for name in ("a", "b", "c"):
            await world.catalog.create(name, 2)

        def growth(name: str, count: int) -> create_partitions.TopicGrowth:
            return create_partitions.TopicGrowth(name=name, count=count, assignments=None)

        request = create_partitions.CreatePartitionsRequest(
            topics=(growth("a", 3), growth("b", 1), growth("x", 3), growth("c", 4), growth("c", 5)),
            validate_only=False,
        )
        answer = await create_partitions.handle(world.broker, request, CONTEXT)
        assert {result.name: result.error_code for result in answer.results} == {
            "a": ErrorCode.none,
            "b": ErrorCode.invalid_partitions,
            "x": ErrorCode.unknown_topic_or_partition,
            "c": ErrorCode.invalid_request,
        }
        assert [len(topic.partitions) for topic in world.catalog.all()] == [3, 2, 2]


class TestDeleteRecords:
    async def ask(self, world: World, *asked: tuple[int, int]) -> list[tuple[ErrorCode, int]]:
        partitions = tuple(
            delete_records.PartitionAsked(partition_index=index, offset=offset)
            for index, offset in asked
        )
        topic = delete_records.TopicAsked(name="t", partitions=partitions)
        request = delete_records.DeleteRecordsRequest(topics=(topic,))
        answer = await delete_records.handle(world.broker, request, CONTEXT)
        return [(p.error_code, p.low_watermark) for p in answer.topics[0].partitions]

    async def test_the_start_moves_up_and_stays_there(self, any_world: World) -> None:
        await any_world.catalog.create("t", 2)
        for partition in (0, 1):
            any_world.append("t", partition, START_MS, START_MS, START_MS)
        assert await self.ask(any_world, (0, 2), (1, -1)) == [
            (ErrorCode.none, 2),
            (ErrorCode.none, 3),
        ]
        await any_world.restart()
        topic = any_world.catalog.get("t")
        assert topic is not None
        assert [p.log.log_start_offset for p in topic.partitions] == [2, 3]

    async def test_what_can_not_be_deleted(self, world: World) -> None:
        await world.catalog.create("t", 1)
        world.append("t", 0, START_MS)
        assert await self.ask(world, (0, 2), (0, -2), (1, 0)) == [
            (ErrorCode.offset_out_of_range, -1),
            (ErrorCode.offset_out_of_range, -1),
            (ErrorCode.unknown_topic_or_partition, -1),
        ]


class TestDescribeConfigs:
    def ask(
        self,
        world: World,
        resource_type: int,
        name: str,
        *,
        keys: tuple[str, ...] | None = None,
        full: bool = True,
    ) -> describe_configs.ResourceResult:
        resource = describe_configs.Resource(
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        request = describe_configs.DescribeConfigsRequest(
            resources=(resource,), include_synonyms=full, include_documentation=full
        )
        return describe_configs.handle(world.broker, request, CONTEXT).results[0]

    async def test_a_topics_own_value_stands_over_the_default(self, world: World) -> None:
        await world.catalog.create("t", 1, {"retention.ms": "5"})
        configs = {config.name: config for config in self.ask(world, TOPIC, "t").configs}
        own = configs["retention.ms"]
        assert (own.value, own.config_source, own.config_type, own.read_only) == ("5", 1, 5, False)
        assert [(s.name, s.value, s.source) for s in own.synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.ms", "604800000", 5),
        ]
        assert own.documentation
        assert configs["cleanup.policy"].config_type == 7
        assert configs["unclean.leader.election.enable"].config_type == 1

    @pytest.mark.parametrize("keys", [None, ()])
    async def test_no_keys_are_all_keys(self, world: World, keys: tuple[str, ...] | None) -> None:
        await world.catalog.create("t", 1)
        assert len(self.ask(world, TOPIC, "t", keys=keys).configs) > 10

    async def test_keys_choose(self, world: World) -> None:
        await world.catalog.create("t", 1)
        answer = self.ask(world, TOPIC, "t", keys=("retention.ms", "no.such"))
        assert [config.name for config in answer.configs] == ["retention.ms"]

    async def test_what_was_not_asked_for_is_left_out(self, world: World) -> None:
        await world.catalog.create("t", 1)
        config = self.ask(world, TOPIC, "t", full=False).configs[0]
        assert (config.synonyms, config.documentation) == ((), None)

    async def test_the_brokers_settings_are_read_only(self, world: World, tmp_path: Path) -> None:
        configs = {config.name: config for config in self.ask(world, BROKER, "7").configs}
        assert all(config.read_only for config in configs.values())
        assert (configs["broker.id"].value, configs["broker.id"].config_source) == ("7", 4)
        assert configs["log.dirs"].value == str(tmp_path)
        assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == (
            "1",
            5,
        )
        assert configs["auto.create.topics.enable"].value == "true"
        assert configs["log.segment.bytes"].value == "1073741824"
        assert self.ask(world, BROKER, "").configs == []

    async def test_a_secret_of_the_broker_is_told_to_nobody(self, world: World) -> None:
        world.broker.config = replace(world.config, etcd_password="s3cret")
        answer = self.ask(world, BROKER, "7")
        assert "s3cret" not in repr(answer)
        assert "s3cret" not in repr(world.broker.config)
        config = next(config for config in answer.configs if config.name == "etcd.password")
        assert (config.value, config.is_sensitive, config.config_type) == (None, True, 9)
        assert [synonym.value for synonym in config.synonyms] == [None, None]
        response = describe_configs.DescribeConfigsResponse(results=[answer])
        for version in describe_configs.API.versions:
            describe_configs.API.encode(version, response)

    @pytest.mark.parametrize(
        ("resource_type", "name", "code"),
        [
            (TOPIC, "t", ErrorCode.unknown_topic_or_partition),
            (TOPIC, "a/b", ErrorCode.invalid_topic_exception),
            (BROKER, "8", ErrorCode.invalid_request),
            (8, "7", ErrorCode.invalid_request),
        ],
    )
    async def test_what_has_no_settings(
        self, world: World, resource_type: int, name: str, code: ErrorCode
    ) -> None:
        answer = self.ask(world, resource_type, name)
        assert (answer.error_code, answer.configs) == (code, ())
        assert answer.error_message


class TestAlterConfigs:
    async def ask(
        self,
        world: World,
        configs: Mapping[str, str | None],
        *,
        resource: tuple[int, str] = (TOPIC, "t"),
    ) -> ErrorCode:
        request = alter_configs.AlterConfigsRequest(
            resources=(
                alter_configs.Resource(
                    resource_type=resource[0],
                    resource_name=resource[1],
                    configs=tuple(
                        alter_configs.Config(name=name, value=value)
                        for name, value in configs.items()
                    ),
                ),
            ),
            validate_only=False,
        )
        answer = await alter_configs.handle(world.broker, request, CONTEXT)
        return answer.responses[0].error_code

    async def test_it_replaces_all(self, world: World) -> None:
        topic = await world.catalog.create("t", 1, {"retention.ms": "5"})
        assert await self.ask(world, {"segment.ms": "6"}) is ErrorCode.none
        assert topic.overrides == {"segment.ms": "6"}

    async def test_what_it_refuses(self, world: World) -> None:
        topic = await world.catalog.create("t", 1, {"retention.ms": "5"})
        assert await self.ask(world, {"retention.ms": None}) is ErrorCode.invalid_request
        assert await self.ask(world, {"retention.ms": "x"}) is ErrorCode.invalid_config
        assert await self.ask(world, {}, resource=(BROKER, "7")) is ErrorCode.invalid_request
        unknown = await self.ask(world, {}, resource=(TOPIC, "u"))
        assert unknown is ErrorCode.unknown_topic_or_partition
        assert topic.overrides == {"retention.ms": "5"}


class TestIncrementalAlterConfigs:
    async def ask(
        self,
        world: World,
        *changes: tuple[str, int, str | None],
        validate_only: bool = False,
        resource: tuple[int, str] = (TOPIC, "t"),
    ) -> ErrorCode:
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=(
                incremental_alter_configs.Resource(
                    resource_type=resource[0],
                    resource_name=resource[1],
                    configs=tuple(
                        incremental_alter_configs.Config(
                            name=name, config_operation=operation, value=value
                        )
                        for name, operation, value in changes
                    ),
                ),
            ),
            validate_only=validate_only,
        )
        answer = await incremental_alter_configs.handle(world.broker, request, CONTEXT)
        return answer.responses[0].error_code

    async def test_single_settings_are_set_and_deleted(self, world: World) -> None:
        topic = await world.catalog.create("t", 1, {"retention.ms": "5", "flush.ms": "9"})
        code = await self.ask(
            world, ("retention.ms", Operation.DELETE, None), ("segment.ms", Operation.SET, "6")
        )
        assert code is ErrorCode.none
        assert topic.overrides == {"flush.ms": "9", "segment.ms": "6"}
        assert topic.partitions[0].log.config.segment_ms == 6

    async def test_lists_are_appended_to_and_subtracted_from(self, world: World) -> None:
        topic = await world.catalog.create("t", 1)
        policy = "cleanup.policy"
        assert await self.ask(world, (policy, Operation.APPEND, "delete")) is ErrorCode.none
        assert topic.overrides == {policy: "delete"}
        emptied = await self.ask(world, (policy, Operation.SUBTRACT, "delete"))
        assert emptied is ErrorCode.invalid_config
        number = await self.ask(world, ("retention.ms", Operation.APPEND, "5"))
        assert number is ErrorCode.invalid_config

    async def test_validate_only_changes_nothing(self, world: World) -> None:
        topic = await world.catalog.create("t", 1)
        good = await self.ask(world, ("flush.ms", Operation.SET, "1"), validate_only=True)
        bad = await self.ask(world, ("flush.ms", Operation.SET, "x"), validate_only=True)
        assert (good, bad) == (ErrorCode.none, ErrorCode.invalid_config)
        assert topic.overrides == {}

    async def test_what_it_refuses(self, world: World) -> None:
        await world.catalog.create("t", 1)
        set_null = await self.ask(world, ("flush.ms", Operation.SET, None))
        twice = await self.ask(
            world, ("flush.ms", Operation.SET, "1"), ("flush.ms", Operation.DELETE, None)
        )
        operation = await self.ask(world, ("flush.ms", 9, "1"))
        unknown = await self.ask(world, ("no.such", Operation.SET, "1"))
        broker = await self.ask(world, ("x", Operation.SET, "1"), resource=(BROKER, "7"))
        assert (set_null, twice, operation) == (ErrorCode.invalid_request,) * 3
        assert unknown is ErrorCode.invalid_config
        assert broker is ErrorCode.invalid_request

    async def test_what_is_not_set_is_deleted_by_doing_nothing(self, world: World) -> None:
        """`kafka-reassign-partitions` takes throttles away that it may never have set."""
        topic = await world.catalog.create("t", 1, {"retention.ms": "5"})
        rate = ("leader.replication.throttled.rate", Operation.DELETE, None)
        replicas = ("leader.replication.throttled.replicas", Operation.DELETE, None)
        assert await self.ask(world, replicas) is ErrorCode.none
        assert await self.ask(world, rate, resource=(BROKER, "7")) is ErrorCode.none
        assert await self.ask(world, rate, resource=(BROKER, "")) is ErrorCode.none
        other = await self.ask(world, rate, resource=(BROKER, "8"))
        mixed = await self.ask(world, rate, ("x", Operation.SET, "1"), resource=(BROKER, "7"))
        assert (other, mixed) == (ErrorCode.invalid_request,) * 2
        assert topic.overrides == {"retention.ms": "5"}


class TestDescribeLogDirs:
    async def test_sizes_and_room(self, world: World, tmp_path: Path) -> None:
        await world.catalog.create("t", 2)
        world.append("t", 1, START_MS)
        request = describe_log_dirs.DescribeLogDirsRequest(topics=None)
        (result,) = describe_log_dirs.handle(world.broker, request, CONTEXT).results
        assert result.log_dir == str(tmp_path)
        sizes = [(p.partition_index, p.partition_size) for p in result.topics[0].partitions]
        assert sizes == [(0, 0), (1, world.catalog.partition("t", 1).log.size_bytes)]
        assert sizes[1][1] > 0
        assert result.total_bytes >= result.usable_bytes > 0

    async def test_partitions_that_are_not_there_are_left_out(self, world: World) -> None:
        await world.catalog.create("t", 2)
        asked = (
            describe_log_dirs.TopicAsked(topic="t", partitions=(1, 5)),
            describe_log_dirs.TopicAsked(topic="u", partitions=(0,)),
        )
        request = describe_log_dirs.DescribeLogDirsRequest(topics=asked)
        (result,) = describe_log_dirs.handle(world.broker, request, CONTEXT).results
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in result.topics] == [
            ("t", [1])
        ]


class TestDescribeProducers:
    async def test_those_that_a_partition_remembers(self, world: World) -> None:
        await world.catalog.create("t", 1)
        world.append("t", 0, START_MS, START_MS, producer_id=42, epoch=3, sequence=0)
        request = describe_producers.DescribeProducersRequest(
            topics=(
                describe_producers.TopicAsked(name="t", partition_indexes=(0, 1)),
                describe_producers.TopicAsked(name="a/b", partition_indexes=(0,)),
            )
        )
        there, illegal = describe_producers.handle(world.broker, request, CONTEXT).topics
        (producer,) = there.partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (42, 3, 1)
        assert there.partitions[1].error_code is ErrorCode.unknown_topic_or_partition
        assert illegal.partitions[0].error_code is ErrorCode.invalid_topic_exception
