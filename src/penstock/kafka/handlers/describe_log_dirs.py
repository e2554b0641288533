"""DescribeLogDirs: how much room the partitions take, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAsked:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    topics: tuple[TopicAsked, ...] | None  # null: all


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    partition_index: int
    partition_size: int
    offset_lag: int = 0
    is_future_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSizes:
    name: str
    partitions: Sequence[PartitionSize]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    error_code: ErrorCode
    log_dir: str
    topics: Sequence[TopicSizes]
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    error_code: ErrorCode = ErrorCode.none  # from version 3
    results: Sequence[LogDir] = ()


def handle(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """There is one directory. Partitions that are not there, or not open, are left out."""
    if request.topics is None:
        topics = [_sizes(topic, range(len(topic.partitions))) for topic in broker.topics.all()]
    else:
        topics = [
            _sizes(topic, asked.partitions)
            for asked in request.topics
            if (topic := broker.topics.get(asked.topic)) is not None
        ]
    try:
        total, usable = broker.logs.disk_usage()
        error_code = ErrorCode.none
    except OSError:
        total, usable, error_code = -1, -1, ErrorCode.kafka_storage_error
    return DescribeLogDirsResponse(
        results=[
            LogDir(
                error_code=error_code,
                log_dir=os.path.abspath(broker.logs.data_dir),
                topics=topics,
                total_bytes=total,
                usable_bytes=usable,
            )
        ]
    )


def on_error(
    request: DescribeLogDirsRequest, code: ErrorCode, message: str
) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code)


def _sizes(topic: Topic, indices: Sequence[int]) -> TopicSizes:
    return TopicSizes(
        name=topic.name,
        partitions=[
            PartitionSize(
                partition_index=i,
                partition_size=log.size_bytes,
                offset_lag=topic.partitions[i].lag,
            )
            for i in indices
            if 0 <= i < len(topic.partitions) and (log := topic.partitions[i].local_log) is not None
        ],
    )


API = Api("describe_log_dirs", DescribeLogDirsRequest, handle, on_error=on_error)
