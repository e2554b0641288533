"""Memory to receive requests into, shared by all connections and bounded."""

from __future__ import annotations

from typing import Final

from penstock.errors import ProtocolError

BUFFER_BYTES: Final = 64 * 1024
POOLED_BYTES_MAX: Final = 2 * 1024 * 1024
_FREE_COUNT_MAX: Final = 8

# Of buffers above the smallest size, lent at one time. From the first bound on nobody gets more than it
# has something to put into; at the second, connections whose large requests need still more are closed.
# A producer that sends as fast as it can needs a few megabytes, so only very many, or malice, get there.
LENT_BYTES_EASY: Final = 256 * 1024 * 1024
LENT_BYTES_MAX: Final = 1024 * 1024 * 1024


class BufferPool:
    """Buffers by size, the last one returned first: it is the one still in the CPU's cache."""

    def __init__(
        self, lent_bytes_easy: int = LENT_BYTES_EASY, lent_bytes_max: int = LENT_BYTES_MAX
    ) -> None:
        self._lent_bytes_easy = lent_bytes_easy
        self._lent_bytes_max = lent_bytes_max
        self._free: dict[int, list[bytearray]] = {}
        self.lent_bytes = 0  # but for buffers of the smallest size

    def take(self, hint: int) -> bytearray:
        """A buffer to receive into, as large as `hint` if that is no trouble. It holds anything."""
        return self._lend(hint if self.lent_bytes < self._lent_bytes_easy else BUFFER_BYTES)

    def grow(self, held: bytearray, size: int) -> bytearray:
        """A buffer of at least `size` bytes, to be held instead of `held`, which is to be given back."""
        if self.lent_bytes + size > self._lent_bytes_max:
            raise ProtocolError(
                f"no memory for a request of which {len(held)} bytes have come: "
                f"{self.lent_bytes} bytes are in use for others"
            )
        return self._lend(size)

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back. Nobody may use it, or a view of it, any more."""
        size = len(buffer)
        if size > BUFFER_BYTES:
            self.lent_bytes -= size
        if size <= POOLED_BYTES_MAX:
            free = self._free.setdefault(size, [])
            if len(free) < _FREE_COUNT_MAX:
                free.append(buffer)

    def _lend(self, size: int) -> bytearray:
        capacity = BUFFER_BYTES if size <= BUFFER_BYTES else 1 << (size - 1).bit_length()
        if capacity > BUFFER_BYTES:
            self.lent_bytes += capacity
        free = self._free.get(capacity)
        return free.pop() if free else bytearray(capacity)
