"""Which of a log's oldest segments may go. A pure decision; the log carries it out."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.log.segment import Segment
from penstock.settings import TopicConfig


def expired_count(
    segments: Sequence[Segment], log_start_offset: int, log_end_offset: int,
    config: TopicConfig, now_ms: int,
) -> int:  # fmt: skip
    """How many segments, from the oldest on, retention no longer keeps.

    A segment goes if its newest record is older than `retention.ms`, if the log would still hold
    `retention.bytes` without it, or if the log's start has moved past it.
    """
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    for i, segment in enumerate(segments):
        if segment.size == 0:
            return i
        is_last = i + 1 == len(segments)
        end_offset = log_end_offset if is_last else segments[i + 1].base_offset
        excess -= segment.size
        too_old = 0 <= config.retention_ms < now_ms - _newest_ms(segment)
        too_much = config.retention_bytes >= 0 and excess >= 0
        if not (too_old or too_much or end_offset <= log_start_offset):
            return i
    return len(segments)


def _newest_ms(segment: Segment) -> int:
    """The newest record's time; for records without one, when the file was last written."""
    newest = segment.largest_timestamp()
    return newest if newest >= 0 else int(os.path.getmtime(segment.path) * 1000)
