"""The two brokers under test, each a child process on a free loopback port."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from bench import BenchError, jars, processes
from bench.wire import Connection, KafkaError
from penstock.processes.ports import is_free

READY_TIMEOUT_S = 120.0
_PORTS = range(11_000, 20_000)
_given_out: set[int] = set()
_ERROR = re.compile(r"\b(ERROR|FATAL)\b")
_JAVA_LOGGING = f"-Dlog4j2.configurationFile={jars.BENCH / 'log4j2.properties'}"
# What bin/kafka-run-class.sh gives every JVM; bin/kafka-server-start.sh adds a heap of 1 GB.
STOCK_JVM_FLAGS = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)

_ONE_REPLICA = """\
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class BrokerFailedError(BenchError):
    """A broker did not start, or ended by itself; carries the end of its log."""


def free_port() -> int:
    """A port for one broker in all of its lives, given out once.

    Neither outgoing connections nor the tests, which may run beside, take theirs from this range: a
    broker that was stopped for a while finds its port free.
    """
    while True:
        port = random.choice(_PORTS)
        if port not in _given_out and is_free(port):
            _given_out.add(port)
            return port


class Broker:
    """One broker with its own directory, which `remove` deletes.

    `start` returns as soon as the process is spawned; `wait_ready` when a topic can be used.
    """

    name: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.port = free_port()
        self._log = directory / "broker.out"
        self._child: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)

    @property
    def pid(self) -> int:
        assert self._child is not None, "the broker is not running"
        return self._child.pid

    @property
    def is_started(self) -> bool:
        """Started, and neither stopped nor killed by us."""
        return self._child is not None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._child = processes.spawn(self.command(), output)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with self.connect() as connection:
                    connection.create_topic("ready")
                    return
            except (OSError, KafkaError) as error:
                self.check_alive()
                if time.monotonic() > deadline:
                    raise BrokerFailedError(f"{self.name}: {error}\n{self._log_tail()}") from error
                time.sleep(0.002)

    def check_alive(self) -> None:
        if not self.is_running:
            raise BrokerFailedError(f"{self.name} is not running\n{self._log_tail()}")

    def connect(self, *, timeout_s: float = 60.0) -> Connection:
        return Connection(self.port, timeout_s=timeout_s)

    def stop(self) -> None:
        if self._child is not None:
            processes.stop(self._child)
            self._child = None

    def signal_kill(self) -> None:
        """SIGKILL, without a wait for the end; `kill` later waits."""
        os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        assert self._child is not None, "the broker is not running"
        self._child.kill()
        self._child.wait()
        self._child = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _log_tail(self) -> str:
        """The end of its log, and before it the errors: a broker that gives up may say more after."""
        if not self._log.exists():
            return ""
        text = self._log.read_text(errors="replace")
        errors = [line for line in text.splitlines() if _ERROR.search(line)]
        return "\n".join([*errors[:5], "…", text[-3000:]])


class Penstock(Broker):
    """`penstock serve` with its defaults."""

    name = "penstock"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "penstock", "serve"),
            *("--data-dir", str(self.data_dir)),
            *("--addr", f"127.0.0.1:{self.port}"),
        ]


class Kafka(Broker):
    """Apache Kafka: KRaft, one combined node, default settings and heap.

    The configuration holds only what one node must be told (roles, addresses, directory,
    one replica for the internal topics), and that the files of a deleted topic go after half a
    second and not after a minute: else the disk would fill, and the page cache that one round
    leaves behind would differ between the brokers. Formatting the storage is a separate program and is
    never part of a measured start-up.
    """

    name = "kafka"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        controller = free_port()
        self.configure(1, controller, controllers=f"127.0.0.1:{controller}", more=_ONE_REPLICA)
        self.format("--standalone")

    def configure(self, node_id: int, controller: int, *, controllers: str, more: str = "") -> None:
        """Write the configuration of a node whose own controller is at this port."""
        self._config.write_text(
            f"""\
process.roles=broker,controller
node.id={node_id}
listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controllers}
log.dirs={self.data_dir}
log.segment.delete.delay.ms=500
{more}"""
        )

    @property
    def _config(self) -> Path:
        return self.directory / "server.properties"

    def format(self, *quorum: str) -> None:
        """Prepare the data directory; `quorum` says who the first controllers are."""
        done = subprocess.run(
            [
                *("java", "-Xmx256M", "-cp", jars.classpath(), _JAVA_LOGGING),
                *("kafka.tools.StorageTool", "format", *quorum),
                *("--cluster-id", "cGVuc3RvY2tiZW5jaG1hcg", "--config", str(self._config)),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise BrokerFailedError(f"kafka: formatting failed\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        gc_log = f"-Xlog:gc*:file={self.directory / 'gc.log'}:time,tags:filecount=10,filesize=100M"
        return [
            *(
                "java",
                "-Xmx1G",
                "-Xms1G",
                *STOCK_JVM_FLAGS,
                gc_log,
                _JAVA_LOGGING,
                "-cp",
                jars.classpath(),
            ),
            *("kafka.Kafka", str(self._config)),
        ]


BROKERS: dict[str, type[Broker]] = {broker.name: broker for broker in (Penstock, Kafka)}
