"""Which machine this is."""

from __future__ import annotations

import functools
import uuid


@functools.cache
def boot_id() -> str:
    """The same for as long as the machine is up; where that cannot be known, new for each process."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return str(uuid.uuid4())
