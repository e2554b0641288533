"""Requests and answers as bytes: kio for the control messages, `penstock.wire` for the hot two.

A control message is asked for in the newest version that both sides know. Its fields are named as kio
names them; those that a version lacks are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import kio.index
import kio.serial
from kio.static.constants import EntityType

from penstock.client.errors import BadAnswer
from penstock.wire import INT16, REQUEST_HEADER, read_length, skip_tags

# What reading bytes that are no answer can raise, in our codecs and in kio's.
MALFORMED: Final = (IndexError, struct.error, ValueError, OverflowError, TypeError, MemoryError)


class Api(NamedTuple):
    """A request that we send. Versions are those whose shape the callers expect."""

    name: str
    key: int
    version_min: int
    version_max: int
    flexible_from: int  # versions from here on have tagged fields


PRODUCE: Final = Api("Produce", 0, 3, 12, 9)
FETCH: Final = Api("Fetch", 1, 4, 17, 12)
LIST_OFFSETS: Final = Api("ListOffsets", 2, 2, 7, 6)
METADATA: Final = Api("Metadata", 3, 4, 12, 9)
OFFSET_COMMIT: Final = Api("OffsetCommit", 8, 2, 9, 8)
OFFSET_FETCH: Final = Api("OffsetFetch", 9, 2, 7, 6)
FIND_COORDINATOR: Final = Api("FindCoordinator", 10, 1, 3, 3)
API_VERSIONS: Final = Api("ApiVersions", 18, 0, 3, 3)
INIT_PRODUCER_ID: Final = Api("InitProducerId", 22, 0, 4, 2)
DESCRIBE_CONFIGS: Final = Api("DescribeConfigs", 32, 1, 4, 4)
DESCRIBE_LOG_DIRS: Final = Api("DescribeLogDirs", 35, 1, 4, 2)


class Messages:
    """The entities of one version of a request: `messages("ListOffsetsTopic", name=…)`."""

    def __init__(self, api: Api, version: int) -> None:
        self.version = version
        self._module = kio.index.load_payload_module(api.key, version, EntityType.request)

    def __call__(self, type_name: str, **values: Any) -> Any:
        cls = getattr(self._module, type_name)
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})


Build = Callable[[Messages], Any]


@functools.cache
def messages_of(api: Api, version: int) -> Messages:
    return Messages(api, version)


class _Output:
    """The least that kio's writers need of a buffer."""

    __slots__ = ("pieces", "write")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.write = self.pieces.append


def encode_control(api: Api, version: int, build: Build) -> bytes:
    """The body of the request that `build` makes of the entities of this version."""
    entity = build(messages_of(api, version))
    output = _Output()
    kio.serial.entity_writer(type(entity))(output, entity)  # type: ignore[arg-type]
    return b"".join(output.pieces)


def decode_control(api: Api, version: int, body: memoryview, broker: str) -> Any:
    """kio's entity of an answer's body, or `BadAnswer`."""
    schema: Any = kio.index.load_response_schema(api.key, version)
    try:
        entity, _ = kio.serial.entity_reader(schema)(bytes(body), 0)
    except Exception as error:  # kio has errors of its own for what it cannot read
        raise BadAnswer(
            f"broker {broker} sent an answer to {api.name} that cannot be read: {error}"
        ) from error
    return entity


def request_header(api: Api, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """All that comes before the body, without the frame's length."""
    head = REQUEST_HEADER.pack(api.key, version, correlation_id, len(client_id)) + client_id
    return head + b"\x00" if version >= api.flexible_from else head


def body_position(api: Api, version: int, frame: memoryview) -> int:
    """Where the body of an answer begins. ApiVersions never has tags, so that anyone can read it."""
    if version < api.flexible_from or api is API_VERSIONS:
        return 4
    return skip_tags(frame, 4)


def read_string(data: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    """Raises one of `MALFORMED`, as every reader in `penstock.wire` does."""
    size, position = read_length(data, position, flexible, INT16)
    if size < 0:
        return None, position
    end = position + size
    if end > len(data):
        raise IndexError("a string ends too early")
    return str(data[position:end], "utf-8"), end
