"""Offsets of partitions: where logs begin and end, and what a `Position` comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli.failure import CommandError
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.adminapi import AdminClient, OffsetSpec
    from penstock.cli.contact import Cluster
    from penstock.cli.values import Position


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) that a partition holds; `end` is the offset its next record gets."""

    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start


def ranges(
    cluster: Cluster, admin: AdminClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Range]:
    """The offsets that each partition holds now."""
    from penstock.cli.adminapi import EARLIEST, LATEST

    wanted = list(partitions)
    starts = _list(cluster, admin, dict.fromkeys(wanted, EARLIEST))
    ends = _list(cluster, admin, dict.fromkeys(wanted, LATEST))
    return {partition: Range(starts[partition], ends[partition]) for partition in wanted}


def resolve(
    cluster: Cluster,
    admin: AdminClient,
    position: Position,
    known: Mapping[TopicPartition, Range],
) -> dict[TopicPartition, int]:
    """The offset that `position` comes to in each partition.

    An explicit offset is returned as it is, inside the partition's range or not. A time later than
    every record comes to the end, one before 1970 to the beginning: to a broker, such times are not times.
    """
    match position.kind:
        case "time" if position.value < 0:
            return {partition: span.start for partition, span in known.items()}
        case "earliest":
            return {partition: span.start for partition, span in known.items()}
        case "latest":
            return {partition: span.end for partition, span in known.items()}
        case "offset":
            return dict.fromkeys(known, position.value)
        case "before_end":
            return {
                partition: max(span.start, span.end - position.value)
                for partition, span in known.items()
            }
        case "time":
            from penstock.cli.adminapi import OffsetSpec

            spec = OffsetSpec.for_timestamp(position.value)
            found = _list(cluster, admin, dict.fromkeys(known, spec))
            return {
                partition: found[partition] if found[partition] >= 0 else span.end
                for partition, span in known.items()
            }


def out_of_range(
    targets: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Range]
) -> CommandError | None:
    """The failure of offsets that their partitions do not hold (the end itself counts as held)."""
    for partition, offset in targets.items():
        span = known[partition]
        if not span.start <= offset <= span.end:
            return CommandError(
                f"Offset {offset} is not in {partition.topic} partition {partition.partition}: "
                f"it holds {span.start} up to {span.end}.",
                "Choose an offset in that range, or `earliest` or `latest`.",
            )
    return None


def _list(
    cluster: Cluster, admin: AdminClient, specs: Mapping[TopicPartition, OffsetSpec]
) -> dict[TopicPartition, int]:
    from confluent_kafka import TopicPartition as Place

    from penstock.cli.contact import REQUEST_TIMEOUT_S

    if not specs:
        return {}
    futures = admin.list_offsets(
        {Place(where.topic, where.partition): spec for where, spec in specs.items()},
        request_timeout=REQUEST_TIMEOUT_S,
    )
    named = {
        TopicPartition(place.topic, place.partition): future for place, future in futures.items()
    }
    return {where: result.offset for where, result in cluster.settle(named).items()}
