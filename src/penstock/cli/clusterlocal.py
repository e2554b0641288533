"""A local cluster while it runs: etcd and one process for each broker, looked after until a signal."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Final, Self

from penstock.cli.clusterdir import ETCD, ClusterDirectory, Plan
from penstock.cli.failure import CommandError, UsageError
from penstock.cli.signals import SignalTimes
from penstock.client.errors import ClientError
from penstock.errors import PenstockError
from penstock.processes.broker import BrokerProcess
from penstock.processes.etcd import TICKS_ALONE, EtcdMember, member_flags
from penstock.processes.guarded import describe_end
from penstock.processes.inquiry import ask
from penstock.processes.ports import free_ports, is_free
from penstock.settings import BrokerConfig

START_TIMEOUT_S: Final = 60.0  # of one broker, on a machine that is busy with the others
JOIN_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
_RESTART_AFTER_S: Final = 1.0  # so that a broker that can not start does not keep the machine busy
_LOOK_S: Final = 1.0
_POLL_S: Final = 0.05
# Settings that a local cluster chooses itself.
_OURS: Final = {"data_dir", "addr", "advertise_addr", "broker_id", "rack", "topic_defaults"}

Note = Callable[[str], None]


class Stop(BaseException):
    """A signal asks to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def broker_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Settings of every broker, as values. `UsageError` or `ConfigError` for what is none."""
    known = {item.name for item in fields(BrokerConfig)}
    free = {name for name in known - _OURS if not name.startswith("etcd")}
    settings = {name.replace("-", "_"): text for name, text in given.items()}
    for name in settings:
        if name not in free:
            why = (
                "is chosen by the cluster itself" if name in known else "is no setting of a broker"
            )
            raise UsageError(f"{name} {why}.", f"Settings are {', '.join(sorted(free))}.")
    variables = {f"PENSTOCK_{name.upper()}": text for name, text in settings.items()}
    config = BrokerConfig.load(environment=variables)
    return {name: getattr(config, name) for name in settings}


class LocalCluster:
    """Everything that runs, in a `with` block. Nothing of it runs behind the block.

    `note` is told what a person should know. With `revive`, what dies is started again.
    """

    def __init__(
        self, directory: ClusterDirectory, plan: Plan, *, note: Note, revive: bool = False
    ) -> None:
        self._directory = directory
        self._note = note
        self._revive_at_s: dict[str, float] = {}  # parts that died, and when to start them again
        self._revives = revive
        self.plan = _with_etcd_ports(plan)
        self._check_ports()
        settings = broker_settings(plan.settings)
        self.etcd = self._etcd_member()
        self.brokers = [
            BrokerProcess(
                str(directory.path / f"broker-{broker}"),
                str(directory.path / f"broker-{broker}.log"),
                {
                    **settings,
                    "broker_id": broker,
                    "addr": plan.address(broker),
                    "etcd": self.etcd.endpoint,
                    **({"rack": plan.racks[broker % len(plan.racks)]} if plan.racks else {}),
                },
            )
            for broker in range(plan.brokers)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            self.kill()

    # Starting and stopping

    def start(self, started: Callable[[int], None]) -> None:
        """Start everything and return when all brokers know each other.

        `started` is told how many parts serve.
        """
        self._directory.save(self.plan)
        self._start_etcd()
        started(1)
        for broker in range(self.plan.brokers):
            self._launch(broker)
        for number, process in enumerate(self.brokers):
            try:
                process.wait_ready(START_TIMEOUT_S)
            except PenstockError as error:
                raise CommandError(f"Broker {number}: {error}") from None
            started(number + 2)
        self._wait_joined()

    def stop(self) -> None:
        """Stop the brokers cleanly, all at once, and then etcd. May be repeated."""
        for broker in self.brokers:
            broker.terminate()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for number, broker in enumerate(self.brokers):
            broker.stop(max(0.1, deadline_s - time.monotonic()))
            self._forget_pid(f"broker-{number}")
        self.etcd.stop()
        self._forget_pid(ETCD)

    def kill(self) -> None:
        """End everything at once."""
        for broker in self.brokers:
            broker.kill()
        self.etcd.kill()

    def _start_etcd(self) -> None:
        self.etcd.start()
        self._write_pid(ETCD, self.etcd.pid)
        try:
            self.etcd.wait_ready()
        except PenstockError as error:
            raise CommandError(str(error)) from None

    def _launch(self, broker: int) -> None:
        self.brokers[broker].launch()
        self._write_pid(f"broker-{broker}", self.brokers[broker].pid)

    def _wait_joined(self) -> None:
        """Return when every broker knows of all brokers and of a controller."""
        deadline_s = time.monotonic() + JOIN_TIMEOUT_S
        everybody = range(self.plan.brokers)
        for broker in everybody:
            while trouble := _trouble_at(self.plan.address(broker), everybody):
                if time.monotonic() > deadline_s:
                    raise CommandError(
                        f"The brokers did not find each other within {JOIN_TIMEOUT_S:.0f} s:"
                        f" broker {broker} says {trouble}.",
                        f"Their logs are in {self._directory.shown(self._directory.path)}.",
                    )
                time.sleep(_POLL_S)

    # Looking after what runs

    def run(self) -> None:
        """Report what dies and do what is asked for, until `Stop` is raised."""
        with _wakeups() as sleep:
            while True:
                for part, end in self._ended():
                    self._mourn(part, end)
                for part in self._directory.requests():
                    self._directory.answer(part, self._restart(part))
                self._revive()
                sleep(_LOOK_S)

    def _ended(self) -> Iterator[tuple[str, str]]:
        """The parts that ended by themselves since we looked, and how."""
        for number, broker in enumerate(self.brokers):
            code = broker.exit_code
            if code is not None:
                broker.kill()  # lets go of it
                yield f"broker-{number}", describe_end(code)
        if self.etcd.ended:
            code = self.etcd.exit_code
            self.etcd.kill()
            yield ETCD, describe_end(code or 0)

    def _mourn(self, part: str, end: str) -> None:
        self._forget_pid(part)
        if self._revives:
            self._note(f"{part} {end}; it is started again.")
            self._revive_at_s[part] = time.monotonic() + _RESTART_AFTER_S
        else:
            command = f"penstock cluster restart {part} {self._directory.option}"
            self._note(f"{part} {end}. Start it again with `{command}`.")

    def _revive(self) -> None:
        for part, when_s in list(self._revive_at_s.items()):
            if time.monotonic() >= when_s:
                del self._revive_at_s[part]
                failure = self._restart(part)
                if failure:
                    self._note(f"{part} could not be started: {failure}")
                    self._revive_at_s[part] = time.monotonic() + 5 * _RESTART_AFTER_S

    def _restart(self, part: str) -> str:
        """Restart one part, cleanly if it runs; why that failed, or nothing."""
        self._revive_at_s.pop(part, None)
        try:
            if part == ETCD:
                self.etcd.stop()
                self._start_etcd()
            else:
                number = int(part.removeprefix("broker-"))
                self.brokers[number].stop(STOP_TIMEOUT_S)
                self._launch(number)
                self.brokers[number].wait_ready(START_TIMEOUT_S)
        except (ValueError, IndexError):
            return "there is no such part"
        except CommandError as error:
            self.etcd.kill()
            self._forget_pid(part)
            return error.text
        except PenstockError as error:
            self._forget_pid(part)
            return str(error)
        return ""

    # Files and ports

    def _write_pid(self, part: str, pid: int) -> None:
        self._directory.write(f"{part}.pid", f"{pid}\n")

    def _forget_pid(self, part: str) -> None:
        self._directory.pid_file(part).unlink(missing_ok=True)

    def _etcd_member(self) -> EtcdMember:
        plan = self.plan
        peers = {ETCD: f"http://127.0.0.1:{plan.etcd_peer_port}"}
        flags = {**member_flags(plan.etcd_port, peers, ETCD), **TICKS_ALONE}
        return EtcdMember(ETCD, self._directory.path, flags, f"127.0.0.1:{plan.etcd_port}")

    def _check_ports(self) -> None:
        for broker in range(self.plan.brokers):
            port = self.plan.base_port + broker
            if port > 65_535:
                raise UsageError(
                    f"Broker {broker} would need port {port}.", "Choose a lower --base-port."
                )
            if not is_free(port):
                raise CommandError(
                    f"Port {port}, for broker {broker}, is in use by another program.",
                    "Choose other ports with --base-port.",
                )


def _with_etcd_ports(plan: Plan) -> Plan:
    """The same with ports for etcd: those of before, unless somebody else has taken them."""
    brokers = range(plan.base_port, plan.base_port + plan.brokers)
    ports = (plan.etcd_port, plan.etcd_peer_port)
    while not all(port and port not in brokers and is_free(port) for port in ports):
        client, peer = free_ports(2)
        ports = (client, peer)
    return replace(plan, etcd_port=ports[0], etcd_peer_port=ports[1])


def _trouble_at(address: str, everybody: range) -> str:
    """What keeps a broker from knowing of all brokers; partitions do not matter."""
    try:
        known = ask(address)
    except ClientError as error:
        return str(error)
    missing = set(everybody) - set(known.brokers)
    if missing:
        return f"it does not know of broker {min(missing)}"
    return "" if known.controller in known.brokers else "there is no controller"


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise `Stop`; so does another one while the first is obeyed.

    SIGUSR1, which asks for a look at the requests, has to wait until `LocalCluster.run`.
    """
    times = SignalTimes()

    def on_signal(number: int, _frame: object) -> None:
        if times.is_another():
            raise Stop(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _wakeups() -> Iterator[Callable[[float], None]]:
    """A function that sleeps until a child has ended, a request has come, or the time is over."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    numbers = (signal.SIGCHLD, signal.SIGUSR1)
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    descriptor = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def sleep(seconds: float) -> None:
        select.select([ours], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while ours.recv(4096):
                pass

    try:
        yield sleep
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()
