"""Everything that runs during the demo, started in order and ended whatever happens."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import sys
import tempfile
import time
from types import TracebackType
from typing import Any, Final, NoReturn

from penstock.cli.contact import REQUEST_TIMEOUT_S
from penstock.cli.contact import Cluster as Clients
from penstock.client.cluster import Cluster
from penstock.demo.feed import Feed
from penstock.demo.jobprocess import JobFailed, JobProcess
from penstock.demo.names import PARTITIONS, PER_MINUTE
from penstock.demo.orders import Shop
from penstock.demo.watch import Watch
from penstock.errors import PenstockError
from penstock.processes.broker import BrokerProcess
from penstock.processes.ports import is_free

_USUAL_PORT: Final = 9092
_REMOVE_S_MAX: Final = 5.0


class Stage:
    """A broker, the feed and the Spark job, in a `with` block. Nothing of them is left behind it.

    What is to be kept must be moved away before: `table` and, when the broker is stopped, `broker_data`.
    """

    def __init__(self, *, rate: int) -> None:
        self._rate = rate
        self._scratch = ""
        self._closed = False

    def __enter__(self) -> Stage:
        signal.signal(signal.SIGHUP, _hang_up)
        self._scratch = tempfile.mkdtemp(prefix="penstock-demo-")
        self.table = f"{self._scratch}/table"
        self.broker_data = f"{self._scratch}/broker"
        self._log_path = f"{self._scratch}/spark.log"
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, JobFailed):
            self._keep_log()
        self.close()

    def _open(self) -> None:
        self.broker = self._start_broker()
        bootstrap = self.broker.bootstrap
        self.job = JobProcess(
            bootstrap=bootstrap,
            table=self.table,
            scratch=f"{self._scratch}/spark",
            log_path=self._log_path,
        )
        clients = Clients(bootstrap)
        self._create_topics(clients)
        self.job.start()  # takes longest
        opened = datetime.datetime.now(datetime.UTC).replace(hour=9, minute=0, second=0)
        self.feed = Feed(Shop(opened), clients.producer(**Feed.settings()), rate=self._rate)
        self.cluster = Cluster(bootstrap, client_id="penstock-demo")
        self._results = clients.consumer(**{"group.id": "penstock-demo-view"})
        self._results.assign([_place(PER_MINUTE)])
        self.watch = Watch(self.cluster, self.feed, self.job, self._results)

    def _start_broker(self) -> BrokerProcess:
        """On the usual port, if nobody has it or takes it meanwhile; else on a free one."""
        for settings in ({"addr": f"127.0.0.1:{_USUAL_PORT}"}, {}):
            if settings and not is_free(_USUAL_PORT):
                continue
            self.broker = BrokerProcess(
                self.broker_data,
                f"{self._scratch}/broker.log",
                {"log_level": "warning", **settings},
            )
            try:
                self.broker.start()
                break
            except PenstockError:
                if not settings or is_free(_USUAL_PORT):
                    raise
        return self.broker

    def _create_topics(self, clients: Clients) -> None:
        from penstock.cli.adminapi import NewTopic

        new = [NewTopic(name, num_partitions=count) for name, count in PARTITIONS.items()]
        admin = clients.admin()  # must live until it is answered
        clients.settle(admin.create_topics(new, request_timeout=REQUEST_TIMEOUT_S))

    def stop_broker(self) -> None:
        """Let the broker close its files; they may be moved then."""
        self._results.close()
        self.cluster.close()
        self.broker.stop()

    def close(self) -> None:
        """End everything and remove what it left. Another Ctrl-C does not stop this."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if hasattr(self, "job"):
                self.job.kill()
            if hasattr(self, "broker"):
                self.broker.kill()
            _remove(self._scratch)
        finally:
            signal.signal(signal.SIGINT, before)

    def _keep_log(self) -> None:
        """Spark's log outlives the stage when the job failed; the error names it."""
        shutil.copyfile(self._log_path, failure_log())


def _hang_up(number: int, _frame: object) -> NoReturn:
    """Clean up when the terminal is closed, too."""
    sys.exit(128 + number)


def failure_log() -> str:
    """Where Spark's log is after a job failed."""
    return f"{tempfile.gettempdir()}/penstock-demo-spark.log"


def _place(topic: str) -> Any:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    return TopicPartition(topic, 0, OFFSET_BEGINNING)


def _remove(directory: str) -> None:
    """Remove it. Processes that were killed may take a moment to stop writing."""
    deadline_s = time.monotonic() + _REMOVE_S_MAX
    while os.path.exists(directory):
        shutil.rmtree(directory, ignore_errors=True)
        if time.monotonic() > deadline_s:
            return
        time.sleep(0.02)
