"""What every hand-written codec of requests has to keep to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.primitives import MALFORMED
from tests.kafka.strategies import entities, examples
from tests.kafka.tagging import encode_with_tags, tagged_fields
from tests.kafka.wire import encode, must_equal

Read = Callable[[bytes], Any]

checked = examples(40)


def must_read_what_kio_writes(request_type: Any, read: Read, plain: Callable[[Any], Any]) -> None:
    """With tagged fields that nobody knows and without; `plain` is kio's request as `read` returns it."""

    @checked
    @given(entities(request_type), tagged_fields())
    def check(entity: Any, tags: Any) -> None:
        for data in (encode(entity), encode_with_tags(entity, tags)):
            must_equal(read(data), plain(entity))

    check()


def must_refuse_whatever_is_cut_short(read: Read, valid: bytes) -> None:
    for size in range(len(valid)):
        with pytest.raises(MALFORMED):
            read(valid[:size])


def must_read_garbage_or_find_it_malformed(read: Read, valid: bytes) -> None:
    """And nothing else may come of it."""

    @checked
    @given(st.binary(max_size=60), st.integers(0, len(valid)), st.integers(0, len(valid)))
    def check(garbage: bytes, start: int, end: int) -> None:
        for data in (garbage, valid[:start] + garbage + valid[end:]):
            try:
                read(data)
            except MALFORMED:
                continue

    check()
