"""What stays of the demo: its table, the broker's data, and a script that queries the table.

A directory of results has a mark. The next demo replaces what has it, and nothing else.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError

TABLE: Final = "orders_per_minute"
BROKER: Final = "broker"
QUERY: Final = "query.py"
_MARK: Final = "README.txt"
_MARK_TEXT: Final = "Made by `penstock demo`. The next demo replaces this directory."

_README: Final = """\
{mark}

orders_per_minute/   the table that Spark wrote: Parquet, a row for each minute and country
broker/              the topics and consumer groups: penstock serve --data-dir {directory}/broker
query.py             asks the table with Spark: {python} {directory}/query.py
"""

_QUERY: Final = '''\
"""Query the table that the demo made. Any tool that reads Parquet can."""

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.java import ensure_java

ensure_java()
spark = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR").getOrCreate()
spark.read.parquet(str(Path(__file__).parent / "orders_per_minute")).createOrReplaceTempView("sales")
spark.sql("""
    SELECT country, count(*) AS minutes, sum(orders) AS orders, sum(revenue) AS revenue,
           max_by(minute, revenue) AS best_minute
    FROM sales GROUP BY country ORDER BY revenue DESC
""").show()
'''


class NotOursError(PenstockError):
    """The directory for results holds something else."""


class Kept:
    """The directory of results. It is made at the end, all at once."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @property
    def table(self) -> str:
        return f"{self.directory}/{TABLE}"

    @property
    def broker(self) -> str:
        return f"{self.directory}/{BROKER}"

    @property
    def query(self) -> str:
        return f"{self.directory}/{QUERY}"

    def check(self) -> None:
        """Raise `NotOursError` unless it can be made, or be replaced, without harm."""
        path = Path(self.directory)
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                return
            mark = path / _MARK
            if mark.is_file() and mark.read_bytes().startswith(_MARK_TEXT.encode()):
                return
        elif not os.path.lexists(path):
            above = next(one for one in path.absolute().parents if os.path.lexists(one))
            if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
                return
            raise NotOursError(f"{self.directory} can not be made in {above}.")
        raise NotOursError(f"{self.directory} is there, and it was not made by `penstock demo`.")

    def fill(self, *, table: str, broker: str, python: str) -> None:
        """Replace it with these; they are moved."""
        self.check()
        shutil.rmtree(self.directory, ignore_errors=True)
        path = Path(self.directory)
        path.mkdir(parents=True)
        text = _README.format(mark=_MARK_TEXT, directory=self.directory, python=python)
        (path / _MARK).write_text(text, "utf-8")
        (path / QUERY).write_text(_QUERY, "utf-8")
        shutil.move(table, self.table)
        shutil.move(broker, self.broker)
