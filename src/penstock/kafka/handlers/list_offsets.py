"""ListOffsets: where a partition begins and ends, and which offset a time has."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, CorruptLogError, ErrorCode
from penstock.kafka.api import Api, Codec, RequestContext
from penstock.kafka.list_offsets_codec import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionAsked,
    PartitionOffset,
    TopicOffsets,
    decode_request,
    encode_response,
)

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Partition
    from penstock.log import PartitionLog, TimestampOffset

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

# The version from which each special timestamp has its meaning.
_SAYS_WHEN_FROM: Final = 5  # older clients do not know OFFSET_NOT_AVAILABLE
FIRST_VERSION_OF: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
CONSUMER: Final = -1  # the replica id of a client; it sees nothing above the high watermark


Lookup = Callable[[], PartitionOffset]


def handle(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Ends of logs are known in memory: answered at once. Times are looked up in the files, in one thread."""
    asked = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
    repeated = _repeated([(name, partition.partition_index) for name, partition in asked])
    answers: list[PartitionOffset | Lookup] = []
    for name, partition in asked:
        if (name, partition.partition_index) in repeated:
            answers.append(_failed(partition, ErrorCode.invalid_request))
        else:
            answers.append(_answer(broker, name, partition, request.replica_id, context))
    known = [answer for answer in answers if isinstance(answer, PartitionOffset)]
    if len(known) < len(answers):
        return _look_up_in_thread(request, answers)
    return _response(request, known)


def _repeated(partitions: list[tuple[str, int]]) -> set[tuple[str, int]]:
    if len(set(partitions)) == len(partitions):
        return set()
    return {one for one, times in Counter(partitions).items() if times > 1}


async def _look_up_in_thread(
    request: ListOffsetsRequest, answers: Sequence[PartitionOffset | Lookup]
) -> ListOffsetsResponse:
    return _response(request, await asyncio.to_thread(_look_up, answers))


def _response(
    request: ListOffsetsRequest, results: Sequence[PartitionOffset]
) -> ListOffsetsResponse:
    remaining = iter(results)
    return ListOffsetsResponse(
        [
            TopicOffsets(topic.name, [next(remaining) for _ in topic.partitions])
            for topic in request.topics
        ]
    )


def on_error(request: ListOffsetsRequest, code: ErrorCode, message: str) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        [
            TopicOffsets(topic.name, [_failed(one, code) for one in topic.partitions])
            for topic in request.topics
        ]
    )


def _failed(asked: PartitionAsked, code: ErrorCode) -> PartitionOffset:
    return PartitionOffset(asked.partition_index, code)


def _look_up(answers: Sequence[PartitionOffset | Lookup]) -> list[PartitionOffset]:
    """Blocks on disk: runs in a thread."""
    return [answer() if callable(answer) else answer for answer in answers]


def _answer(
    broker: Broker, name: str, asked: PartitionAsked, replica_id: int, context: RequestContext
) -> PartitionOffset | Lookup:
    """The offset, or a function that finds it on disk."""
    first_version = FIRST_VERSION_OF.get(asked.timestamp)
    if asked.timestamp < 0 and (first_version is None or context.api_version < first_version):
        return _failed(asked, ErrorCode.unsupported_version)
    try:
        partition = broker.topics.partition(name, asked.partition_index)
        partition.check_leader_epoch(asked.current_leader_epoch)
        log = partition.sound_log()
        end = partition.latest_offset() if replica_id == CONSUMER else log.log_end_offset
    except ApiError as error:
        if error.code is ErrorCode.offset_not_available and context.api_version < _SAYS_WHEN_FROM:
            return _failed(asked, ErrorCode.leader_not_available)
        return _failed(asked, error.code)
    if asked.timestamp == LATEST:
        return _found(asked, end, partition.leader_epoch)
    if asked.timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return _found(asked, log.log_start_offset, _first_epoch(partition, log))
    if asked.timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return PartitionOffset(asked.partition_index)  # no cold tier: none
    return lambda: _at_time(asked, log, end)


def _found(asked: PartitionAsked, offset: int, leader_epoch: int) -> PartitionOffset:
    return PartitionOffset(asked.partition_index, offset=offset, leader_epoch=leader_epoch)


def _first_epoch(partition: Partition, log: PartitionLog) -> int:
    """The epoch that wrote the log's first record; that of the leader where there is none."""
    start = log.log_start_offset
    if start == log.log_end_offset:
        return partition.leader_epoch

    def end_of(epoch: int) -> int:
        found, end = log.end_offset_for_epoch(epoch)
        return end if found >= 0 else log.log_end_offset

    first = bisect_right(range(partition.leader_epoch + 1), start, key=end_of)
    return log.end_offset_for_epoch(first)[0]


def _at_time(asked: PartitionAsked, log: PartitionLog, end: int) -> PartitionOffset:
    found: TimestampOffset | None
    try:
        if asked.timestamp == MAX_TIMESTAMP:
            found = log.max_timestamp()
        else:
            found = log.find_timestamp(asked.timestamp)
    except (CorruptLogError, OSError):
        return _failed(asked, ErrorCode.kafka_storage_error)
    if found is None or found.offset >= end:
        return PartitionOffset(asked.partition_index)
    return PartitionOffset(
        asked.partition_index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


API = Api(
    "list_offsets",
    ListOffsetsRequest,
    handle,
    on_error=on_error,
    codec=Codec(decode_request, encode_response),
)
