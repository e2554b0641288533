"""Walking a segment file: every sound batch, every damaged range, and nothing in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.scan import Damage, ScannedBatch, scan
from tests.log.support import batch, damage, zero

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scan") / "segment"


def test_large_batches_are_checked_to_their_last_byte(path: Path) -> None:
    """They are read in pieces."""
    first = bytes(batch(value_bytes=3 * MEBIBYTE))
    second = bytes(batch(value_bytes=MEBIBYTE, base_offset=1))
    path.write_bytes(first + second)
    assert [item.position for item in scan(str(path))] == [0, len(first)]
    damage(path, len(first) - 1)
    found = list(scan(str(path)))
    assert found[0] == Damage(0, len(first), "the batch fails its CRC", False)
    assert isinstance(found[1], ScannedBatch)


@pytest.mark.parametrize("before", range(MEBIBYTE - 20, MEBIBYTE + 3))
def test_a_batch_behind_much_damage_is_found_wherever_it_begins(path: Path, before: int) -> None:
    sound = bytes(batch(base_offset=7))
    path.write_bytes(b"\x02" + b"x" * before + sound)
    damaged, found = scan(str(path))
    assert (damaged.position, found.position) == (0, before + 1)
    assert isinstance(found, ScannedBatch)


@pytest.mark.parametrize("offset", [2**32 - 1, 2**32, 2**31 - 1, 2**40 + 2**31, 2**62])
def test_a_batch_behind_damage_is_found_whatever_its_offset(path: Path, offset: int) -> None:
    batches = [bytes(batch(base_offset=offset + i)) for i in range(3)]
    path.write_bytes(b"".join(batches))
    zero(path, len(batches[0]), len(batches[1]))
    kinds = [type(item) for item in scan(str(path), next_offset=offset)]
    assert kinds == [ScannedBatch, Damage, ScannedBatch]


def test_a_batch_within_a_damaged_one_is_not_taken_for_the_next(path: Path) -> None:
    outer = bytes(batch(value=bytes(batch(base_offset=50)) + b"v" * 100))
    following = bytes(batch(base_offset=1))
    path.write_bytes(outer + following)
    damage(path, len(outer) - 1)
    damaged, found = scan(str(path))
    assert damaged == Damage(0, len(outer), "the batch fails its CRC", False)
    assert found.position == len(outer)


def test_many_zeros_at_the_end_are_one_torn_tail(path: Path) -> None:
    sound = bytes(batch())
    path.write_bytes(sound + bytes(5 * MEBIBYTE))
    assert list(scan(str(path)))[1:] == [
        Damage(len(sound), len(sound) + 5 * MEBIBYTE, "no record batch begins here", True)
    ]


def test_it_begins_and_ends_where_it_is_told(path: Path) -> None:
    batches = [bytes(batch(base_offset=i)) for i in range(5)]
    path.write_bytes(b"".join(batches))
    size = len(batches[0])
    found = scan(str(path), start=size, end=3 * size, next_offset=1)
    assert [item.position for item in found] == [size, 2 * size]


def test_a_file_that_shrinks_meanwhile_ends_the_scan(path: Path) -> None:
    """A broker may cut a torn tail under somebody who verifies."""
    large = bytes(batch(value_bytes=3 * MEBIBYTE))
    path.write_bytes(bytes(batch()) + large)
    found = scan(str(path))
    assert isinstance(next(found), ScannedBatch)
    with open(path, "r+b") as file:
        file.truncate(2 * MEBIBYTE)
    (rest,) = found
    assert isinstance(rest, Damage)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    hits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    junk=st.binary(max_size=100),
)
def test_it_covers_the_file_without_gap_or_overlap(
    path: Path, sizes: list[int], hits: list[tuple[float, int]], junk: bytes
) -> None:
    """Whatever happens to the bytes, and batches that nothing happened to are all found."""
    batches = [bytes(batch(value_bytes=size, base_offset=i)) for i, size in enumerate(sizes)]
    whole = b"".join(batches)
    data = bytearray(whole + junk)
    for share, bits in hits:
        data[int(share * len(data))] ^= bits
    path.write_bytes(data)
    found = list(scan(str(path)))
    at = 0
    for item in found:
        assert item.position == at
        at += item.header.size_bytes if isinstance(item, ScannedBatch) else item.end - item.position
    assert at == len(data)
    good = {item.position for item in found if isinstance(item, ScannedBatch)}
    position = 0
    untouched = set()
    for data_of_one in batches:
        end = position + len(data_of_one)
        around = slice(max(0, position - 1000), end + 1000)
        if data[around] == (whole + junk)[around]:  # nor were its neighbours hit
            untouched.add(position)
        position = end
    assert untouched <= good
