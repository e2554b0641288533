"""Our message dataclasses to and from kio's, for every version of an API.

A handler declares the request it reads and the response it gives as plain frozen dataclasses, once,
with the names that kio uses. This module fills the one from, and turns the other into, the kio entity
of the version on the wire, matching fields by name:

* a request field that the version lacks takes the default our dataclass gives it;
* a response field that the version lacks is left out; one that ours lacks takes kio's default;
* kio's timedelta and datetime fields `x` are our integers `x_ms`;
* a nested array of entities is a tuple of our dataclasses (a list is fine in a response);
* an `error_message` is cut to `MESSAGE_CHARACTERS_MAX`.

Converters are compiled once for each pair of types, so a message costs a few attribute reads.
"""

from __future__ import annotations

import datetime
import functools
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from penstock.kafka.primitives import MESSAGE_CHARACTERS_MAX

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_TIME_TYPES: Final = {"timedelta_i32", "timedelta_i64", "datetime_i64"}

Converter = Callable[[Any], Any]


def _identity(value: Any) -> Any:
    return value


def _time_to_ms(value: Any) -> int:
    if value is None:
        return -1
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    return int((value - EPOCH) // _MILLISECOND)


def _ms_to_timedelta(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def _ms_to_datetime(value: int) -> datetime.datetime | None:
    return None if value < 0 else EPOCH + datetime.timedelta(milliseconds=value)


def _cut(message: str | None) -> str | None:
    return None if message is None else message[:MESSAGE_CHARACTERS_MAX]


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _nested(annotation: Any) -> tuple[Any, bool]:
    """The dataclass inside an annotation, if any, and whether it stands in a tuple or sequence."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        choices = [_nested(choice) for choice in typing.get_args(annotation)]
        return next(((found, array) for found, array in choices if found or array), (None, False))
    origin = typing.get_origin(annotation)
    if origin in {tuple, list, Sequence} or (
        isinstance(origin, type) and issubclass(origin, Sequence)
    ):
        element = typing.get_args(annotation)[0]
        return (element, True) if is_dataclass(element) else (None, True)
    return (annotation, False) if is_dataclass(annotation) else (None, False)


def _each(convert: Converter, is_array: bool) -> Converter:
    def one(value: Any) -> Any:
        return None if value is None else convert(value)

    def many(value: Any) -> Any:
        return None if value is None else tuple(convert(item) for item in value)

    return many if is_array else one


def _required(convert: Converter, name: str) -> Converter:
    """kio reads a null where the protocol allows none: an array that must be there is malformed."""

    def check(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{name} is null")
        return convert(value)

    return check


def _our_name(item: Field[Any]) -> str:
    return f"{item.name}_ms" if item.metadata.get("kafka_type") in _TIME_TYPES else item.name


@functools.cache
def reader(ours: Any, kios: Any) -> Converter:
    """A function that makes one of `ours` of one of `kios` (a request of one version)."""
    their_fields = {_our_name(item): item for item in fields(kios)}
    steps: list[tuple[str, str, Converter]] = []
    for item in fields(ours):
        theirs = their_fields.get(item.name)
        if theirs is None:
            has_default = item.default is not MISSING or item.default_factory is not MISSING
            assert has_default, f"{ours.__name__}.{item.name} needs a default: {kios} lacks it"
            continue
        our_type, is_array = _nested(_hints(ours)[item.name])
        convert: Converter = _identity
        if our_type is not None:
            their_type, _ = _nested(_hints(kios)[theirs.name])
            assert their_type is not None, f"{kios.__name__}.{theirs.name} is no entity"
            convert = _each(reader(our_type, their_type), is_array)
        elif theirs.metadata.get("kafka_type") in _TIME_TYPES:
            convert = _time_to_ms
        if (our_type or is_array) and not _accepts_none(_hints(ours)[item.name]):
            convert = _required(convert, f"{ours.__name__}.{item.name}")
        steps.append((item.name, theirs.name, convert))

    def read(entity: Any) -> Any:
        return ours(**{mine: step(getattr(entity, its)) for mine, its, step in steps})

    return read


@functools.cache
def writer(ours: Any, kios: Any) -> Converter:
    """A function that makes one of `kios` (a response of one version) of one of `ours`."""
    our_names = {item.name for item in fields(ours)}
    steps: list[tuple[str, str, Converter]] = []
    constants: dict[str, Any] = {}
    for item in fields(kios):
        name = _our_name(item)
        if name not in our_names:
            annotation = _hints(kios)[item.name]
            if item.default is MISSING or (item.default is None and _nested(annotation)[1]):
                constants[item.name] = _implicit_default(item, annotation)
            continue
        steps.append((item.name, name, _to_kio(ours, name, kios, item)))

    def write(message: Any) -> Any:
        values = {its: step(getattr(message, mine)) for its, mine, step in steps}
        return kios(**constants, **values)

    return write


def _to_kio(ours: type, name: str, kios: type, item: Field[Any]) -> Converter:
    our_type, is_array = _nested(_hints(ours)[name])
    if our_type is not None:
        their_type, _ = _nested(_hints(kios)[item.name])
        assert their_type is not None, f"{kios.__name__}.{item.name} is no entity"
        return _each(writer(our_type, their_type), is_array)
    if name == "error_message":
        return _cut
    match item.metadata.get("kafka_type"):
        case "timedelta_i32" | "timedelta_i64":
            return _ms_to_timedelta
        case "datetime_i64":
            return _ms_to_datetime
    return tuple if is_array and not _accepts_none(_hints(ours)[name]) else _identity


def _accepts_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _implicit_default(item: Field[Any], annotation: Any) -> Any:
    """Kafka's own default for a response field that we never set.

    A list that may be null is an empty one: Kafka sends no nulls there, and some clients trust it.
    """
    if _nested(annotation)[1]:
        return ()
    if _accepts_none(annotation):
        return None
    defaults: dict[Any, Any] = {
        "string": "",
        "bool": False,
        "uuid": uuid.UUID(int=0),
        "error_code": ErrorCode.none,
        "bytes": b"",
        "timedelta_i32": datetime.timedelta(),
        "timedelta_i64": datetime.timedelta(),
    }
    return defaults.get(item.metadata.get("kafka_type"), 0)
