"""Produce: record batches in, offsets out. The broker's hottest path.

An answer leaves when the promise of its `acks` is kept:

    acks=0     there is no answer
    acks=1     the batch is in the log file: it survives the death of the process
    acks=all   every replica in sync has the batch; where there is one, it is on disk
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ApiError, ErrorCode, ProtocolError
from penstock.kafka.api import Answer, Caller, RawApi
from penstock.kafka.primitives import Topic as TopicKey
from penstock.kafka.produce_codec import (
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    decode_request,
    encode_response,
    failed,
)
from penstock.records.batch import ATTRIBUTE_COMPRESSION, COMPRESSION_NAMES

if TYPE_CHECKING:
    from penstock.broker.topics import Partition, Topic
    from penstock.kafka.router import KafkaDoor

Results = list[tuple[TopicKey, list[PartitionResult]]]

_ZSTD_FROM: Final = 7  # older clients cannot read zstd, so older producers may not write it
_ZSTD: Final = COMPRESSION_NAMES.index("zstd")
_ATTRIBUTES: Final = 22  # where the low byte of a batch's attributes is


class Unacknowledged(NamedTuple):
    """A batch that is appended, and where its result stands, which holds once it is safe."""

    partition: Partition
    end_offset: int
    answers: list[PartitionResult]
    at: int


def answer(door: KafkaDoor, version: int, request: ProduceRequest, _caller: Caller) -> Answer:
    acks = request.acks
    broker = door.broker
    results: Results = []
    waiting: list[Unacknowledged] = []
    for key, partitions in request.topics:
        topic = broker.topics.get(key) if isinstance(key, str) else broker.topics.get_by_id(key)
        answers: list[PartitionResult] = []
        results.append((key, answers))
        for item in partitions:
            try:
                _check(request.transactional, acks, topic, key)
                answers.append(_append(version, topic, item, acks, answers, waiting))
            except ApiError as error:
                answers.append(failed(item.partition, error.code, error.message))
    if acks == 0:
        _close_on_error(results)
        return None
    if waiting:
        return _when_acknowledged(version, request, results, waiting)
    return encode_response(version, results)


def _check(transactional: bool, acks: int, topic: Topic | None, key: TopicKey) -> None:
    if topic is None:
        if isinstance(key, str):
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"there is no topic {key!r}")
        raise ApiError(ErrorCode.unknown_topic_id, f"there is no topic with id {key}")
    if acks not in (-1, 0, 1):
        raise ApiError(ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {acks}")
    if transactional:
        raise ApiError(ErrorCode.invalid_request, "Penstock has no transactions yet")


def _append(
    version: int,
    topic: Topic | None,
    item: PartitionRecords,
    acks: int,
    answers: list[PartitionResult],
    waiting: list[Unacknowledged],
) -> PartitionResult:
    assert topic is not None
    if not 0 <= item.partition < len(topic.partitions):
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"there is no partition {topic.name}-{item.partition}",
        )
    if not item.records:
        raise ApiError(ErrorCode.invalid_record, "there are no records")
    if version < _ZSTD_FROM and len(item.records) > _ATTRIBUTES and _is_zstd(item.records):
        raise ApiError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce version {_ZSTD_FROM}"
        )
    partition = topic.partitions[item.partition]
    appended = partition.append(item.records, acks)
    if partition.must_wait(acks):
        waiting.append(Unacknowledged(partition, appended.end_offset, answers, len(answers)))
    return PartitionResult(
        item.partition,
        0,
        appended.base_offset,
        appended.append_time,
        partition.log.log_start_offset,
    )


def _is_zstd(batch: memoryview) -> bool:
    return batch[_ATTRIBUTES] & ATTRIBUTE_COMPRESSION == _ZSTD


def _close_on_error(results: Results) -> None:
    """With acks=0 the only way to tell a producer is to hang up, as Kafka does."""
    for key, answers in results:
        for result in answers:
            if result.error_code:
                raise ProtocolError(
                    f"a write to {key}-{result.partition} with acks=0 failed: {result.message}"
                )


def _when_acknowledged(
    version: int, request: ProduceRequest, results: Results, waiting: list[Unacknowledged]
) -> asyncio.Future[Any]:
    """A promise of the answer, kept when every batch is as safe as the producer asked."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    missing = len(waiting)

    def acknowledged(done: asyncio.Future[None], answers: list[PartitionResult], at: int) -> None:
        nonlocal missing
        missing -= 1
        error = done.exception()
        if error is not None:
            code = error.code if isinstance(error, ApiError) else ErrorCode.kafka_storage_error
            answers[at] = failed(answers[at].partition, code, str(error))
        if missing == 0 and not answered.done():
            answered.set_result(encode_response(version, results))

    timeout_s = max(request.timeout_ms, 0) / 1000
    for partition, end_offset, answers, at in waiting:
        future = partition.until_acknowledged(request.acks, end_offset, timeout_s)
        future.add_done_callback(functools.partial(acknowledged, answers=answers, at=at))
    return answered


API = RawApi("produce", decode_request, answer, is_pipelined=True)
