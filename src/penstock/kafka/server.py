"""A broker with its Kafka front door: listening, accepting, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import Final

from penstock.broker import Broker
from penstock.errors import ConfigError
from penstock.kafka.buffers import BufferPool
from penstock.kafka.connection import Connection
from penstock.kafka.idle_polling import IdlePolling
from penstock.kafka.router import KafkaDoor
from penstock.model import BrokerInfo
from penstock.settings import BrokerConfig, parse_address
from penstock.sockets import tune

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_ACCEPTS_AT_ONCE: Final = 64
_ACCEPT_RETRY_S: Final = 0.1
_STOP_GRACE_S: Final = 2.0


class KafkaServer:
    """One broker on one listening socket, on the running event loop."""

    def __init__(self, config: BrokerConfig, broker: Broker, listener: socket.socket) -> None:
        self.broker = broker
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._config = config
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._pool = BufferPool()
        self._idle_polling = IdlePolling(config.idle_poll_us, self._loop.call_soon)
        self._door = KafkaDoor(broker)
        self._connections: set[Connection] = set()
        self._is_refusing = False  # accepting fails: said once, not ten times a second
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._sweeping = self._loop.create_task(self._sweep())
        self._loop.add_reader(listener.fileno(), self._accept)

    @classmethod
    async def start(cls, config: BrokerConfig) -> KafkaServer:
        """Recover the data directory and listen. `PenstockError` says what to do if it cannot be."""
        listener = _listen(config.addr)
        try:
            host, port = listener.getsockname()[:2]
            if config.advertise_addr:
                host, port = parse_address(config.advertise_addr)
            elif host in {"0.0.0.0", "::"}:  # noqa: S104 - what a client is told, not what we bind
                host = socket.gethostname()
            info = BrokerInfo(id=config.broker_id, host=host, port=port, rack=config.rack or None)
            broker = await Broker.start(config, info)
        except BaseException:
            listener.close()
            raise
        return cls(config, broker, listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                client, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of file descriptors, most likely: leave it to the ones who have one.
                if not self._is_refusing:
                    self._is_refusing = True
                    logger.error("cannot accept connections for now error=%s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_ACCEPT_RETRY_S, self._resume_accepting)
                return
            self._is_refusing = False
            if len(self._connections) >= self._config.connections_max:
                logger.warning("closing peer=%s reason=connections_max is reached", peer)
                client.close()
                continue
            client.setblocking(False)
            tune(client)
            self._all_closed.clear()
            self._connections.add(
                Connection(
                    client,
                    peer,
                    self._door,
                    self._pool,
                    self._idle_polling,
                    self._config.request_bytes_max,
                    self._on_close,
                )
            )

    def _on_close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _resume_accepting(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _sweep(self) -> None:
        """Close connections that have neither sent nor taken anything for too long."""
        idle_s = self._config.connection_idle_ms_max / 1000
        while True:
            await asyncio.sleep(idle_s / 4)
            oldest = self._loop.time() - idle_s
            for connection in [item for item in self._connections if item.active_s < oldest]:
                connection.close("idle for too long")

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def stop(self) -> None:
        """Stop listening, let answers under way out, and stop the broker cleanly."""
        await self.broker.hand_over()
        self._sweeping.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in list(self._connections):
            connection.finish()
        self._door.answer_waiting_fetches()
        await self.broker.groups.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE_S):
                await self._all_closed.wait()
        for connection in list(self._connections):
            connection.close("the broker stops")
        self._door.cancel_requests()
        self._door.short_timer.close()
        await self.broker.stop()


def _listen(address: str) -> socket.socket:
    host, port = parse_address(address, "addr")
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{address} is in use; stop what listens there or choose another with --addr"
            ) from error
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    return listener
