"""How ranges of offsets become tasks: by bytes rather than by partition.

A partition of 10 GiB and one of 10 MiB should not be one task each. Nobody knows how many bytes lie between
two offsets without reading them, so a partition's bytes are taken as spread evenly over its offsets.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.model import TopicPartition
from penstock.spark.offsets import Offsets
from penstock.spark.options import Options

# A task costs some milliseconds to start: below this many bytes, a second one is no gain.
_WORTH_A_TASK_BYTES: Final = 4 << 20
_SIZES_VALID_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    """When a range is too much for one task."""

    split_bytes: int
    records_max: int | None = None
    tasks_min: int | None = None
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)

    @classmethod
    def from_options(cls, options: Options) -> SplitRules:
        return cls(
            split_bytes=options["splitBytes"],
            records_max=options["maxRecordsPerPartition"],
            tasks_min=options["minPartitions"],
        )


def split(
    ranges: Sequence[Range], bytes_per_offset: Mapping[TopicPartition, float], rules: SplitRules
) -> list[Range]:
    """Cut ranges into tasks of about the same size. Empty ranges are left out.

    [0,100) of 1 KiB records with splitBytes = 50k comes out as [0,50) and [50,100).
    """
    ranges = [one for one in ranges if one.offsets > 0]
    sizes = [one.offsets * bytes_per_offset.get(one.partition, 0.0) for one in ranges]
    parts = [_parts(one, size, rules) for one, size in zip(ranges, sizes, strict=True)]
    worth = int(min(sum(sizes) // _WORTH_A_TASK_BYTES, rules.cores))
    _raise_to(parts, sizes, worth)
    if rules.tasks_min is not None:
        _raise_to(parts, [float(one.offsets) for one in ranges], rules.tasks_min)
    return [piece for one, count in zip(ranges, parts, strict=True) for piece in _cut(one, count)]


def _parts(one: Range, size: float, rules: SplitRules) -> int:
    by_bytes = math.ceil(size / rules.split_bytes)
    by_records = math.ceil(one.offsets / rules.records_max) if rules.records_max else 1
    return max(by_bytes, by_records, 1)


def _raise_to(parts: list[int], weights: Sequence[float], wanted: int) -> None:
    """Split the largest pieces further until there are so many, in place."""
    total = sum(weights)
    if not parts or not total or sum(parts) >= wanted:
        return
    for index, weight in enumerate(weights):
        parts[index] = max(parts[index], round(wanted * weight / total))
    while sum(parts) < wanted:
        largest = max(range(len(parts)), key=lambda index: weights[index] / parts[index])
        parts[largest] += 1


def _cut(one: Range, count: int) -> list[Range]:
    count = min(count, one.offsets)
    edges = [one.start + one.offsets * part // count for part in range(count + 1)]
    return [Range(one.partition, *pair) for pair in itertools.pairwise(edges)]


class Sizes:
    """Bytes per offset of partitions, asked for at most every half a minute: they change slowly."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, float] = {}
        self._asked_at = -math.inf

    def bytes_per_offset(
        self, cluster: Cluster, earliest: Offsets, latest: Offsets
    ) -> dict[TopicPartition, float]:
        """By partition; those that no broker can tell are left out, and are then not split by bytes."""
        wanted: Collection[TopicPartition] = earliest.keys() & latest.keys()
        fresh = time.monotonic() - self._asked_at < _SIZES_VALID_S
        if not fresh or any(one not in self._known for one in wanted):
            try:
                sizes = cluster.sizes(wanted)
            except ClientError:  # a hint only: some brokers do not let everyone ask
                sizes = {}
            self._asked_at = time.monotonic()
            self._known = {
                one: sizes.get(one, 0) / max(latest[one] - earliest[one], 1) for one in wanted
            }
        return self._known
