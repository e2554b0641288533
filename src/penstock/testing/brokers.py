"""Brokers that live as long as a `with` block.

This module is imported by every pytest run where Penstock is installed, through its plugin: whatever is
heavy is imported where it is used.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from penstock.processes.broker import BrokerProcess

_STOP_TIMEOUT_S = 20.0

# Tests write records with the timestamps of bygone years. Retention would delete them when it comes by,
# once a minute: between the two reads of a test, now and then.
DEFAULTS: Mapping[str, Any] = {"retention_check_interval_ms": 3_600_000}


class TestBroker(ABC):
    """A running broker. `bootstrap` and `data_dir` stay the same over restarts."""

    __test__ = False  # it is no test class, whatever its name

    bootstrap: str  # host:port for clients
    data_dir: str

    @abstractmethod
    def start(self) -> None:
        """Start again after `stop` or `kill`, on the same port and data. Returns when it serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop cleanly: requests in flight are answered and the log is synced. May be repeated."""

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.stop()
        self.start()

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, of a name that nobody else has unless one is given, and return its name."""
        from penstock.cli.adminapi import AdminClient, NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        new = NewTopic(name, num_partitions=partitions, config=dict(settings or {}))
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([new], request_timeout=10)[name].result(timeout=15)
        return name


class ThreadBroker(TestBroker):
    """A broker in a thread of this process, on its own event loop. Logging is left to the process."""

    def __init__(self, data_dir: str, settings: Mapping[str, Any]) -> None:
        self.data_dir = data_dir
        self.bootstrap = ""
        self._settings = dict(settings)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        from penstock.processes.ports import free_port, is_free

        if self.bootstrap or "addr" in self._settings:
            self._start_at(self.bootstrap or self._settings["addr"])
            return
        for attempt in range(5):
            port = free_port()
            try:
                self._start_at(f"127.0.0.1:{port}")
                return
            except Exception:
                if attempt == 4 or is_free(port):  # else someone took it since we looked
                    raise

    def _start_at(self, address: str) -> None:
        from concurrent.futures import Future

        from penstock.settings import BrokerConfig

        assert self._thread is None, "the broker is running"
        config = BrokerConfig(**{**self._settings, "data_dir": self.data_dir, "addr": address})
        ready: Future[tuple[str, int]] = Future()
        thread = threading.Thread(
            target=self._run, args=(config, ready), name=f"penstock {address}", daemon=True
        )
        thread.start()
        try:
            host, port = ready.result()
        except BaseException:
            thread.join(_STOP_TIMEOUT_S)
            raise
        self._thread = thread
        self.bootstrap = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _run(self, config: Any, ready: Future[tuple[str, int]]) -> None:
        import asyncio

        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(config, ready))
        except BaseException as error:
            if ready.done():
                self._failure = error
            else:
                ready.set_exception(error)

    async def _serve(self, config: Any, ready: Future[tuple[str, int]]) -> None:
        import asyncio

        from penstock.kafka.server import KafkaServer

        server = await KafkaServer.start(config)
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        ready.set_result(server.address)
        await self._stop_asked.wait()
        await server.stop()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        assert self._loop is not None
        assert self._stop_asked is not None
        with contextlib.suppress(RuntimeError):  # its loop has ended by a failure, reported below
            self._loop.call_soon_threadsafe(self._stop_asked.set)
        thread.join(_STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {_STOP_TIMEOUT_S:.0f} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class ProcessBroker(TestBroker):
    """A broker in a process of its own, which dies with this one."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self.data_dir = process.data_dir

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.running

    @property
    def log_text(self) -> str:
        """All that the broker logged in all of its lives."""
        return self._process.log_text()

    def start(self) -> None:
        self._process.start()
        self.bootstrap = self._process.bootstrap

    def stop(self) -> None:
        code = self._process.stop(_STOP_TIMEOUT_S)
        assert code == 0, f"the broker ended with exit code {code}; its log:\n{self.log_text}"

    def kill(self) -> None:
        """`kill -9`: whatever was not on its way to disk by then is gone."""
        self._process.kill()


@contextlib.contextmanager
def broker(**settings: Any) -> Iterator[ThreadBroker]:
    """A broker in this process, with `BrokerConfig` fields as `settings`.

    It listens on a free port of 127.0.0.1 and keeps its data in a temporary directory that is removed
    afterwards; a `data_dir` of your own stays. Records of any age are kept: retention looks for old ones
    once an hour, unless `retention_check_interval_ms` says otherwise. It does not stay awake between
    requests: whoever sends them needs the same interpreter.
    """
    settings = {**DEFAULTS, "idle_poll_us": 0, **settings}
    with _scratch_directory() as scratch:
        running = ThreadBroker(str(settings.pop("data_dir", f"{scratch}/data")), settings)
        running.start()
        try:
            yield running
        finally:
            running.stop()


@contextlib.contextmanager
def broker_process(**settings: Any) -> Iterator[ProcessBroker]:
    """The same as a process of its own, for tests that kill it: `b.kill()`, then `b.start()`."""
    from penstock.processes.broker import BrokerProcess

    settings = {**DEFAULTS, **settings}
    with _scratch_directory() as scratch:
        data_dir = str(settings.pop("data_dir", f"{scratch}/data"))
        process = BrokerProcess(data_dir, f"{scratch}/broker.log", settings)
        running = ProcessBroker(process)
        try:
            running.start()
            yield running
        finally:
            process.stop(_STOP_TIMEOUT_S)


@contextlib.contextmanager
def _scratch_directory() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="penstock-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
