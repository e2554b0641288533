"""The broker's log: one line per event, to stderr.

    2026-01-01T12:00:00.123 INFO penstock.kafka  connection closed peer=10.0.0.7:51234 reason="idle"

Modules log through `logging.getLogger(__name__)`. Facts about the event go into `extra` and appear as
`key=value` behind the message:

    log.info("connection closed", extra={"peer": peer, "reason": "idle"})

A message with line breaks is still one line. Only the traceback of a bug in Penstock itself
(`log.exception`) follows on lines of its own, indented.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, TextIO

_COLOURS: Final = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
_DIM: Final = "\x1b[2m"
_RESET: Final = "\x1b[0m"
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}
_PLAIN_VALUE: Final = str.maketrans("", "", "\"'= \t\r\n")


class LineFormatter(logging.Formatter):
    """Formats a record as one line; `colour` adds terminal colours."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        level = record.levelname
        name = record.name
        if self._colour:
            level = f"{_COLOURS.get(record.levelno, '')}{level}{_RESET}"
            name = f"{_DIM}{name}{_RESET}"
        parts = [
            f"{stamp}.{int(record.msecs):03d} {level} {name}  {_one_line(record.getMessage())}"
        ]
        parts.extend(
            f"{key}={_value(value)}"
            for key, value in vars(record).items()
            if key not in _STANDARD_ATTRIBUTES
        )
        line = " ".join(parts)
        if record.exc_info and record.exc_info[0] is not None:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {part}" for part in trace.splitlines())
        return line


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Send what `penstock` and its libraries log at `level` or above to `stream` (stderr).

    Replaces whatever was configured before. Call it once, in a process that is a broker; a library
    or a test that only embeds a broker leaves logging to its host.
    """
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(colour=stream.isatty()))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))
    logging.raiseExceptions = False  # a closed stderr must not disturb the broker


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and text.isprintable() and text.translate(_PLAIN_VALUE) == text:
        return text
    return json.dumps(text, ensure_ascii=False)
