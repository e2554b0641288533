"""Sparse indexes: the same answers as a plain list of their entries, on file, in memory and in between."""

from __future__ import annotations

import errno
import resource
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, BadIndexError, Entry, SparseIndex

STEPS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99)), max_size=60)


def ascending(steps: list[tuple[int, int]]) -> list[Entry]:
    entries = []
    first = second = 0
    for step in steps:
        first, second = first + step[0], second + step[1]
        entries.append((first, second))
    return entries


def fill(path: Path, entries: list[Entry], on_file: int) -> SparseIndex:
    """An index whose first `on_file` entries are in its file, and whose others wait in memory."""
    path.unlink(missing_ok=True)
    index = SparseIndex(str(path), OFFSET_ENTRY)
    for entry in entries[:on_file]:
        index.add(*entry)
    index.flush()
    for entry in entries[on_file:]:
        index.add(*entry)
    return index


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index") / "0.index"


class TestFloor:
    @settings(max_examples=200, deadline=None)
    @given(steps=STEPS, share=st.floats(0, 1), column=st.sampled_from([0, 1]), data=st.data())
    def test_it_is_that_of_a_plain_list(
        self,
        path: Path,
        steps: list[tuple[int, int]],
        share: float,
        column: int,
        data: st.DataObject,
    ) -> None:
        entries = ascending(steps)
        index = fill(path, entries, round(share * len(entries)))
        largest = entries[-1][column] if entries else 5
        for value in data.draw(st.lists(st.integers(0, largest + 3), min_size=1, max_size=20)):
            found = bisect_right(entries, value, key=lambda entry: entry[column])
            assert index.floor(value, column) == (entries[found - 1] if found else None)
        assert index.last() == (entries[-1] if entries else None)
        assert len(index) == len(entries)

    @pytest.mark.parametrize("count", [511, 512, 513, 5000])
    def test_large_files_are_searched_in_blocks(self, path: Path, count: int) -> None:
        entries = [(3 * i + 1, 10 * i + 10) for i in range(count)]
        index = fill(path, entries, count)
        for i in (0, 1, count // 3, count // 2, count - 2, count - 1):
            first, second = entries[i]
            assert index.floor(first) == index.floor(first + 2) == entries[i]
            assert index.floor(second, 1) == index.floor(second + 9, 1) == entries[i]
        assert index.floor(0) is None

    def test_a_search_reads_little_of_a_large_file(self, path: Path) -> None:
        index = fill(path, [(i + 1, i + 1) for i in range(100_000)], 100_000)
        index.floor(1)  # opened and counted
        before = _bytes_read()
        index.floor(77_777)
        assert _bytes_read() - before < 10_000


class TestFile:
    def test_entries_are_big_endian(self, path: Path) -> None:
        fill(path, [(1, 2), (3, 2**32 - 1)], 2)
        assert path.read_bytes() == bytes.fromhex("00000001 00000002 00000003 ffffffff")

    def test_times_have_64_bits(self, tmp_path: Path) -> None:
        index = SparseIndex(str(tmp_path / "t"), TIME_ENTRY)
        index.add(2**62, 7)
        index.flush()
        assert (tmp_path / "t").read_bytes() == (2**62).to_bytes(8, "big") + (7).to_bytes(4, "big")
        assert index.floor(2**62) == (2**62, 7)

    def test_nothing_is_written_before_a_flush(self, path: Path) -> None:
        fill(path, [(1, 1)], 0)
        assert not path.exists()

    def test_opening_again_finds_what_was_flushed(self, path: Path) -> None:
        fill(path, [(1, 1), (2, 2), (3, 3)], 2)
        again = SparseIndex(str(path), OFFSET_ENTRY)
        assert len(again) == 2
        assert again.last() == (2, 2)

    def test_half_an_entry_at_the_end_is_written_over(self, path: Path) -> None:
        fill(path, [(1, 1), (2, 2)], 2)
        path.write_bytes(path.read_bytes()[:-3])
        index = SparseIndex(str(path), OFFSET_ENTRY)
        index.add(2, 2)
        index.flush()
        assert path.read_bytes() == OFFSET_ENTRY.pack(1, 1) + OFFSET_ENTRY.pack(2, 2)

    @settings(max_examples=100, deadline=None)
    @given(steps=STEPS, share=st.floats(0, 1), bound=st.integers(0, 3000))
    def test_truncation_drops_what_is_above(
        self, path: Path, steps: list[tuple[int, int]], share: float, bound: int
    ) -> None:
        entries = ascending(steps)
        index = fill(path, entries, round(share * len(entries)))
        index.truncate(bound)
        kept = [entry for entry in entries if entry[1] <= bound]
        assert len(index) == len(kept)
        assert index.last() == (kept[-1] if kept else None)

    def test_a_file_that_vanishes_or_shrinks_is_a_bad_index(self, path: Path) -> None:
        index = fill(path, [(i, i) for i in range(1, 2001)], 2000)
        assert index.floor(10) == (10, 10)
        path.write_bytes(path.read_bytes()[:16])
        with pytest.raises(BadIndexError, match="shorter"):
            index.floor(1900)
        index.release()
        path.unlink()
        with pytest.raises(BadIndexError, match="gone"):
            index.floor(10)

    def test_a_look_up_near_the_last_one_reads_nothing(self, path: Path) -> None:
        index = fill(path, [(i, i) for i in range(10, 400)], 390)
        index.floor(100)
        path.write_bytes(b"")
        assert [index.floor(value) for value in (9, 10, 250, 399, 5000)] == [
            None, (10, 10), (250, 250), (399, 399), (399, 399),
        ]  # fmt: skip

    def test_entries_that_reach_the_file_later_are_found(self, path: Path) -> None:
        index = fill(path, [(i, i) for i in range(1, 10)], 9)
        assert index.floor(100) == (9, 9)
        index.add(50, 50)
        index.flush()
        assert index.floor(100) == (50, 50)
        index.truncate(20)
        assert index.floor(100) == (9, 9)

    def test_clearing_leaves_readers_of_the_old_file_alone(self, path: Path) -> None:
        index = fill(path, [(1, 1)], 1)
        other = SparseIndex(str(path), OFFSET_ENTRY)
        assert other.last() == (1, 1)
        index.clear()
        assert other.last() == (1, 1)
        assert index.last() is None
        assert not path.exists()


class TestFailedFlush:
    @pytest.fixture
    def file_size_limit(self) -> Iterator[None]:
        """Files of this process end at 20 bytes."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_entries_that_did_not_fit_stay_in_memory(
        self, path: Path, file_size_limit: None
    ) -> None:
        entries = [(i, i) for i in range(1, 6)]
        index = fill(path, [], 0)
        for entry in entries:
            index.add(*entry)
        for _ in range(2):
            with pytest.raises(OSError, match=r"No space left|File too large") as failed:
                index.flush()
            assert failed.value.errno in {errno.ENOSPC, errno.EFBIG}
            assert [index.floor(i) for i in range(1, 6)] == entries
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        index.flush()
        assert path.read_bytes() == b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestPlausibility:
    @pytest.mark.parametrize(
        ("entries", "is_plausible"),
        [
            ([], True),
            ([(1, 100)], True),
            ([(1, 100), (50, 1000)], True),
            ([(0, 0)], False),
            ([(0, 0), (0, 0)], False),
            ([(1, 100), (51, 900)], False),
            ([(1, 100), (50, 1001)], False),
            ([(5, 500), (4, 600)], False),
            ([(5, 500), (6, 500)], False),
        ],
    )
    def test_it_looks_at_the_end_of_the_file(
        self, path: Path, entries: list[Entry], is_plausible: bool
    ) -> None:
        path.write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries))
        assert SparseIndex(str(path), OFFSET_ENTRY).is_plausible(50, 1000) is is_plausible

    def test_half_an_entry_is_not_plausible(self, path: Path) -> None:
        path.write_bytes(OFFSET_ENTRY.pack(1, 1) + b"\0")
        assert not SparseIndex(str(path), OFFSET_ENTRY).is_plausible(50, 1000)

    def test_nor_is_no_file(self, tmp_path: Path) -> None:
        assert not SparseIndex(str(tmp_path / "none"), OFFSET_ENTRY).is_plausible(50, 1000)


def _bytes_read() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
