"""Every handler's dataclasses fit the schema of every version they are read from and written to."""

from __future__ import annotations

import datetime
import typing
import uuid
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import kio.index
import pytest
from hypothesis import given

from penstock.errors import ErrorCode
from penstock.kafka.api import Api
from penstock.kafka.handlers import REGISTRY
from tests.kafka.handler_types import response_type
from tests.kafka.strategies import entities, examples
from tests.kafka.wire import build, choices, decode, encode

APIS: list[Api[Any]] = [api for api in REGISTRY.values() if isinstance(api, Api)]


def versions_of(apis: list[Api[Any]]) -> list[Any]:
    return [pytest.param(api, v, id=f"{api.name}-v{v}") for api in apis for v in api.versions]


every_version = pytest.mark.parametrize(("api", "version"), versions_of(APIS))
checked = examples(8)
MILLISECOND = datetime.timedelta(milliseconds=1)


def nested_types(annotation: Any) -> list[Any]:
    """The dataclass within, if there is one."""
    (inner,) = choices(annotation)
    arguments = typing.get_args(inner)
    candidates = [inner, *(arguments[:1] if typing.get_origin(inner) in ARRAYS else [])]
    return [item for item in candidates if is_dataclass(item)]


ARRAYS = {tuple, list, Sequence}


Fields = dict[tuple[Any, str], bool]


def match(ours: Any, kio_type: Any, found: Fields) -> None:
    """Note for each field of `ours`, and of dataclasses within, whether this schema has it."""
    hints, their_hints = typing.get_type_hints(ours), typing.get_type_hints(kio_type)
    theirs = {our_name(item): item for item in fields(kio_type)}
    for item in fields(ours):
        its = theirs.get(item.name)
        found[ours, item.name] = found.get((ours, item.name), False) or its is not None
        for nested in nested_types(hints[item.name]):
            for other in nested_types(their_hints[its.name]) if its is not None else []:
                match(nested, other, found)


def missing(found: Fields) -> list[str]:
    return [
        f"{ours.__qualname__}.{name}" for (ours, name), is_there in found.items() if not is_there
    ]


def our_name(item: Any) -> str:
    is_time = str(item.metadata.get("kafka_type")).startswith(("timedelta", "datetime"))
    return f"{item.name}_ms" if is_time else str(item.name)


@pytest.mark.parametrize("api", [api for api in APIS if api._upgrade is None], ids=lambda a: a.name)
def test_every_field_of_our_request_is_in_some_version(api: Api[Any]) -> None:
    """A misspelt field would keep its default for ever. Requests made by hand are not asked."""
    found: Fields = {}
    for version in api.versions:
        match(api.request, kio.index.load_request_schema(api.key, version), found)
    assert not missing(found)


def test_every_field_of_our_responses_is_in_some_version() -> None:
    """A misspelt field would be left out silently. Some dataclasses serve more than one API."""
    found: Fields = {}
    for api in APIS:
        for version in api.versions:
            match(response_type(api), kio.index.load_response_schema(api.key, version), found)
    assert not missing(found)


@every_version
def test_a_request_is_read_as_kio_wrote_it(api: Api[Any], version: int) -> None:
    kio_type = kio.index.load_request_schema(api.key, version)

    @checked
    @given(entities(kio_type))
    def check(entity: Any) -> None:
        request = api.decode(version, encode(entity))
        assert isinstance(request, api.request)
        if api._upgrade is None:
            assert_same(request, entity)

    check()


@pytest.mark.parametrize(
    ("api", "version"), versions_of([api for api in APIS if api._downgrade is None])
)
def test_a_response_is_written_as_kio_reads_it(api: Api[Any], version: int) -> None:
    """Draw a response of the version, put its values into ours, and send that."""
    kio_type = kio.index.load_response_schema(api.key, version)
    ours = response_type(api)

    @checked
    @given(entities(kio_type))
    def check(entity: Any) -> None:
        response = taken(ours, entity)
        assert_same(response, decode(kio_type, api.encode(version, response)))

    check()


def taken(ours: Any, theirs: Any) -> Any:
    """One of `ours` with the values of a kio entity, and anything for what that lacks."""
    values = {}
    hints = typing.get_type_hints(ours)
    by_name = {our_name(item): item.name for item in fields(theirs)}
    for item in fields(ours):
        if item.name in by_name:
            value = getattr(theirs, by_name[item.name])
            values[item.name] = _taken_value(hints[item.name], value, item.name.endswith("_ms"))
        elif item.default is MISSING:
            (inner,) = choices(hints[item.name])
            kind = typing.get_origin(inner) or inner
            values[item.name] = uuid.UUID(int=0) if kind is uuid.UUID else kind()
    return ours(**values)


def _taken_value(annotation: Any, value: Any, is_time: bool) -> Any:
    nested = nested_types(annotation)
    if value is None and typing.get_origin(annotation) in ARRAYS:
        return ()  # ours is never null
    if is_time:
        return in_ms(value)
    if nested and isinstance(value, tuple):
        return tuple(taken(nested[0], item) for item in value)
    return taken(nested[0], value) if nested and value is not None else value


def in_ms(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return -1 if value is None else value


@every_version
def test_an_error_is_told_in_every_version(api: Api[Any], version: int) -> None:
    assert api.on_error is not None
    on_error = api.on_error

    @checked
    @given(entities(kio.index.load_request_schema(api.key, version)))
    def check(entity: Any) -> None:
        request = api.decode(version, encode(entity))
        response = on_error(request, ErrorCode.kafka_storage_error, "the disk is full")
        decode(kio.index.load_response_schema(api.key, version), api.encode(version, response))

    check()


@every_version
def test_an_error_is_told_in_few_words_however_long_its_reason(api: Api[Any], version: int) -> None:
    """It may quote what a client sent, which is as long as a string can be."""
    assert api.on_error is not None
    entity = build(kio.index.load_request_schema(api.key, version), {})
    request = api.decode(version, encode(entity))
    response = api.on_error(
        request, ErrorCode.invalid_config, "no such setting: " + "\u2026" * 32_767
    )
    assert len(api.encode(version, response)) < 32_767


def assert_same(ours: Any, theirs: Any) -> None:
    """Every field that both have is the same in both."""
    for item in fields(theirs):
        if not hasattr(ours, our_name(item)):
            continue
        mine, its = getattr(ours, our_name(item)), getattr(theirs, item.name)
        if our_name(item) != item.name:
            its = in_ms(its)
        if is_dataclass(its):
            assert_same(mine, its)
        elif isinstance(its, tuple) and its and is_dataclass(its[0]):
            assert len(mine) == len(its)
            for one, other in zip(mine, its, strict=True):
                assert_same(one, other)
        elif isinstance(its, tuple):
            assert tuple(mine) == its
        else:
            assert mine == its, item.name
