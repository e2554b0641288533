"""A key goes to the partition that other clients send it to."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from penstock.records.arrow.partitioning import partition_of_keys
from tests.records.arrow.test_encoding import BINARY_TYPES

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    keys=KEYS,
    first=st.integers(0, 5),
    partitions=st.integers(1, 1000),
    type_=st.sampled_from(BINARY_TYPES),
)
def test_it_is_that_of_the_other_clients(
    keys: list[bytes | None], first: int, partitions: int, type_: Any
) -> None:
    array = pa.array(keys, type_)[first:]
    java = [-1 if k is None else (murmur2(k) & 0x7FFFFFFF) % partitions for k in keys[first:]]
    librdkafka = [-1 if k is None else zlib.crc32(k) % partitions for k in keys[first:]]
    assert partition_of_keys(array, partitions, "murmur2").tolist() == java
    assert partition_of_keys(array, partitions, "crc32").tolist() == librdkafka


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)
def test_murmur2_is_the_java_client_s(key: str, hash_: int) -> None:
    """The hashes that Apache Kafka's own tests expect."""
    partitions = 2**31 - 1
    expected = (hash_ & 0x7FFFFFFF) % partitions
    assert partition_of_keys(pa.array([key]), partitions, "murmur2").tolist() == [expected]


def test_keys_may_be_chunked_or_none_at_all() -> None:
    assert partition_of_keys(pa.chunked_array([["21"], ["21"]]), 10, "murmur2").tolist() == [0, 0]
    assert partition_of_keys(pa.nulls(2), 10, "crc32").tolist() == [-1, -1]
    assert partition_of_keys(pa.array([], pa.binary()), 10, "crc32").tolist() == []
