"""What a Python worker of Spark does once, before its first task of ours."""

from __future__ import annotations

import functools
import gc
import os
import sys

from pyspark.accumulators import _accumulatorRegistry


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


def drop_idle_accumulators() -> None:
    """Let Spark's planning processes send no results of a profiler that does not run.

    They do so in Spark 4.3, and the command `spark-pipelines run` fails at its very end when it gets them.
    Called by all that Spark calls in those processes; harmless wherever else it is called.
    """
    if "SPARK_REUSE_WORKER" not in os.environ or sys.getprofile() or sys.gettrace():
        return
    for number in [number for number, one in _accumulatorRegistry.items() if not one._value]:
        del _accumulatorRegistry[number]
