"""The cluster a command talks to: connections that fail soon, and errors that say what to do.

Everything goes through librdkafka, so every command works against any Kafka broker. librdkafka's own
log is silenced; what it reports as errors is kept, to explain a failure.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.cli.failure import CommandError, UsageError
from penstock.cli.values import pairs

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

    from penstock.cli.adminapi import AdminClient, NewTopic, TopicMetadata

CONNECT_TIMEOUT_S: Final = 3.0
CONTACT_TIMEOUT_S: Final = 4.0
REQUEST_TIMEOUT_S: Final = 15.0

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass
class Cluster:
    """Brokers by their bootstrap addresses, with the client properties a person passed."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    _errors: deque[KafkaError] = field(default_factory=lambda: deque(maxlen=1))

    @classmethod
    def reach(cls, bootstrap: str, properties: Iterable[str] | None = None) -> Cluster:
        """The cluster at `bootstrap`, or at once a `CommandError` when no address accepts."""
        cluster = cls(bootstrap, pairs(properties, "client property"))
        cluster._check_reachable()
        return cluster

    @property
    def last_error(self) -> str:
        """What librdkafka reported last; empty if nothing since the last `forget_errors`."""
        return self._errors[-1].str() if self._errors else ""

    def forget_errors(self) -> None:
        self._errors.clear()

    def admin(self) -> AdminClient:
        """An admin client that has already had an answer from the cluster, soon or not at all."""
        from confluent_kafka import KafkaException

        from penstock.cli.adminapi import AdminClient

        admin = AdminClient(self._settings())
        try:
            admin.list_topics(timeout=CONTACT_TIMEOUT_S)
        except KafkaException as error:
            raise self.explain(error.args[0]) from error
        return admin

    def producer(self, **settings: Any) -> Producer:
        from confluent_kafka import Producer

        return Producer(self._settings(settings))

    def consumer(self, **settings: Any) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer(self._settings(settings))

    def topics(self, admin: AdminClient) -> dict[str, TopicMetadata]:
        """Every topic. Asking for all of them never creates one, unlike asking for one by name."""
        from confluent_kafka import KafkaException

        try:
            return admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise self.explain(error.args[0]) from error

    def topic(self, name: str, admin: AdminClient) -> TopicMetadata:
        """One topic that is there, or a `CommandError`."""
        found = self.topics(admin).get(name)
        if found is None:
            raise unknown_topic(name)
        return found

    def create_topics(
        self, admin: AdminClient, new: list[NewTopic], *, may_exist: bool = False
    ) -> set[str]:
        """Create them, and tell which were not there; with `may_exist`, others are left as they are."""
        from confluent_kafka import KafkaException

        futures = admin.create_topics(new, operation_timeout=5, request_timeout=REQUEST_TIMEOUT_S)
        created = set()
        for name, future in futures.items():
            try:
                self.settle({name: future})
                created.add(name)
            except CommandError as failure:
                error = failure.__cause__
                there = isinstance(error, KafkaException) and (
                    error.args[0].name() == "TOPIC_ALREADY_EXISTS"
                )
                if not (may_exist and there):
                    raise
        return created

    def explain(self, error: KafkaError, subject: str = "") -> CommandError:
        """The failure that `error` is, in words for a person; `subject` names what it was about."""
        from penstock.cli.explain import explain

        return explain(error, subject, self.silent)

    def settle(
        self, futures: Mapping[_Key, Future[_Value]], subject: str = ""
    ) -> dict[_Key, _Value]:
        """The results of admin futures; the first that failed is raised, explained."""
        from confluent_kafka import KafkaException

        results = {}
        for key, future in futures.items():
            try:
                results[key] = future.result(timeout=REQUEST_TIMEOUT_S + 2)
            except KafkaException as error:
                raise self.explain(error.args[0], subject or str(key)) from error
            except TimeoutError:
                raise self.silent() from None
        return results

    def silent(self) -> CommandError:
        """The failure of a broker that says nothing useful, or is not there any more."""
        from penstock.cli.explain import silent

        try:
            self._check_reachable()
        except CommandError as gone:
            return gone
        return silent(self.bootstrap, self.last_error)

    def _settings(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "penstock-cli",
            "socket.connection.setup.timeout.ms": int(CONNECT_TIMEOUT_S * 1000),
            "socket.timeout.ms": int(REQUEST_TIMEOUT_S * 1000),
            "log.connection.close": False,
            "logger": _silent_logger(),
            "error_cb": self._errors.append,  # no Python code: see `signals`
            **(more or {}),
            **self.properties,
        }

    def _check_reachable(self) -> None:
        problems = []
        addresses = [part.strip() for part in self.bootstrap.split(",")]
        for address in list(filter(None, addresses)) or [""]:
            host, port = _host_and_port(address)
            try:
                with contextlib.closing(
                    socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
                ):
                    return
            except (OSError, UnicodeError) as error:  # the latter for what no name can be
                problems.append(f"{address}: {_reason(error)}")
        raise CommandError(
            f"No broker could be reached ({'; '.join(problems)}).",
            "Start one with `penstock serve`, or name its address with --bootstrap host:port "
            "or PENSTOCK_BOOTSTRAP.",
        )


def unknown_topic(name: str) -> CommandError:
    return CommandError(
        f"There is no topic {name!r}.",
        f"`penstock topic list` shows those there are; `penstock topic create {name}` makes it.",
    )


def _host_and_port(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator:
        host, port = address, "9092"
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(
            f"{address!r} is not the address of a broker.",
            "Write it as host:port, for example 127.0.0.1:9092.",
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "unknown host name"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
    return (error.strerror or str(error)).lower()


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("penstock.cli.librdkafka")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
