"""Consumed records on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli.recordtext import header_items, printable, to_json
from penstock.cli.values import as_bytes, iso

if TYPE_CHECKING:
    from confluent_kafka import Message

    from penstock.cli.consume import Shown

_COLOURS: Final = {"key": "\x1b[36m", "value": "", "headers": "\x1b[33m"}
_OTHER_COLOUR: Final = "\x1b[2m"
_RESET: Final = "\x1b[0m"


class RecordWriter:
    """Writes records as lines. Into a pipe the bytes go as they are; a terminal gets them escaped."""

    def __init__(self, *, shown: Sequence[Shown], separator: str, json: bool) -> None:
        self._shown = shown
        self._separator = as_bytes(separator)
        self._json = json
        self._terminal = sys.stdout.isatty()
        self._plain = not self._terminal and list(shown) == ["value"]  # the common case, quicker
        self._colour = self._terminal and not os.environ.get("NO_COLOR")

    def write(self, batch: Sequence[Message]) -> None:
        """Write and flush: when this returns, the records are with whoever reads our output."""
        if self._json:
            lines = [to_json(message).encode() for message in batch]
        elif self._plain:
            lines = [_or_null(message.value()) for message in batch]
        else:
            lines = [self._line(message) for message in batch]
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        sys.stdout.buffer.flush()

    def _line(self, message: Message) -> bytes:
        return self._separator.join(self._part(message, name) for name in self._shown)

    def _part(self, message: Message, name: Shown) -> bytes:
        part = _bytes_of(message, name)
        if self._terminal:
            part = printable(part.decode("utf-8", "backslashreplace")).encode()
        if self._colour and (colour := _COLOURS.get(name, _OTHER_COLOUR)):
            part = f"{colour}{part.decode()}{_RESET}".encode()
        return part


def _bytes_of(message: Message, name: Shown) -> bytes:
    match name.value:
        case "key":
            return _or_null(message.key())
        case "value":
            return _or_null(message.value())
        case "headers":
            return b",".join(
                b"%s=%s" % (key.encode(), _or_null(value)) for key, value in header_items(message)
            )
        case "timestamp":
            return iso(message.timestamp()[1]).encode()
        case other:
            return str(getattr(message, other)()).encode()


def _or_null(payload: bytes | None) -> bytes:
    return b"null" if payload is None else payload
