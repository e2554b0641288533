"""The connections of one cluster that control messages share: one for each broker, made when needed.

Sockets must not be shared with a forked process, whose answers would be mixed with ours. So nothing is
opened before it is used, and a process that finds itself forked lets go of what it inherited.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from penstock.client.connection import Address, Connection, parse_bootstrap
from penstock.client.errors import BrokerUnreachable, ClientError
from penstock.client.retrying import Retry
from penstock.client.wire import Api, Build
from penstock.errors import ConfigError

Result = TypeVar("Result")


class _Shared:
    """A connection that threads take turns to use."""

    __slots__ = ("connection", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None


class Network:
    """Every method may be called from any thread."""

    def __init__(
        self, bootstrap: str, *, client_id: str, request_timeout_ms: int, retry_timeout_ms: int
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        if not self._bootstrap:
            raise ConfigError("the list of bootstrap servers is empty; it is host:port,host:port")
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.retry_timeout_ms = retry_timeout_ms
        self._brokers: dict[int, Address] = {}  # as the last answer to Metadata had them
        self._was_reached = False
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._shared: dict[Address, _Shared] = {}

    def _leave_parent(self) -> None:
        inherited = self._shared
        self._begin()
        for shared in inherited.values():
            if shared.connection is not None:
                shared.connection.abandon()

    def close(self) -> None:
        """Close what is open. What is used afterwards is opened again."""
        if os.getpid() != self._process_id:
            self._leave_parent()
            return
        with self._lock:
            closing = list(self._shared.values())
            self._shared.clear()
        for shared in closing:
            if shared.connection is not None:
                shared.connection.close()

    # Brokers

    def learn(self, brokers: Iterable[Address]) -> None:
        """The cluster's brokers, as one of them has just told."""
        known = {broker.node_id: broker for broker in brokers}
        if known:
            self._brokers = known

    def broker(self, node_id: int) -> Address | None:
        return self._brokers.get(node_id)

    def addresses(self) -> list[Address]:
        """Where to ask what any broker can answer: those we know, then those we were told at first."""
        known = list(self._brokers.values())
        places = {broker[:2] for broker in known}
        return known + [item for item in self._bootstrap if item[:2] not in places]

    def connect(self, address: Address) -> Connection:
        """A new connection, which is the caller's own."""
        made = Connection(address, client_id=self.client_id, timeout_ms=self.request_timeout_ms)
        self._was_reached = True
        return made

    # Calls

    def patiently(self, doing: str, ask: Callable[[], Result]) -> Result:
        """What `ask` returns, tried again while it fails with what passes."""
        retry = Retry(doing, self.retry_timeout_ms)
        while True:
            try:
                return ask()
            except ClientError as error:
                if self._is_hopeless(error):
                    raise
                retry.pause(error)

    def _is_hopeless(self, error: ClientError) -> bool:
        """Whether the bootstrap servers have names that do not exist, which waiting does not change.

        Once a broker was reached, names are right: one that is gone comes back with its broker, as that
        of a pod in Kubernetes does.
        """
        return not self._was_reached and _has_no_such_name(error)

    def call(self, address: Address, api: Api, build: Build) -> Any:
        """Ask one broker, once."""
        if os.getpid() != self._process_id:
            self._leave_parent()
        with self._lock:
            shared = self._shared.setdefault(address, _Shared())
        with shared.lock:
            is_new = shared.connection is None
            if shared.connection is None:
                shared.connection = self.connect(address)
            try:
                return shared.connection.call(api, build)
            except BrokerUnreachable:
                self._drop(shared)
                if is_new:
                    raise
                # It was idle, and the broker may have closed it since: that is no failure yet.
                shared.connection = self.connect(address)
                return shared.connection.call(api, build)
            except BaseException:
                self._drop(shared)  # an answer may still be under way
                raise

    @staticmethod
    def _drop(shared: _Shared) -> None:
        if shared.connection is not None:
            shared.connection.close()
            shared.connection = None

    def call_any(self, api: Api, build: Build) -> Any:
        """Ask the brokers one after the other, once each, until one answers."""
        failures: list[ClientError] = []
        for address in self.addresses():
            try:
                return self.call(address, api, build)
            except BrokerUnreachable as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        texts = "; ".join(dict.fromkeys(error.message for error in failures))
        raise BrokerUnreachable(f"no broker answers: {texts}") from _telling(failures)


def _telling(failures: Sequence[ClientError]) -> BaseException | None:
    """The cause to attach: a name that does not exist only if none of the names does."""
    if all(_has_no_such_name(error) for error in failures):
        return failures[0].__cause__
    return failures[-1]


def _has_no_such_name(error: ClientError) -> bool:
    """Whether the broker's name is unknown to the name service."""
    cause = error.__cause__
    return isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
