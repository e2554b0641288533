"""Records read from the files of a broker on this machine, where the broker says that they are.

What may be read is the broker's decision, as with every Fetch; only the bytes take the short way. It never
changes bytes that it has told of, so whoever has the file open may read them whenever it likes.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from penstock.wire import FileReference

_NOT_A_FILE: Final = -1
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # it may be anything


class LocalFiles:
    """Keeps the last file open. For one thread at a time."""

    def __init__(self) -> None:
        self._opened: tuple[bytes, int, int] | None = None  # path, device, inode
        self._fd = _NOT_A_FILE

    def read(self, reference: FileReference, into: memoryview) -> bool:
        """Fill `into` with the bytes that are meant. False: they are not here, or not for us to read."""
        try:
            return self._open(reference) and self._fill(reference, into)
        except (OSError, ValueError):  # the second for what can be no path
            return False

    def _open(self, reference: FileReference) -> bool:
        """Open the file that is meant, which may be hidden from us, or gone, or another by now."""
        wanted = reference.path, reference.device, reference.inode
        if wanted != self._opened:
            self.close()
            self._fd = os.open(reference.path, _FLAGS)
            status = os.fstat(self._fd)
            if stat.S_ISREG(status.st_mode):
                self._opened = reference.path, status.st_dev, status.st_ino
        return wanted == self._opened

    def _fill(self, reference: FileReference, into: memoryview) -> bool:
        position, filled = reference.position, 0
        while filled < len(into):
            count = os.preadv(self._fd, [into[filled:]], position + filled)
            if count == 0:
                return False
            filled += count
        return into[: len(reference.header)] == reference.header

    def close(self) -> None:
        """May be repeated."""
        fd, self._fd, self._opened = self._fd, _NOT_A_FILE, None
        if fd != _NOT_A_FILE:
            os.close(fd)

    __del__ = close
