"""Open files that close themselves, and the pieces of them that readers are given."""

from __future__ import annotations

import errno
import os

from penstock.errors import CorruptLogError
from penstock.records.batch import HEADER_BYTES
from penstock.wire import FileReference

_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has the second only


class LogFile:
    """An open file; closed when the last one who holds it lets go, so a slice outlives a deletion."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.path = path  # where it was opened: it may have been moved, or removed
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def pread(self, count: int, position: int) -> bytes:
        """Up to `count` bytes; whoever closes files meanwhile does not take this one away."""
        return os.pread(self.fd, count, position)

    def sync(self) -> None:
        """Make it durable. Blocks: runs in a thread."""
        os.fsync(self.fd)

    def sync_data(self) -> None:
        """Make its bytes durable, if not all that is known about it. Blocks: runs in a thread."""
        _fdatasync(self.fd)


class Directory(LogFile):
    """An open directory: stays the same one if it is moved away and another takes its name."""

    __slots__ = ()

    def __init__(self, path: str) -> None:
        super().__init__(path, os.O_RDONLY | os.O_DIRECTORY)


def replace_file(directory: Directory, name: str, data: bytes, *, durable: bool) -> None:
    """Replace a file, or make it, in one step. With `durable`, it is on disk on return."""
    at = directory.fd
    temporary = f"{name}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o644, dir_fd=at)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    if durable:
        directory.sync()


class FileSlice:
    """Bytes `[position, position + size)` of a segment file: whole batches, ready to be sent."""

    __slots__ = ("file", "has_more", "position", "size")

    def __init__(self, file: LogFile, position: int, size: int, *, has_more: bool = False) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.has_more = has_more  # to be read behind it: a limit, or the segment's end, came first

    def read(self) -> bytes:
        """The bytes themselves. From disk if they are not cached: see `is_cached`."""
        return self._begin(self.size)

    def header(self) -> bytes:
        """The header of the first batch."""
        return self._begin(HEADER_BYTES)

    def reference(self) -> FileReference:
        """Where the bytes are."""
        status = os.fstat(self.file.fd)
        path = os.fsencode(self.file.path)
        return FileReference(
            status.st_dev, status.st_ino, self.position, self.size, self.header(), path
        )

    def _begin(self, size: int) -> bytes:
        data = self.file.pread(size, self.position)
        if len(data) != size:
            raise CorruptLogError("segment", self.position, "the file is shorter than the log")
        return data

    def is_cached(self) -> bool:
        """Whether the system has both ends in memory, so that sending will not wait for a disk."""
        probe = [bytearray(1)]
        try:
            for position in (self.position, self.position + self.size - 1):
                os.preadv(self.file.fd, probe, position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (AttributeError, OSError):  # a system or file system that cannot tell
            return True
        return True
