"""Buffers that answers are received into, used again as soon as nobody looks at them.

A fresh buffer of megabytes costs as much as the copy from the socket: the system clears its pages as they
are touched. So buffers are kept. Whether one is still in use need not be told: a bytearray that somebody
has a view of cannot be resized, and says so.
"""

from __future__ import annotations

from typing import Final

_ROUND_BYTES: Final = 64 * 1024


class BufferPool:
    """At most `kept_max` buffers are kept. For one thread at a time; views may end in any thread."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """`size` writable bytes of anything. They are the taker's until the last view of them is gone."""
        for index, buffer in enumerate(self._kept):
            if len(buffer) >= size and _is_free(buffer):
                del self._kept[index]
                self._kept.append(buffer)  # the longest unused come first
                return memoryview(buffer)[:size]
        buffer = bytearray(-(-size // _ROUND_BYTES) * _ROUND_BYTES)
        self._kept.append(buffer)
        if len(self._kept) > self._kept_max:
            self._drop_one()
        return memoryview(buffer)[:size]

    def _drop_one(self) -> None:
        """Forget the longest unused free buffer, or the oldest: whoever looks at it keeps it alive."""
        index = next((at for at, buffer in enumerate(self._kept[:-1]) if _is_free(buffer)), 0)
        del self._kept[index]


def _is_free(buffer: bytearray) -> bool:
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
