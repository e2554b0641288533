"""The memory of the load tools, a large part of what a client costs. The brokers run without this."""

from ctypes.util import find_library
from typing import Final

# A tool keeps what it frees, else the kernel's clearing of fresh pages for each response would be the
# largest part of what is measured.
KEEP_MEMORY: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}
_MIMALLOC: Final = find_library("mimalloc")


def name_without_locks() -> str:
    return _MIMALLOC or "none on this machine"


def without_locks() -> dict[str, str] | None:
    """The environment of a tool whose threads free each other's memory without a lock; None if the
    machine has no mimalloc."""
    return {"LD_PRELOAD": _MIMALLOC} if _MIMALLOC else None
