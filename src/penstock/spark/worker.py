"""What a Python process of Spark's needs, so that our tasks run well in it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import os
import socket
import stat
import sys
from typing import Any, Final

from pyspark.accumulators import _accumulatorRegistry

_TASKS_TO_SETTLE: Final = 3
_tasks_seen = itertools.count()
# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGEST_KEPT_BYTES: Final = 32 << 20  # as much as it takes
_KEPT_BYTES_MAX: Final = 256 << 20


def settle() -> None:
    """Keep the garbage collector away from what will never be garbage. Call it in each task.

    Spark collects garbage after every task. That walks over all objects of all modules that are loaded,
    which takes longer than reading some megabytes. Much is loaded only when it is first used, so the first
    tasks do this when their kernels have run.
    """
    if "SPARK_REUSE_WORKER" in os.environ and next(_tasks_seen) < _TASKS_TO_SETTLE:
        gc.collect()
        gc.freeze()  # what is frozen is still freed when nothing refers to it


@functools.cache
def keep_memory() -> None:
    """Let the C library keep what is freed, in a worker of Spark's. Call it before the first big buffer.

    It gives buffers of megabytes back to the system at once. To get them anew for every fetch costs as
    much as to fill them, because the system clears each page; more yet where a host supplies the memory.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        with contextlib.suppress(AttributeError, OSError):  # not the GNU C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_ARENA_MAX, 1)  # what one thread frees, another may use
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


class Travels:
    """What Spark sends to a worker with every task: its arrival is the first that we hear of the task."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_at_once()


def acknowledge_at_once() -> None:
    """Have the system acknowledge what Spark has sent so far, in a worker of Spark's.

    Spark sends a task in two small pieces over TCP, and holds the second back until the first is
    acknowledged (Nagle's algorithm); we, who have nothing to answer yet, delay that by 40 ms. Linux only.
    """
    if "SPARK_REUSE_WORKER" not in os.environ or not hasattr(socket, "TCP_QUICKACK"):
        return
    with contextlib.suppress(OSError):  # no /proc, or no more descriptors
        for number in map(int, os.listdir("/proc/self/fd")):
            # One of a few, but nobody says which it is. The others are none the worse for it.
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    with socket.socket(fileno=os.dup(number)) as one:
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def drop_idle_accumulators() -> None:
    """Let Spark's planning processes send no results of a profiler that does not run.

    They do so in Spark 4.3, and the command `spark-pipelines run` fails at its very end when it gets them.
    Called by all that Spark calls in those processes; harmless wherever else it is called.
    """
    if "SPARK_REUSE_WORKER" not in os.environ or sys.getprofile() or sys.gettrace():
        return
    for number in [number for number, one in _accumulatorRegistry.items() if not one._value]:
        del _accumulatorRegistry[number]
