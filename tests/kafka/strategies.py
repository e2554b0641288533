"""Hypothesis draws any entity that a kio schema allows."""

from __future__ import annotations

import datetime
import typing
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.kafka.wire import choices, is_nullable


def examples(count: int) -> settings:
    """So many examples; a failure is made small, but not explained, which may take minutes."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow],
    )


TEXTS = st.text(max_size=12)
ERRORS = st.sampled_from(list(ErrorCode))


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    if not signed:
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


SCALARS: dict[str | None, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "bytes": st.binary(max_size=12),
    "records": st.binary(max_size=80),
    "bool": st.booleans(),
    "int8": integers(8),
    "int16": integers(16),
    "uint16": integers(16, signed=False),
    "int32": integers(32),
    "uint32": integers(32, signed=False),
    "int64": integers(64),
    "float64": st.floats(allow_nan=False),
    "uuid": st.uuids(),  # kio has None for the zero id
    "error_code": ERRORS,
    "timedelta_i32": integers(32).map(_milliseconds),
    "timedelta_i64": integers(40).map(_milliseconds),
    "datetime_i64": st.integers(0, 2**41).map(
        lambda ms: datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC)
    ),
}


def entities(entity_type: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Entities of this type, with these fields drawn as told."""
    hints = typing.get_type_hints(entity_type)
    return st.builds(
        entity_type,
        **{
            item.name: fixed.get(item.name)
            or _values(hints[item.name], item.metadata.get("kafka_type"), "tag" in item.metadata)
            for item in fields(entity_type)
        },
    )


def _values(annotation: Any, kafka_type: str | None, is_tagged: bool) -> st.SearchStrategy[Any]:
    (inner,) = choices(annotation)
    if typing.get_origin(inner) is tuple:
        (element,) = choices(typing.get_args(inner)[0])
        drawn = st.lists(_one(element, kafka_type), max_size=3).map(tuple)
    else:
        drawn = _one(inner, kafka_type)
    # A tagged field that is None is one that is not sent.
    return st.none() | drawn if is_nullable(annotation) or kafka_type == "uuid" else drawn


def _one(annotation: Any, kafka_type: str | None) -> st.SearchStrategy[Any]:
    return entities(annotation) if is_dataclass(annotation) else SCALARS[kafka_type]
