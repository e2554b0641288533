"""Records as JSON lines, the same for `produce` and `consume`.

    {"topic": "orders", "partition": 0, "offset": 17, "timestamp": 1767268800123,
     "key": "k", "value": "v", "headers": [{"key": "source", "value": "web"}]}

Keys, values and header values that are not UTF-8 are written as `key_base64` and `value_base64`. What
`consume --json` prints, `produce --format json` takes back unchanged.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.failure import UsageError
from penstock.cli.values import timestamp_ms
from penstock.settings import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from confluent_kafka import Message

Headers = list[tuple[str, str | bytes | None]]


class Record(NamedTuple):
    """A record to produce. Partition -1 leaves the choice to the client, timestamp 0 means now."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int = -1
    timestamp: int = 0


def from_json(line: bytes, number: int) -> Record:
    """The record that JSON line `number` describes; `UsageError` says what is wrong with it."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UsageError(f"Line {number} is not JSON: {error}.") from None
    except RecursionError:
        raise UsageError(f"Line {number} is nested too deeply.") from None
    if not isinstance(fields, dict) or not ("value" in fields or "value_base64" in fields):
        raise UsageError(
            f"Line {number} is not a record.",
            'A record is a JSON object with at least a value: {"key": "k", "value": "v"}.',
        )
    try:
        return Record(
            _payload(fields, "value"),
            _payload(fields, "key"),
            _headers(fields.get("headers")),
            _partition(fields.get("partition")),
            _timestamp(fields.get("timestamp")),
        )
    except UsageError as error:
        raise UsageError(f"Line {number} is not a record: {error.text}", error.hint) from None
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise UsageError(f"Line {number} is not a record: {error}.") from None


def to_json(message: Message) -> str:
    """A consumed record as one JSON line."""
    fields: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        **described("key", message.key()),
        **described("value", message.value()),
        "headers": [
            {"key": name, **described("value", value)} for name, value in header_items(message)
        ],
    }
    return json.dumps(fields, ensure_ascii=False)


def header_items(message: Message) -> list[tuple[str, bytes | None]]:
    """The headers of a consumed record, in order."""
    headers = message.headers() or []
    items = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in items]


def printable(text: str) -> str:
    """Text that cannot disturb a terminal: what does not print is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def described(name: str, payload: bytes | None) -> dict[str, str | None]:
    """A payload as JSON fields: `{name: text}`, or `{name_base64: …}` for bytes that are no text."""
    if payload is None:
        return {name: None}
    try:
        return {name: payload.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(payload).decode()}


def _payload(fields: dict[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, null as null, and anything else as the JSON text it is."""
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(value: Any) -> Headers | None:
    if not value:
        return None
    if isinstance(value, dict):
        return [(_name(name), _payload({"value": item}, "value")) for name, item in value.items()]
    return [(_name(item["key"]), _payload(item, "value")) for item in value]


def _name(value: Any) -> str:
    name = str(value)
    name.encode()  # half a surrogate pair is no text
    return name


def _partition(value: Any) -> int:
    return -1 if value is None else _integer(value, "partition", -1, INT32_MAX)


def _timestamp(value: Any) -> int:
    if value is None:
        return 0
    moment = timestamp_ms(value) if isinstance(value, str) else value
    return _integer(moment, "timestamp", -INT64_MAX, INT64_MAX)


def _integer(value: Any, name: str, minimum: int, maximum: int) -> int:
    try:
        number = int(value)
    except OverflowError:  # infinity
        number = maximum + 1
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} {value} is not from {minimum} to {maximum}")
    return number
