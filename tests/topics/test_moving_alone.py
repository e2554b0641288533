"""Moves and elections asked of a broker that is alone: there is nowhere to go, and nobody else to lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Caller, RequestContext
from penstock.kafka.handlers import (
    alter_partition_reassignments,
    elect_leaders,
    list_partition_reassignments,
)
from tests.topics.conftest import BROKER_ID

if TYPE_CHECKING:
    from tests.topics.conftest import World

CONTEXT = RequestContext(api_version=1, client_id="test", caller=Caller("127.0.0.1"))


async def move(world: World, *asked: tuple[int, tuple[int, ...] | None]) -> list[ErrorCode]:
    request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        timeout_ms=1_000,
        topics=(
            alter_partition_reassignments.TopicAsked(
                name="t",
                partitions=tuple(
                    alter_partition_reassignments.PartitionAsked(
                        partition_index=index, replicas=replicas
                    )
                    for index, replicas in asked
                ),
            ),
        ),
    )
    answer = await alter_partition_reassignments.handle(world.broker, request, CONTEXT)
    assert answer.error_code is ErrorCode.none
    return [partition.error_code for partition in answer.responses[0].partitions]


async def elect(
    world: World, *partitions: int, kind: int = elect_leaders.PREFERRED
) -> dict[str, list[ErrorCode]]:
    """For all partitions there are if none is named."""
    named = (elect_leaders.TopicAsked(topic="t", partitions=partitions),) if partitions else None
    request = elect_leaders.ElectLeadersRequest(
        topic_partitions=named, timeout_ms=1_000, election_type=kind
    )
    answer = await elect_leaders.handle(world.broker, request, CONTEXT)
    return {
        result.topic: [partition.error_code for partition in result.partition_result]
        for result in answer.replica_election_results
    }


async def test_a_partition_moves_to_where_it_is_and_nowhere_else(world: World) -> None:
    await world.catalog.create("t", 4)
    assert await move(
        world, (0, (BROKER_ID,)), (1, (BROKER_ID, 8)), (2, ()), (3, None), (4, (BROKER_ID,))
    ) == [
        ErrorCode.none,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.no_reassignment_in_progress,
        ErrorCode.unknown_topic_or_partition,
    ]


async def test_a_partition_is_moved_once_in_a_request(world: World) -> None:
    await world.catalog.create("t")
    assert await move(world, (0, (BROKER_ID,)), (0, (BROKER_ID,))) == [
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]


async def test_nothing_is_ever_on_its_way(world: World) -> None:
    await world.catalog.create("t")
    request = list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None)
    assert list_partition_reassignments.handle(world.broker, request, CONTEXT).topics == []


@pytest.mark.parametrize("kind", [elect_leaders.PREFERRED, elect_leaders.UNCLEAN])
async def test_no_election_is_needed(world: World, kind: int) -> None:
    await world.catalog.create("t")
    assert await elect(world, 0, 1, kind=kind) == {
        "t": [ErrorCode.election_not_needed, ErrorCode.unknown_topic_or_partition]
    }
    assert await elect(world, kind=kind) == {}, "asked for all, those that need none are left out"


async def test_there_are_two_kinds_of_election(world: World) -> None:
    with pytest.raises(ApiError) as caught:
        await elect(world, kind=2)
    assert caught.value.code is ErrorCode.invalid_request
