"""One member of the etcd cluster as a client sees it: an address, a connection, its streams."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from penstock.metadata.etcd_config import EtcdConfig
from penstock.metadata.etcd_messages import RANGE, Message, Method

__all__ = ["Endpoint", "Metadata", "Stream", "Unreachable"]

Metadata: TypeAlias = tuple[tuple[str, str], ...]
Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

# etcd closes a connection that is pinged more often than every 5 s (--grpc-keepalive-min-time).
_PING_AFTER_MS: Final = 6_000
_PING_TIMEOUT_MS: Final = 3_000
_POLL_FIRST_S: Final = 0.001
_POLL_MAX_S: Final = 0.02
_WHY_TIMEOUT_S: Final = 0.1


class Unreachable(Exception):
    """This endpoint cannot be used now; no transaction was sent to it. The text says why."""


class Endpoint:
    """A connection that is made when it is needed and mends itself.

    Belongs to one event loop. What is called or streamed here fails with `grpc.aio.AioRpcError`.
    """

    def __init__(self, address: str, config: EtcdConfig) -> None:
        self.address = address
        self._config = config
        self._channel = self._open_channel()
        self._calls: dict[str, Any] = {}
        self._streams: set[Stream] = set()

    async def connect(self, timeout_s: float) -> None:
        """Return when the connection stands. Raises `Unreachable`.

        Asked again and again instead of waited for: a wait on a channel's state cannot be given up
        without leaving its watcher behind in the library.
        """
        channel = self._channel
        pause_s = _POLL_FIRST_S
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while (state := channel.get_state(try_to_connect=True)) is not _READY:
            if state is _FAILED and (reason := await self._why()) is not None:
                raise Unreachable(reason)
            if loop.time() >= give_up_at:
                raise Unreachable(f"no connection within {timeout_s:.1f} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)

    async def call(
        self, method: Method, request: Message, metadata: Metadata, timeout_s: float
    ) -> Message:
        call = self._calls.get(method.path)
        if call is None:
            call = self._calls[method.path] = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return await call(request, timeout=timeout_s, metadata=metadata)

    async def exchange(
        self, method: Method, request: Message, metadata: Metadata, timeout_s: float
    ) -> Message:
        """One request and its answer on a stream of their own: a stream that is kept can go stale."""
        stream = self._open_stream(method, metadata, timeout_s)
        try:
            with contextlib.suppress(asyncio.InvalidStateError):  # it failed: reading tells why
                await stream.write(request)
            answer = await stream.read()
        finally:
            stream.cancel()
        if answer is grpc.aio.EOF:
            raise Unreachable("it ended the stream without an answer")
        return answer

    def stream(self, method: Method, metadata: Metadata) -> Stream:
        """A stream in both directions. Give it to `end_stream` in the end, whatever became of it."""
        stream = self._open_stream(method, metadata, None)
        self._streams.add(stream)
        return stream

    def end_stream(self, stream: Stream) -> None:
        self._streams.discard(stream)
        stream.cancel()

    def end_streams(self) -> None:
        """End every stream that was not ended yet; who reads one finds it cancelled."""
        for stream in self._streams:
            stream.cancel()
        self._streams.clear()

    async def close(self) -> None:
        await self._channel.close()

    def _open_stream(self, method: Method, metadata: Metadata, timeout_s: float | None) -> Stream:
        make: Any = self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        stream: Stream = make(timeout=timeout_s, metadata=metadata)
        return stream

    async def _why(self) -> str | None:
        """Why there is no connection, which only a request that fails tells. None: there is one now."""
        try:
            await self.call(RANGE, RANGE.request(key=b"\0"), (), _WHY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                details = error.details() or error.code().name
                reason = details.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
                return reason.rpartition(f"{self.address}: ")[2]
        return None

    def _open_channel(self) -> grpc.aio.Channel:
        options = (
            # A connection of our own: another store of this process must not share our fate.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),  # what may be sent twice is decided in etcd_client
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", round(self._config.connect_timeout_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.keepalive_time_ms", _PING_AFTER_MS),
            ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),  # the one that counts
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        )
        if not self._config.uses_tls:
            return grpc.aio.insecure_channel(self.address, options=options)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read(self._config.ca_file),
            private_key=_read(self._config.key_file),
            certificate_chain=_read(self._config.cert_file),
        )
        return grpc.aio.secure_channel(self.address, credentials, options=options)


_READY: Final = grpc.ChannelConnectivity.READY
_FAILED: Final = grpc.ChannelConnectivity.TRANSIENT_FAILURE


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path is not None else None
