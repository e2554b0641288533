"""One exception tree.

    PenstockError
    ├── ConfigError            a setting is unknown or out of range; nothing was started
    ├── ApiError               a request is answered with a Kafka error code
    │   └── StorageError       the disk refused, or what it holds is damaged
    ├── CorruptLogError        bytes on disk are not what was written there
    └── ProtocolError          a peer sent bytes that are no request; its connection closes

Errors are translated once, at the boundary that meets the outside: disk errors in `log/`, bytes from
peers in `kafka/`. Handlers raise `ApiError` and the router turns it into the error code of its answer.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = [
    "ApiError",
    "ConfigError",
    "CorruptLogError",
    "ErrorCode",
    "PenstockError",
    "ProtocolError",
    "StorageError",
]


class PenstockError(Exception):
    """Base of everything Penstock raises on purpose."""


class ConfigError(PenstockError):
    """A setting is unknown or has a value out of its range. The text says which and what is legal."""


class ProtocolError(PenstockError):
    """A peer's bytes are not a Kafka request. The connection is closed with one log line."""


class CorruptLogError(PenstockError):
    """A log file holds bytes that fail their checks at `position`."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class ApiError(PenstockError):
    """A request fails with a Kafka error code; `message` is for the person reading the client's log."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message


class StorageError(ApiError):
    """The disk refused a write, or the partition's log is damaged and needs `penstock log repair`."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)
