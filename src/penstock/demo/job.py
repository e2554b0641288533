"""The process that runs the Spark job: `python -m penstock.demo.job BOOTSTRAP TABLE SCRATCH`.

It reads commands from stdin and writes events to stdout, a line of JSON each. `finish` lets it read what
is there, stop and exit. When stdin closes, whoever started it is gone and it ends at once. What Spark,
Java and the workers have to say goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final, TextIO

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from penstock.demo.pipeline import Places, start_per_minute, start_rejected
from penstock.spark import register

_LOOK_S: Final = 0.2
_EVENTS_S_MAX: Final = 10.0  # how long the last batch's figures may take to come
_END_S_MAX: Final = 10.0
# A short life on few cores: the quick compiler, the collector without threads, no file in /tmp.
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


class Events(StreamingQueryListener):
    """Writes what happens as lines of JSON. Spark calls it from a thread of its own."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self.names: dict[
            str, str
        ] = {}  # by a query's id: queries that write to a topic have no name
        self.batches: dict[str, int] = {}  # the last batch reported, by the query's id

    def write(self, event: str, **what: Any) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._out.write(json.dumps({"event": event, **what}) + "\n")
            self._out.flush()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        operators = progress["stateOperators"]
        self.write(
            "batch",
            query=progress["name"],
            batch=progress["batchId"],
            rows=progress["numInputRows"],
            milliseconds=progress["durationMs"].get("triggerExecution", 0),
            clean=sum(one["numRowsUpdated"] for one in operators if _drops_duplicates(one)),
            duplicates=sum(
                one["customMetrics"].get("numDroppedDuplicateRows", 0) for one in operators
            ),
            too_late=sum(one["numRowsDroppedByWatermark"] for one in operators),
            watermark=progress.get("eventTime", {}).get("watermark", ""),
        )
        self.batches[progress["id"]] = progress["batchId"]


def _drops_duplicates(operator: dict[str, Any]) -> bool:
    return "numDroppedDuplicateRows" in operator["customMetrics"]


def main() -> int:
    bootstrap, table, scratch = sys.argv[1:]
    events = Events(_own_stdout())
    finish = threading.Event()
    threading.Thread(target=_obey, args=(finish,), name="commands", daemon=True).start()
    places = Places(bootstrap=bootstrap, table=table, checkpoints=f"{scratch}/checkpoints")
    try:
        with _session(scratch) as spark:
            events.write("session", version=spark.version)
            _run(spark, places, events, finish)
    except PySparkException as error:
        events.write("failed", reason=_first_words(error))
        raise
    events.write("done")
    return 0


def _own_stdout() -> TextIO:
    """Our stdout, which Java and the workers do not get: theirs goes to stderr."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _obey(finish: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "finish":
            finish.set()
    os.kill(os.getpid(), signal.SIGKILL)  # Java follows: its stdin closes, too


@contextlib.contextmanager
def _session(scratch: str) -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} -Djava.io.tmpdir={scratch}",
        "spark.local.dir": f"{scratch}/local",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
    }
    builder: Any = SparkSession.builder
    spark = builder.master("local[2]").appName("penstock-demo").config(map=settings).getOrCreate()
    try:
        yield spark
    finally:
        _end(spark)


def _run(spark: SparkSession, places: Places, events: Events, finish: threading.Event) -> None:
    """Until told to finish, then until all that is there is in the table. Raises what a query died of."""
    spark.streams.addListener(events)
    register(spark)
    queries = [start_per_minute(spark, places)]
    events.write("started")
    while not finish.wait(_LOOK_S):
        # Two queries that begin at once hinder each other on few cores: everything is compiled then.
        if len(queries) == 1 and queries[0].id in events.batches:
            queries.append(start_rejected(spark, places))
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
    if len(queries) == 1:
        queries.append(start_rejected(spark, places))
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        _await_events(query, events)
        query.stop()


def _await_events(query: StreamingQuery, events: Events) -> None:
    """Figures come a little after their batch."""
    waiting = threading.Event()
    last = query.lastProgress
    for _ in range(int(_EVENTS_S_MAX / _LOOK_S)):
        if last is None or events.batches.get(query.id, -1) >= last["batchId"]:
            return
        waiting.wait(_LOOK_S)


def _end(spark: SparkSession) -> None:
    """End Spark and wait for Java: who waits for us knows that nothing is left."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if java is not None and java.stdin is not None:
        java.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            java.wait(_END_S_MAX)


def _first_words(error: PySparkException) -> str:
    """The line that says what is wrong: the one behind a traceback, if there is one."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    for begin, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            behind = [one for one in lines[begin + 1 :] if one and not one.startswith(" ")]
            return behind[0] if behind else line
    return lines[0]


if __name__ == "__main__":
    sys.exit(main())
