"""What a Python worker of Spark does once, before its first task of ours."""

from __future__ import annotations

import functools
import gc
import os


@functools.cache
def settle() -> None:
    """Keep the garbage collector away from what will never be garbage.

    Spark collects garbage after every task. That walks over all objects of all modules that are loaded,
    which takes longer than reading some megabytes: with it a task of 64 MiB takes twice the time. Call it
    when the modules are there.
    """
    if "SPARK_REUSE_WORKER" in os.environ:  # else this process is somebody else's
        gc.collect()
        gc.freeze()
