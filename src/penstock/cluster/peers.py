"""The other brokers, one connection to each.

Connections are made when somebody asks for something, and again when somebody asks after a loss: at
once if the broker has registered since, else after a pause that grows from 50 ms to a second. A broker
whose address is a specific one connects from there, so its peers can tell who it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.cluster import report_codec
from penstock.cluster.controller import BrokerReport
from penstock.cluster.peer_connection import OnAnswer, OnLost, PeerConnection, PeerError
from penstock.errors import ApiError, ErrorCode
from penstock.settings import BrokerConfig, parse_address

__all__ = ["ANSWER_TIMEOUT_S", "Peer", "PeerError", "Peers"]

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 2.0
_BACKOFF_S_MIN: Final = 0.05
_BACKOFF_S_MAX: Final = 1.0
_BATCH_BYTES_MAX: Final = 512 * 1024 * 1024  # one batch comes whole, however large its topic allows
_WILDCARDS: Final = {"", "0.0.0.0", "::"}  # noqa: S104 - compared with, not bound
# The address we listen on is of no use for reaching this peer: go out from wherever the system likes.
_NO_WAY_FROM_THERE: Final = {errno.EINVAL, errno.EADDRNOTAVAIL, errno.ENETUNREACH}

Address = tuple[str, int]
T = TypeVar("T")


class Peer:
    """Another broker. Lives on one event loop, as long as this broker: only its address changes."""

    def __init__(
        self,
        broker: int,
        *,
        client_id: str,
        local_host: str | None = None,
        answer_bytes_max: int = _BATCH_BYTES_MAX,
    ) -> None:
        self.broker = broker
        self._client_id = client_id
        self._local_host = local_host
        self._answer_bytes_max = answer_bytes_max
        self._address: Address | None = None  # None: it is not registered
        self._connection: PeerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._backoff_s = 0.0
        self._retry_at_s = 0.0  # not to be tried before
        self._has_registered = asyncio.Event()  # while somebody waits to try again
        self._is_said_lost = False  # that it is not reachable: once for each time
        self.is_closed = False

    def __str__(self) -> str:
        return f"broker {self.broker}"

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def move(self, address: Address | None) -> None:
        """It has registered, with this address, or is gone."""
        if address != self._address:
            self._address = address
            if self._connection is not None:
                self._connection.lose("it is not registered there any more")
        if address is not None:
            self._backoff_s = self._retry_at_s = 0.0
            self._has_registered.set()

    # Asking

    async def connect(self) -> None:
        """Until there is a connection. `PeerError` if one try, after its pause, has failed."""
        if self.is_closed:
            raise PeerError(f"{self} is not asked any more: this broker stops")
        if self._connection is not None:
            return
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._on_connected)
        await asyncio.shield(self._connecting)

    def send(
        self,
        key: int,
        version: int,
        body: bytes,
        on_answer: OnAnswer,
        on_lost: OnLost,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """As `PeerConnection.send`, on the connection that there is."""
        if self._connection is None:
            raise PeerError(f"{self} is not connected")
        self._connection.send(key, version, body, on_answer, on_lost, timeout_s=timeout_s)

    async def ask(
        self,
        key: int,
        version: int,
        body: bytes,
        read: Callable[[memoryview], T],
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> T:
        """What `read` makes of the answer. `PeerError` if none comes."""
        await self.connect()
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def on_answer(body: memoryview) -> None:
            result = read(body)
            if not answered.done():
                answered.set_result(result)

        def on_lost(error: PeerError) -> None:
            if not answered.done():
                answered.set_exception(error)

        self.send(key, version, body, on_answer, on_lost, timeout_s=timeout_s)
        return await answered

    # Connecting

    async def _connect(self) -> None:
        await self._pause()
        address = self._address
        if address is None:
            self._delay_next()
            raise PeerError(f"{self} is not registered")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                connection = await self._open(*address)
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # no address, perhaps
            reason = str(error) or "no answer"
            self._delay_next()
            if not self._is_said_lost:
                self._is_said_lost = True
                logger.warning(
                    "cannot reach broker=%d addr=%s:%d: %s", self.broker, *address, reason
                )
            raise PeerError(
                f"{self} can not be reached at {address[0]}:{address[1]}: {reason}"
            ) from error
        if address != self._address or self.is_closed:
            connection.lose("it has moved")
        if connection.is_lost:
            raise PeerError(f"{self} was lost")
        if self._is_said_lost:
            self._is_said_lost = False
            logger.info("reached broker=%d addr=%s:%d again", self.broker, *address)
        self._connection = connection

    async def _pause(self) -> None:
        delay_s = self._retry_at_s - asyncio.get_running_loop().time()
        if delay_s > 0:
            self._has_registered.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_registered.wait(), delay_s)

    def _delay_next(self) -> None:
        self._backoff_s = min(max(_BACKOFF_S_MIN, 2 * self._backoff_s), _BACKOFF_S_MAX)
        self._retry_at_s = asyncio.get_running_loop().time() + self._backoff_s

    async def _open(self, host: str, port: int) -> PeerConnection:
        try:
            return await self._open_from(self._local_host, host, port)
        except OSError as error:
            if self._local_host is None or error.errno not in _NO_WAY_FROM_THERE:
                raise
            return await self._open_from(None, host, port)

    async def _open_from(self, local_host: str | None, host: str, port: int) -> PeerConnection:
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: PeerConnection(
                f"{self} at {host}:{port}", self._client_id, self._answer_bytes_max, self._on_end
            ),
            host,
            port,
            local_addr=None if local_host is None else (local_host, 0),
        )
        # On one machine, a connection to a port that nobody listens on can meet itself.
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            connection.lose("it is ourselves")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
        return connection

    def _on_connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # those who wait have it; maybe nobody does

    def _on_end(self, connection: PeerConnection, reason: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        logger.debug("lost peer=%s reason=%s", connection.peer, reason)
        if connection.has_answered:
            self._backoff_s = 0.0
        self._delay_next()

    async def close(self) -> None:
        """Everybody who waits gets a `PeerError`."""
        self.is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            self._connection.lose("this broker stops")


class Peers:
    """Every other broker that this one has heard of."""

    def __init__(self, config: BrokerConfig) -> None:
        host, _ = parse_address(config.addr, "addr")
        self._local_host = None if host in _WILDCARDS else host
        self._client_id = f"penstock-broker-{config.broker_id}"
        self._answer_bytes_max = config.replica_fetch_bytes_max + _BATCH_BYTES_MAX
        self._peers: dict[int, Peer] = {}

    def get(self, broker: int) -> Peer:
        """The broker, reachable or not."""
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = Peer(
                broker,
                client_id=self._client_id,
                local_host=self._local_host,
                answer_bytes_max=self._answer_bytes_max,
            )
        return peer

    def update(self, broker: int, address: Address | None) -> None:
        """It has registered with this address; None: its registration has ended."""
        self.get(broker).move(address)

    async def report(self, broker: int, report: BrokerReport) -> None:
        """Tell the controller. `PeerError` if it does not answer, `ApiError` if it is not it any more."""
        code = await self.get(broker).ask(
            report_codec.KEY,
            report_codec.VERSION,
            report_codec.encode_report(report),
            report_codec.decode_answer,
        )
        if code is not ErrorCode.none:
            raise ApiError(code, f"broker {broker} did not take the report")

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()
