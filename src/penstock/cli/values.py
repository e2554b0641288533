"""What people type, as values: settings, headers, points in time, positions in a log."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from penstock.cli.failure import UsageError

_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_RELATIVE: Final = re.compile(r"-(\d+(?:\.\d+)?)([smhdw])")

POSITION_HELP: Final = (
    "earliest (beginning), latest (end), an offset (42), a number of records before the end (-10), "
    "a time (2026-01-31T12:00, UTC unless it names a zone) or a time ago (-10m; units s m h d w)"
)


def pairs(items: Iterable[str] | None, what: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict; a value may be empty and may hold `=`."""
    return dict(_pair(text(item), what) for item in items or ())


def headers(items: Iterable[str] | None) -> list[tuple[str, str | bytes | None]]:
    """`["a=1", "a=2"]` as headers, in order; a name may come twice."""
    split = (_pair(item, "header") for item in items or ())
    return [(text(name), as_bytes(value)) for name, value in split]


def _pair(item: str, what: str) -> tuple[str, str]:
    key, separator, value = item.partition("=")
    if not key or not separator:
        raise UsageError(f"{what} {item!r} is not of the form name=value.")
    return key, value


def text(argument: str) -> str:
    """The same, if it is text. librdkafka crashes on a name or a property that is not."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{argument!r} is not UTF-8.") from None
    return argument


def as_bytes(argument: str) -> bytes:
    """What was typed, as UTF-8; bytes that are no text stay as they are."""
    return argument.encode("utf-8", "surrogateescape")


def timestamp_ms(text: str) -> int:
    """A time as milliseconds since the epoch: ISO 8601 (UTC unless it names a zone) or `-10m`."""
    relative = _RELATIVE.fullmatch(text)
    if relative:
        ago_s = float(relative[1]) * _UNIT_SECONDS[relative[2]]
        return int((time.time() - ago_s) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time.",
            "Write it as 2026-01-31T12:00:00, as 2026-01-31, or as a time ago such as -10m.",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def iso(milliseconds: int) -> str:
    """Milliseconds since the epoch as `2026-01-31T12:00:00.123Z`; a year beyond 1 to 9999 as the number."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a partition, before the broker has been asked what its offset is."""

    kind: Literal["earliest", "latest", "offset", "before_end", "time"]
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """See POSITION_HELP."""
        word = text.strip().lower()
        if word in {"earliest", "beginning"}:
            return cls("earliest")
        if word in {"latest", "end"}:
            return cls("latest")
        if re.fullmatch(r"\d+", word):
            return cls("offset", int(word))
        if re.fullmatch(r"-\d+", word):
            return cls("before_end", -int(word))
        try:
            return cls("time", timestamp_ms(text.strip()))
        except UsageError:
            raise UsageError(
                f"{text!r} is not a position in a topic.", f"A position is {POSITION_HELP}."
            ) from None


def topic_partitions(items: Sequence[str]) -> dict[str, set[int] | None]:
    """`["orders", "clicks:0,2"]` as topics with the chosen partitions; None means all of them."""
    chosen: dict[str, set[int] | None] = {}
    for item in items:
        topic, separator, numbers = item.partition(":")
        if not separator:
            chosen[topic] = None
            continue
        try:
            wanted = {int(number) for number in numbers.split(",")}
        except ValueError:
            raise UsageError(
                f"{item!r} does not name partitions.", "Write topic, topic:0 or topic:0,1,2."
            ) from None
        known = chosen.get(topic, set())
        chosen[topic] = None if known is None else known | wanted
    return chosen
