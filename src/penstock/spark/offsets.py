"""Offsets as Spark keeps them, and the ways to say where a read starts and ends.

In a checkpoint, offsets are JSON that a person can read, the same as the Kafka connector's:
`{"orders":{"0":23,"1":345}}`. A number is the offset of the next record to read.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.model import TopicPartition
from penstock.spark.errors import OptionError
from penstock.spark.options import Options

EARLIEST: Final = -2
LATEST: Final = -1

Offsets = dict[TopicPartition, int]

_UNITS_MS: Final = {
    "ms": 1, "millisecond": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "m": 60_000,
    "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000,
    "day": 86_400_000, "w": 7 * 86_400_000, "week": 7 * 86_400_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Everywhere:
    """`earliest` or `latest` of every partition."""

    at: Literal[-2, -1]


@dataclass(frozen=True, slots=True)
class ByPartition:
    """An offset for each partition; it may be EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ByTimestamp:
    """The first record with this timestamp (ms) or a later one: one for all, or one for each partition."""

    timestamps: int | Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record whose timestamp is within this time before now."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """So many offsets before the end of each partition, or its first record."""

    offsets: int


Position = Everywhere | ByPartition | ByTimestamp | Ago | BeforeEnd


def starting_position(options: Options, *, stream: bool) -> Position:
    """Where a read starts: a timestamp for all, else one for each partition, else offsets."""
    position = _position(options, "starting")
    if position is None:
        return Everywhere(LATEST if stream else EARLIEST)
    if not stream:
        _refuse(position, LATEST, "startingOffsets", "a batch that starts at the end reads nothing")
    return position


def ending_position(options: Options) -> Position:
    """Where a batch read ends, the offset itself not included."""
    position = _position(options, "ending")
    if position is None:
        return Everywhere(LATEST)
    _refuse(position, EARLIEST, "endingOffsets", "a batch that ends at the start reads nothing")
    return position


def check_order(start: Position, end: Position) -> None:
    """`OptionError` for ends before starts, and for partitions that have only one of them."""
    for kind in (ByPartition, ByTimestamp):
        if not (isinstance(start, kind) and isinstance(end, kind)):
            continue
        first = start.offsets if isinstance(start, ByPartition) else start.timestamps
        last = end.offsets if isinstance(end, ByPartition) else end.timestamps
        if isinstance(first, int) or isinstance(last, int):
            continue
        if first.keys() != last.keys():
            odd = ", ".join(str(partition) for partition in sorted(first.keys() ^ last.keys()))
            raise OptionError(f"start and end must name the same partitions; only one has {odd}")
        for partition, begin in first.items():
            if 0 <= last[partition] < begin:
                raise OptionError(
                    f"{partition}: the start {begin} is after the end {last[partition]}"
                )


def _refuse(position: Position, value: int, option: str, reason: str) -> None:
    name = "latest" if value == LATEST else "earliest"
    if position == Everywhere(LATEST if value == LATEST else EARLIEST):
        raise OptionError(f"{option} can not be {name}: {reason}")
    if isinstance(position, ByPartition):
        for partition, offset in position.offsets.items():
            if offset == value:
                raise OptionError(f"{option} of {partition} can not be {name}: {reason}")


def _position(options: Options, edge: Literal["starting", "ending"]) -> Position | None:
    timestamp = options[f"{edge}Timestamp"]
    if timestamp is not None:
        return ByTimestamp(timestamp)
    by_timestamp = options[f"{edge}OffsetsByTimestamp"]
    if by_timestamp is not None:
        name = f"{edge}OffsetsByTimestamp"
        return ByTimestamp(parse_by_partition(by_timestamp, name, minimum=0))
    text = options[f"{edge}Offsets"]
    return None if text is None else parse_position(text, f"{edge}Offsets")


def parse_position(text: str, name: str) -> Position:
    """`earliest`, `latest`, JSON, `-10 minutes` or `-1000`."""
    text = text.strip()
    if text.lower() == "earliest":
        return Everywhere(EARLIEST)
    if text.lower() == "latest":
        return Everywhere(LATEST)
    if text.startswith("{"):
        return ByPartition(parse_by_partition(text, name, minimum=EARLIEST))
    relative = re.fullmatch(r"-\s*(\d+)\s*([a-z]*)", text.lower())
    if relative is not None:
        amount, unit = int(relative[1]), relative[2]
        if not unit:
            return BeforeEnd(amount)
        scale = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
        if scale is not None:
            return Ago(amount * scale)
    raise OptionError(
        f"{name} = {text!r}: must be earliest, latest, JSON like "
        '{"orders":{"0":23,"1":-2}}, -10 minutes, or -1000 (offsets before the end)'
    )


def parse_by_partition(text: str, name: str, *, minimum: int) -> Offsets:
    """`{"orders":{"0":23}}` as offsets or timestamps of partitions."""
    example = '{"orders":{"0":23,"1":-2}}' if minimum < 0 else '{"orders":{"0":1700000000000}}'
    wrong = OptionError(f"{name} = {text!r}: must be JSON like {example}")
    table = _json(text, wrong)
    if not isinstance(table, dict):
        raise wrong
    offsets: Offsets = {}
    for topic, partitions in table.items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, offset in partitions.items():
            if not str(partition).isdigit() or type(offset) is not int or offset < minimum:
                raise wrong
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def parse_assignment(text: str) -> list[TopicPartition]:
    """`{"orders":[0,1]}` as partitions, in order and each once."""
    wrong = OptionError(f'assign = {text!r}: must be JSON like {{"orders":[0,1],"refunds":[2]}}')
    table = _json(text, wrong)
    if not isinstance(table, dict):
        raise wrong
    partitions = set()
    for topic, numbers in table.items():
        if not isinstance(numbers, list):
            raise wrong
        for number in numbers:
            if type(number) is not int or number < 0:
                raise wrong
            partitions.add(TopicPartition(topic, number))
    if not partitions:
        raise OptionError(f"assign = {text!r}: names no partition")
    return sorted(partitions)


def _json(text: str, wrong: OptionError) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise wrong from None


# What else is in the checkpoint, under names that no topic can have.
#
# `"@id:orders:vDiRhkpVQgmtSLnsAZx7lA":{}`: the id of a topic, as Kafka's tools show it, by which one that
# was deleted and made anew is told from the old one. The connector reads it as a topic without partitions.
#
# `"@initial":{…}`: where a batch begins if not where the one before ended. The first one has it: Spark
# does not keep that, and asks again if the batch must be repeated, when `latest` or `-10 minutes` would be
# somewhere else. One that begins to read a topic which was made anew has it, too.
_ID: Final = "@id:"
_INITIAL: Final = "@initial"


def to_json(
    offsets: Mapping[TopicPartition, int],
    *,
    ids: Mapping[str, uuid.UUID] | None = None,
    initial: Offsets | None = None,
) -> dict[str, Any]:
    """Offsets as the nested table that Spark writes to the checkpoint, in order of topic and partition."""
    table: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        numbers = table.setdefault(topic, {})
        numbers[str(partition)] = offsets[TopicPartition(topic, partition)]
    for topic, topic_id in sorted((ids or {}).items()):
        if topic in table:
            table[f"{_ID}{topic}:{_shown(topic_id)}"] = {}
    if initial is not None:
        table[_INITIAL] = to_json(initial)
    return table


def from_json(table: Mapping[str, Any]) -> Offsets:
    """What `to_json` made, or the Kafka connector."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, numbers in table.items()
        if not topic.startswith("@")
        for partition, offset in numbers.items()
    }


def initial_of(table: Mapping[str, Any]) -> Offsets | None:
    """Where the batch that ends at these offsets begins, if that is noted."""
    initial = table.get(_INITIAL)
    return None if initial is None else from_json(initial)


def ids_of(table: Mapping[str, Any]) -> dict[str, uuid.UUID]:
    """The ids of the topics that these are offsets of, as far as they are noted."""
    noted = (name.removeprefix(_ID).split(":") for name in table if name.startswith(_ID))
    return {topic: _from_shown(shown) for topic, shown in noted}


def _shown(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def _from_shown(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
