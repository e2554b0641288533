"""An ordered set of strings with cheap inserts, deletes and prefix scans."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

__all__ = ["SortedKeys"]

CHUNK_KEYS_MAX = 1024


class SortedKeys:
    """Keys in order, in chunks of at most `chunk_keys_max >= 2`, so that no change moves more than one chunk.

    `add`, `discard`: O(log n + chunk). `prefix`: O(log n + keys found). Worked example with chunks of
    two: chunks `[a b][c d][e]`, lasts `[b d e]`; the chunk of `c` is the first whose last is >= `c`.
    """

    __slots__ = ("_chunk_keys_max", "_chunks", "_lasts")

    def __init__(self, keys: Iterable[str] = (), chunk_keys_max: int = CHUNK_KEYS_MAX) -> None:
        self._chunk_keys_max = chunk_keys_max
        ordered = sorted(set(keys))
        half = chunk_keys_max // 2  # room to grow
        self._chunks = [ordered[i : i + half] for i in range(0, len(ordered), half)]
        # Invariant: no chunk is empty, len(_lasts) == len(_chunks), _lasts[i] == _chunks[i][-1].
        self._lasts = [chunk[-1] for chunk in self._chunks]

    def add(self, key: str) -> None:
        """Add `key`; nothing happens if it is there."""
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        if key > chunk[-1]:
            chunk.append(key)
        else:
            position = bisect_left(chunk, key)
            if chunk[position] == key:
                return
            chunk.insert(position, key)
        self._lasts[at] = chunk[-1]
        if len(chunk) > self._chunk_keys_max:
            half = len(chunk) // 2
            self._chunks.insert(at + 1, chunk[half:])
            del chunk[half:]
            self._lasts.insert(at, chunk[-1])

    def discard(self, key: str) -> None:
        """Remove `key`; nothing happens if it is not there."""
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            return
        chunk = self._chunks[at]
        position = bisect_left(chunk, key)
        if chunk[position] != key:
            return
        del chunk[position]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]

    def prefix(self, prefix: str) -> Iterator[str]:
        """The keys that start with `prefix`, in order. Do not change the set while iterating."""
        at = bisect_left(self._lasts, prefix)
        if at == len(self._chunks):
            return
        start = bisect_left(self._chunks[at], prefix)
        for chunk in self._chunks[at:]:
            for key in chunk[start:] if start else chunk:
                if not key.startswith(prefix):
                    return
                yield key
            start = 0
