"""The demo: a shop's orders go through Penstock and Spark into a table, watched live in a terminal.

`pipeline.py` is the Spark job, written to be read. Everything else is there to feed it, to watch it and to
check that nothing was lost.
"""

from __future__ import annotations

import os


def pipeline_path() -> str:
    """The file of the Spark job, for a person to open."""
    path = os.path.join(os.path.dirname(__file__), "pipeline.py")
    here = os.path.relpath(path)
    return path if here.startswith("..") else here
