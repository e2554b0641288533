"""Which of a log's oldest segments may go. A pure decision; the log carries it out."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.log.index import BadIndexError
from penstock.log.segment import Segment
from penstock.settings import TopicConfig


def expired_count(
    segments: Sequence[Segment], log_start_offset: int, log_end_offset: int, high_watermark: int,
    config: TopicConfig, now_ms: int,
) -> int:  # fmt: skip
    """How many segments, from the oldest on, retention no longer keeps.

    A segment goes if its newest record is older than `retention.ms`, if the log would still hold
    `retention.bytes` without it, or if the log's start has moved past it. One that goes beyond the
    high watermark stays.
    """
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    for i, segment in enumerate(segments):
        is_last = i + 1 == len(segments)
        if is_last and segment.size == 0:
            return i
        end_offset = log_end_offset if is_last else segments[i + 1].base_offset
        if end_offset > high_watermark:
            return i
        excess -= segment.size
        too_much = config.retention_bytes >= 0 and excess >= 0
        if segment.size == 0 or too_much or end_offset <= log_start_offset:
            continue
        if not 0 <= config.retention_ms < now_ms - _newest_ms(segment, end_offset):
            return i
    return len(segments)


def _newest_ms(segment: Segment, end_offset: int) -> int:
    """The newest record's time; where that is not known, when the file was last written.

    Indexes from before the start are not taken at their word: a time index that a power cut zeroed
    would make a segment look as old as can be.
    """
    newest: int | None = None
    try:
        newest = segment.largest_timestamp(end_offset)
    except BadIndexError:
        newest = None
    if newest is None or newest < 0:
        newest = max(segment.indexes.max_timestamp, int(os.path.getmtime(segment.path) * 1000))
    return newest
