"""A second encoder: what kio writes, with tagged fields that no schema knows in every place for them."""

from __future__ import annotations

import io
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import strategies as st
from kio.serial._introspect import get_field_tag
from kio.serial._serialize import get_field_writer
from kio.serial.writers import write_unsigned_varint

from tests.kafka.wire import choices

Tags = Sequence[tuple[int, bytes]]


def tagged_fields(at_least: int = 0) -> st.SearchStrategy[Tags]:
    """Up to three tagged fields that no schema knows, in order."""
    tags = st.integers(1000, 1099)
    drawn = st.dictionaries(tags, st.binary(max_size=5), min_size=at_least, max_size=3)
    return drawn.map(lambda found: sorted(found.items()))


def encode_with_tags(entity: Any, tags: Tags) -> bytes:
    """`entity` with the tagged fields `tags` added to it and to every entity within it."""
    pieces = []
    known: list[tuple[int, bytes]] = []
    hints = typing.get_type_hints(type(entity))
    for item in fields(entity):
        value = getattr(entity, item.name)
        tag = get_field_tag(item)
        if tag is None:
            pieces.append(_field(entity, item, hints[item.name], value, tags))
        elif value != item.default:
            data = _field(entity, item, hints[item.name], value, tags, is_tag=True)
            known.append((tag, data))
    if entity.__flexible__:
        present = sorted([*known, *tags])
        pieces.append(uvarint(len(present)))
        pieces += [uvarint(tag) + uvarint(len(data)) + data for tag, data in present]
    return b"".join(pieces)


def _field(
    entity: Any, item: Any, annotation: Any, value: Any, tags: Tags, *, is_tag: bool = False
) -> bytes:
    (inner,) = choices(annotation)
    is_array = typing.get_origin(inner) is tuple
    element = next(iter(choices(typing.get_args(inner)[0]))) if is_array else inner
    if not is_dataclass(element) or value is None:
        with io.BytesIO() as buffer:
            get_field_writer(item, entity.__flexible__, False, is_tag)(buffer, value)
            return buffer.getvalue()
    if not is_array:
        marker = b"\x01" if inner is not annotation and not is_tag else b""  # a nullable entity
        return marker + encode_with_tags(value, tags)
    count = uvarint(len(value) + 1) if entity.__flexible__ else len(value).to_bytes(4, "big")
    return count + b"".join(encode_with_tags(each, tags) for each in value)


def uvarint(value: int) -> bytes:
    with io.BytesIO() as buffer:
        write_unsigned_varint(buffer, value)  # type: ignore[arg-type]
        return buffer.getvalue()
