"""kio reads what was vetted: what it would read anyway, less what it must not see."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import kio.index
import kio.serial
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.api import Api
from penstock.kafka.handlers import REGISTRY
from penstock.kafka.primitives import ELEMENTS_MAX, MALFORMED
from penstock.kafka.vetting import vetted
from tests.kafka.strategies import entities, examples
from tests.kafka.tagging import encode_with_tags, tagged_fields, uvarint
from tests.kafka.wire import decode, encode, request

REQUEST_TYPES = [
    pytest.param(kio.index.load_request_schema(api.key, version), id=f"{api.name}-v{version}")
    for api in REGISTRY.values()
    if isinstance(api, Api)
    for version in api.versions
]
every_request = pytest.mark.parametrize("request_type", REQUEST_TYPES)
checked = examples(8)


@every_request
def test_what_kio_wrote_passes_untouched_and_unknown_tags_are_cut_out(request_type: Any) -> None:
    vet = vetted(request_type)

    @checked
    @given(entities(request_type), tagged_fields(at_least=1))
    def check(entity: Any, tags: Any) -> None:
        body = encode(entity)
        assert vet(body) is body
        assert decode(request_type, vet(encode_with_tags(entity, tags))) == entity

    check()


@every_request
def test_mutated_bytes_are_read_or_refused_and_nothing_else(request_type: Any) -> None:
    vet = vetted(request_type)
    reader = kio.serial.entity_reader(request_type)

    @checked
    @given(entities(request_type), st.binary(max_size=20), st.data())
    def check(entity: Any, garbage: bytes, data: st.DataObject) -> None:
        body = encode(entity)
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, len(body)))
        try:
            reader(vet(body[:start] + garbage + body[end:]), 0)
        except (*MALFORMED, kio.serial.errors.SerialError):
            return

    check()


METADATA_V1 = kio.index.load_request_schema(3, 1)
METADATA_V9 = kio.index.load_request_schema(3, 9)


@pytest.mark.parametrize(
    ("request_type", "body"),
    [
        (METADATA_V1, struct.pack(">i", 2**31 - 1)),
        (METADATA_V1, struct.pack(">i", 100) + bytes(99)),
        (METADATA_V1, struct.pack(">i", -2)),
        (METADATA_V9, b"\xff\xff\xff\xff\x0f"),
        (METADATA_V9, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        (METADATA_V9, b"\x01\x01\x00\x00" + uvarint(101) + b"\x01\x00" * 101),
        (METADATA_V9, b"\x01\x01\x00\x00\x01\x05\x0aabc"),
    ],
)
def test_lengths_and_counts_that_cannot_be_are_refused(request_type: Any, body: bytes) -> None:
    with pytest.raises(MALFORMED):
        vetted(request_type)(body)


def test_the_number_of_elements_is_bounded_over_all_arrays() -> None:
    """An OffsetFetch of many topics of many partitions."""
    topics = [{"name": "t", "partition_indexes": [0] * 1_000}] * 100
    most = encode(request("offset_fetch", 1, group_id="g", topics=topics))
    request_type = kio.index.load_request_schema(9, 1)
    assert vetted(request_type)(most) is most
    one_topic = most[7:][: (len(most) - 7) // 100]
    count = ELEMENTS_MAX // 1_000
    more = most[:3] + struct.pack(">i", count) + one_topic * count
    with pytest.raises(ValueError, match="too much"):
        vetted(request_type)(more)


def test_what_is_refused_here_is_what_ends_the_process_in_kio() -> None:
    """The reason for all this: when it no longer holds, the vetting can go."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31));"
        "import kio.index, kio.serial;"
        "read = kio.serial.entity_reader(kio.index.load_request_schema(3, 9));"
        "read(b'\\xff\\xff\\xff\\xff\\x0f', 0)"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert outcome.returncode < 0
    assert b"memory allocation" in outcome.stderr
