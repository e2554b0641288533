"""ElectLeaders: let the preferred replicas lead, or let anybody lead where nobody in sync is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.broker import Broker

PREFERRED: Final = 0
UNCLEAN: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    topic_partitions: tuple[TopicAsked, ...] | None  # null: all
    timeout_ms: int
    election_type: int = PREFERRED  # from version 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_id: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    topic: str
    partition_result: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    replica_election_results: Sequence[TopicResult]
    error_code: ErrorCode = ErrorCode.none  # from version 1


async def handle(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Asked for all, those that need no election are left out of the answer, as in Kafka."""
    if request.election_type not in {PREFERRED, UNCLEAN}:
        raise ApiError(
            ErrorCode.invalid_request, f"there is no election of type {request.election_type}"
        )
    results: dict[str, list[PartitionResult]] = {}
    outcomes = await broker.topics.elect(
        _asked(broker, request),
        unclean=request.election_type == UNCLEAN,
        timeout_s=request.timeout_ms / 1000,
    )
    for partition, error in outcomes.items():
        if error is None:
            result = PartitionResult(partition_id=partition.partition)
        elif request.topic_partitions is None and error.code is ErrorCode.election_not_needed:
            continue
        else:
            result = _failed(partition.partition, error.code, error.message)
        results.setdefault(partition.topic, []).append(result)
    return ElectLeadersResponse(
        replica_election_results=[
            TopicResult(topic=topic, partition_result=result) for topic, result in results.items()
        ]
    )


def on_error(request: ElectLeadersRequest, code: ErrorCode, message: str) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            TopicResult(
                topic=asked.topic,
                partition_result=[_failed(index, code, message) for index in asked.partitions],
            )
            for asked in request.topic_partitions or ()
        ],
    )


def _failed(index: int, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


def _asked(broker: Broker, request: ElectLeadersRequest) -> Iterator[TopicPartition]:
    if request.topic_partitions is None:
        for topic in broker.topics.all():
            for partition in topic.partitions:
                yield partition.topic_partition
        return
    for asked in request.topic_partitions:
        for index in asked.partitions:
            yield TopicPartition(asked.topic, index)


API = Api("elect_leaders", ElectLeadersRequest, handle, on_error=on_error)
