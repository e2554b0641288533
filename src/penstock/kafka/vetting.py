"""What must hold of a request's bytes before kio's reader may see them.

kio reads by schema and reads well-formed bytes well, but it takes three things for granted that a peer
can break. It reserves memory for as many elements as an array announces: five bytes that announce four
billion end the process, for Rust aborts when memory runs out. And it refuses tagged fields that its
schema lacks, though a newer client may send them at any time and wants them ignored (KIP-482). And it
reads compact strings of any length, though what is kept of them must fit the answers of every version.

`vetted(entity_type)` compiles the schema of a request into a walk over its bytes that checks every
length and count against what is really there, bounds the number of elements, and cuts unknown tagged
fields out. It reads no values; that is left to kio.
"""

from __future__ import annotations

import functools
import struct
import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from typing import Any, Final

from penstock.kafka.primitives import (
    ELEMENTS_MAX,
    STRING_BYTES_MAX,
    check_element_count,
    check_tag_count,
)
from penstock.wire import read_uvarint, write_uvarint

_FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class _Findings:
    """What one walk has seen: elements that may still come, and what to replace by what."""

    __slots__ = ("elements_left", "replacements")

    def __init__(self) -> None:
        self.elements_left = ELEMENTS_MAX
        self.replacements: list[tuple[int, int, bytes]] = []

    def count(self, elements: int) -> None:
        self.elements_left -= elements
        if self.elements_left < 0:
            check_element_count(ELEMENTS_MAX - self.elements_left)


# Takes the bytes and a position, and gives the position behind. A position behind the end is only
# found out by whoever reads next, or at the very end: arithmetic is cheap, checks are not.
Step = Callable[[bytes, int, _Findings], int]


@functools.cache
def vetted(entity_type: Any) -> Callable[[bytes], bytes]:
    """A function that gives `body` as kio may read it; it raises one of `MALFORMED` if none may."""
    walk = _entity(entity_type)

    def vet(body: bytes) -> bytes:
        findings = _Findings()
        if walk(body, 0, findings) > len(body):
            raise ValueError("the request ends too early")
        return _replaced(body, findings.replacements) if findings.replacements else body

    return vet


def _replaced(body: bytes, replacements: list[tuple[int, int, bytes]]) -> bytes:
    pieces = []
    copied = 0
    for start, end, replacement in replacements:
        pieces += [body[copied:start], replacement]
        copied = end
    return b"".join([*pieces, body[copied:]])


@functools.cache
def _entity(entity_type: Any) -> Step:
    """The walk over one entity. Neighbours of fixed size are one addition."""
    is_flexible = bool(entity_type.__flexible__)
    plan: list[tuple[int, Step]] = []
    skipped = 0
    tagged: dict[int, Step] = {}
    hints = typing.get_type_hints(entity_type)
    for item in fields(entity_type):
        step = _field(item, hints[item.name], is_flexible)
        tag = item.metadata.get("tag")
        if tag is not None:
            tagged[tag] = step if callable(step) else functools.partial(_skip, step)
        elif callable(step):
            plan.append((skipped, step))
            skipped = 0
        else:
            skipped += step
    if is_flexible:
        plan.append((skipped, _tags(tagged)))
        skipped = 0

    def walk(data: bytes, position: int, findings: _Findings) -> int:
        for skip, step in plan:
            position = step(data, position + skip, findings)
        return position + skipped

    return walk


def _skip(size: int, _data: bytes, position: int, _: _Findings) -> int:
    return position + size


def _field(item: Field[Any], annotation: Any, is_flexible: bool) -> Step | int:
    """How to pass over one field: a step, or how many bytes it always takes."""
    inner, is_optional = _without_none(annotation)
    if typing.get_origin(inner) is tuple:
        element, _ = _without_none(typing.get_args(inner)[0])
        return _array(_element(element, item, is_flexible), is_flexible)
    step = _element(inner, item, is_flexible)
    if is_dataclass(inner) and is_optional and "tag" not in item.metadata:
        assert callable(step)
        return _nullable(step)
    return step


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        choices = [item for item in typing.get_args(annotation) if item is not type(None)]
        assert len(choices) == 1, f"{annotation} is more than optional"
        return choices[0], True
    return annotation, False


def _element(annotation: Any, item: Field[Any], is_flexible: bool) -> Step | int:
    if is_dataclass(annotation):
        entity_type: Any = annotation
        return _entity(entity_type)
    kafka_type = item.metadata["kafka_type"]
    size = _FIXED_BYTES.get(kafka_type)
    if size is not None:
        return size
    assert kafka_type in {"string", "bytes", "records"}, f"no such type: {kafka_type}"
    if kafka_type == "string":
        return _compact_string if is_flexible else _string
    return _compact_bytes if is_flexible else _bytes


def _compact_bytes(data: bytes, position: int, _: _Findings) -> int:
    size, position = read_uvarint(data, position)
    return position + size - 1 if size else position


def _compact_string(data: bytes, position: int, _: _Findings) -> int:
    size, position = read_uvarint(data, position)
    if size > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {size - 1} bytes")
    return position + size - 1 if size else position


def _string(data: bytes, position: int, _: _Findings) -> int:
    size: int = _INT16.unpack_from(data, position)[0]
    return position + 2 + _checked(size)


def _bytes(data: bytes, position: int, _: _Findings) -> int:
    size: int = _INT32.unpack_from(data, position)[0]
    return position + 4 + _checked(size)


def _checked(size: int) -> int:
    if size < -1:
        raise ValueError(f"a length of {size}")
    return max(size, 0)


def _nullable(step: Step) -> Step:
    def walk(data: bytes, position: int, findings: _Findings) -> int:
        is_there = _INT8.unpack_from(data, position)[0] >= 0
        return step(data, position + 1, findings) if is_there else position + 1

    return walk


def _array(element: Step | int, is_flexible: bool) -> Step:
    def walk(data: bytes, position: int, findings: _Findings) -> int:
        if is_flexible:
            count, position = read_uvarint(data, position)
            count -= 1
        else:
            count, position = _INT32.unpack_from(data, position)[0], position + 4
        if count <= 0:
            _checked(count)
            return position
        if count > len(data) - position:
            raise ValueError(f"an array of {count} elements ends too early")
        findings.count(count)
        if not callable(element):
            return position + count * element
        for _ in range(count):
            position = element(data, position, findings)
        return position

    return walk


def _tags(known: dict[int, Step]) -> Step:
    """A section of tagged fields; those that kio does not know are cut out of it."""

    def walk(data: bytes, position: int, findings: _Findings) -> int:
        if data[position] == 0:
            return position + 1
        start = position
        count, position = read_uvarint(data, position)
        check_tag_count(count)
        kept = []
        for _ in range(count):
            field_start = position
            tag, position = read_uvarint(data, position)
            size, position = read_uvarint(data, position)
            end = position + size
            if end > len(data):
                raise ValueError("a tagged field ends too early")
            step = known.get(tag)
            if step is not None:
                if step(data, position, findings) != end:
                    raise ValueError(f"tagged field {tag} is not as long as it says")
                kept.append(data[field_start:end])
            position = end
        if len(kept) < count:
            section = write_uvarint(len(kept)) + b"".join(kept)
            findings.replacements.append((start, position, section))
        return position

    return walk
