"""One blocking connection to one broker, with the versions that both sides speak.

Answers come in the order of the requests. The socket blocks in the kernel, with the timeouts of the
system's own (SO_RCVTIMEO): a large answer is one call that waits for all of it, and no polling. A
timeout is about progress: a slow network may take long over a large answer, a dead one may not.

A connection is used by one thread at a time. `close` may come from any thread and ends a wait.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from typing import Any, Final, NamedTuple

from penstock import __version__
from penstock.client.errors import BadAnswer, BrokerUnreachable, UnsupportedBroker
from penstock.client.wire import (
    API_VERSIONS,
    MALFORMED,
    Api,
    Build,
    Messages,
    body_position,
    decode_control,
    encode_control,
    request_header,
)
from penstock.errors import ConfigError, ErrorCode
from penstock.sockets import tune
from penstock.wire import INT32

FETCH_FRAME_BYTES_MAX: Final = 512 << 20  # a batch comes whole, however large its topic lets it be
_CONTROL_FRAME_BYTES_MAX: Final = 64 << 20  # below what the first bytes of TLS and HTTP would be
_CONNECT_TIMEOUT_MS_MAX: Final = 10_000
_TIMEVAL: Final = struct.Struct("ll")


class Address(NamedTuple):
    """Where a broker listens. `node_id` is -1 for an address that came from the user."""

    host: str
    port: int
    node_id: int = -1

    def __str__(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        place = f"{name}:{self.port}"
        return place if self.node_id < 0 else f"{self.node_id} ({place})"


class Connection:
    """Connected and negotiated when it is made, or `BrokerUnreachable`."""

    def __init__(self, address: Address, *, client_id: str, timeout_ms: int) -> None:
        self.address = address
        self._client_id = client_id.encode()[:1000]
        self._correlation_ids = itertools.count(1)
        self.timeout_ms = timeout_ms
        self._socket = self._connected()
        try:
            self._versions = self._negotiated()
        except BaseException:
            self.close()
            raise

    @property
    def raw(self) -> socket.socket:
        """The socket itself, for who waits for many of them."""
        return self._socket

    def _connected(self) -> socket.socket:
        timeout_s = min(self.timeout_ms, _CONNECT_TIMEOUT_MS_MAX) / 1000
        try:
            connected = socket.create_connection(self.address[:2], timeout=timeout_s)
        except OSError as error:
            # The original stays attached: whether a name exists at all is told by its type.
            raise BrokerUnreachable(f"broker {self.address} cannot be reached: {error}") from error
        connected.settimeout(None)
        seconds, milliseconds = divmod(self.timeout_ms, 1000)
        timeout = _TIMEVAL.pack(seconds, milliseconds * 1000)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        tune(connected)
        return connected

    def close(self) -> None:
        """End the connection. May be repeated."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in it
        self._socket.close()

    def abandon(self) -> None:
        """Let go of a socket that belongs to the process we were forked from, and leave it open there."""
        self._socket.close()

    # Versions

    def _negotiated(self) -> dict[int, tuple[int, int]]:
        answer = self._ask_versions(API_VERSIONS.version_max)
        if answer is None:
            answer = self._ask_versions(0)
        if answer is None or answer.error_code is not ErrorCode.none:
            raise UnsupportedBroker(f"broker {self.address} does not tell the versions it speaks")
        return {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}

    def _ask_versions(self, version: int) -> Any:
        """None if the broker does not know this version: it says so in the shape of version 0."""

        def build(new: Messages) -> Any:
            return new(
                "ApiVersionsRequest",
                client_software_name="penstock",
                client_software_version=__version__,
            )

        body = self._round_trip(API_VERSIONS, version, encode_control(API_VERSIONS, version, build))
        if body[:2] == struct.pack(">h", ErrorCode.unsupported_version) and version:
            return None
        return decode_control(API_VERSIONS, version, body, str(self.address))

    def version_of(self, api: Api) -> int:
        """The newest version of a request that both sides speak."""
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(highest, api.version_max)
        if version < max(lowest, api.version_min):
            theirs = f"versions {lowest} to {highest}" if highest >= 0 else "none"
            raise UnsupportedBroker(
                f"broker {self.address} speaks {theirs} of {api.name}, this client "
                f"{api.version_min} to {api.version_max}; it takes Kafka 2.1 or newer",
                code=ErrorCode.unsupported_version,
            )
        return version

    # Requests

    def call(self, api: Api, build: Build) -> Any:
        """Send a control message and wait for its answer, kio's entity of it."""
        version = self.version_of(api)
        body = self._round_trip(api, version, encode_control(api, version, build))
        return decode_control(api, version, body, str(self.address))

    def _round_trip(self, api: Api, version: int, request: bytes) -> memoryview:
        correlation_id = self.send(api, version, [request])
        frame = memoryview(bytearray(self.receive_size()))
        self.receive_into(frame)
        return frame[self.check_answer(api, version, correlation_id, frame) :]

    def frame(self, api: Api, version: int, pieces: list[Any]) -> tuple[int, list[Any]]:
        """A request's correlation id and all of its pieces, with the length and header before them."""
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        head = request_header(api, version, correlation_id, self._client_id)
        size = len(head) + sum(len(piece) for piece in pieces)
        return correlation_id, [INT32.pack(size) + head, *pieces]

    def send(self, api: Api, version: int, pieces: list[Any]) -> int:
        """Send a request whose answer is to be received later; its correlation id."""
        correlation_id, frame = self.frame(api, version, pieces)
        try:
            self._socket.sendall(b"".join(frame))
        except OSError as error:
            raise self._lost(error) from error
        return correlation_id

    def receive_size(self, bytes_max: int = _CONTROL_FRAME_BYTES_MAX) -> int:
        """The size of the answer that comes next, refused if it is absurd."""
        size: int = INT32.unpack(self._received(memoryview(bytearray(4))))[0]
        if not 4 <= size <= bytes_max:
            raise BadAnswer(
                f"{self.address} announced an answer of {size} bytes: it is no Kafka broker, or its "
                "port expects TLS; check the address and the listener's security protocol"
            )
        return size

    def receive_into(self, buffer: memoryview) -> None:
        """Fill all of `buffer`."""
        self._received(buffer)

    def _received(self, buffer: memoryview) -> memoryview:
        size, position = len(buffer), 0
        receive = self._socket.recv_into
        while position < size:
            try:
                count = receive(buffer[position:], 0, socket.MSG_WAITALL)
            except OSError as error:
                raise self._lost(error) from error
            if not count:
                raise BrokerUnreachable(f"broker {self.address} closed the connection")
            position += count
        return buffer

    def _lost(self, error: OSError) -> BrokerUnreachable:
        if isinstance(error, BlockingIOError):
            return BrokerUnreachable(
                f"broker {self.address} did not answer for {self.timeout_ms / 1000:g} s"
            )
        return BrokerUnreachable(f"the connection to broker {self.address} was lost: {error}")

    def check_answer(self, api: Api, version: int, correlation_id: int, frame: memoryview) -> int:
        """Where the body begins in an answer that must be the one to this request."""
        found = INT32.unpack_from(frame, 0)[0]
        if found != correlation_id:
            raise BadAnswer(
                f"broker {self.address} answered request {found} in place of {correlation_id}"
            )
        try:
            return body_position(api, version, frame)
        except MALFORMED as error:
            raise BadAnswer(f"broker {self.address} sent a broken answer to {api.name}") from error


def parse_bootstrap(text: str) -> list[Address]:
    """The addresses of a `host:port,host:port` list; the port is 9092 where there is none."""
    return [_parse_address(part.strip()) for part in text.split(",") if part.strip()]


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "9092"
    host = host.rpartition("://")[2].removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap address {text!r} is not of the form host:port")
    return Address(host, int(port))
