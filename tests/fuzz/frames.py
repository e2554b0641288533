"""Frames to throw at a broker: valid requests of every API and version, mutated, and plain garbage.

All of it follows from a seed. Requests are small and name things that a broker under fuzzing has, so
that many reach deep into their handlers before something is wrong with them.
"""

from __future__ import annotations

import datetime
import functools
import random
import struct
import typing
import uuid
from dataclasses import fields, is_dataclass
from typing import Any, Final, NamedTuple

import kio.index
from kio.schema.errors import ErrorCode

from penstock.kafka.handlers import REGISTRY
from tests.kafka.batches import make_batch
from tests.kafka.wire import build, choices, encode, is_nullable

TOPICS: Final = ("fuzz-0", "fuzz-1", "fuzz-2")
PARTITIONS: Final = 2
GROUPS: Final = ("group-0", "group-1")
REQUESTS_PER_VERSION: Final = 6

# How to draw the values that decide how long a request takes, or how much it makes.
_TAME: Final = {
    "max_wait": (0, 1, 5),
    "session_timeout": (1000,),
    "rebalance_timeout": (1000,),
    "timeout": (100,),
    "num_partitions": (-1, 1, 2),
    "count": (1, 2, 3),
    "replication_factor": (1, -1),
    "validate_only": (True, True, True, False),
    "partition_index": (0, 1, 2),
    "partition": (0, 1, 2),
    "index": (0, 1),
    "acks": (-1, 0, 1),
    "fetch_offset": (0, 1, 5, 2**40),
    "session_id": (0,),
    "session_epoch": (-1, 0),
    "min_bytes": (0, 1, 100),
    "max_bytes": (1 << 20,),
    "partition_max_bytes": (100, 1 << 20),
    "resource_type": (2, 4),
    "broker_ids": (0,),
    "key_type": (0, 1),
    "replica_id": (-1,),
    "timestamp": (-1, -2, -3, -4, 0, 1_700_000_000_000),
}
_NAMES: Final = (*TOPICS, *GROUPS, "nobody", "", "retention.ms", "1000", "range", "consumer", "0")
_INTERESTING: Final = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80\x80",
    b"\xff" * 9 + b"\x01",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x00",
    b"\xff",
)


class Frame(NamedTuple):
    """Bytes to send. `is_whole`: its size is right, so that the broker will not wait for more."""

    data: bytes
    is_whole: bool


class Frames:
    """An endless series of frames that follows from its seed."""

    def __init__(self, seed: int, topic_ids: tuple[uuid.UUID, ...] = ()) -> None:
        self._random = random.Random(seed)
        self._corpus = corpus(topic_ids)

    def next(self) -> Frame:
        roll = self._random.random()
        if roll < 0.20:
            return _framed(self._valid())
        if roll < 0.80:
            return _framed(self._mutated(self._valid()))
        if roll < 0.85:
            return _framed(self._spliced())
        if roll < 0.90:
            return _framed(self._headed_garbage())
        if roll < 0.95:
            return self._with_wrong_size()
        return Frame(self._garbage(200), False)

    def _valid(self) -> bytes:
        return self._random.choice(self._corpus)

    def _mutated(self, data: bytes) -> bytes:
        mutable = bytearray(data)
        for _ in range(self._random.choice((1, 1, 1, 1, 2, 4, 16))):
            self._mutate(mutable)
        return bytes(mutable)

    def _mutate(self, data: bytearray) -> None:
        choose = self._random
        at = choose.randrange(len(data) + 1)
        kind = choose.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << choose.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = choose.randrange(256)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = self._garbage(8)
        elif kind == 4:
            del data[at : at + choose.randrange(1, 9)]
        elif kind == 5:
            token = choose.choice(_INTERESTING)
            data[at : at + len(token)] = token
        elif kind == 6:
            data[at:at] = choose.choice(_INTERESTING)
        elif len(data) >= 4:  # another version, or another API, of the same bytes
            where = choose.choice((0, 2))
            struct.pack_into(">h", data, where, choose.randrange(-1, 70 if where == 0 else 20))

    def _spliced(self) -> bytes:
        first, second = self._valid(), self._valid()
        return first[: self._random.randrange(len(first))] + second[self._random.randrange(20) :]

    def _headed_garbage(self) -> bytes:
        api = self._random.choice(list(REGISTRY.values()))
        version = self._random.choice(api.versions)
        return struct.pack(">hhih", api.key, version, 1, -1) + self._garbage(300)

    def _with_wrong_size(self) -> Frame:
        size = self._random.choice(
            (-1, 0, 5, 10, 100, 70_000, 2**20, 100 << 20, 2**31 - 1, -(2**31))
        )
        return Frame(struct.pack(">i", size) + self._valid(), False)

    def _garbage(self, size_max: int) -> bytes:
        return self._random.randbytes(self._random.randrange(1, size_max))


def _framed(data: bytes) -> Frame:
    return Frame(struct.pack(">i", len(data)) + data, True)


@functools.cache
def corpus(topic_ids: tuple[uuid.UUID, ...]) -> list[bytes]:
    """Valid requests, header and all, a few for each version of each API."""
    draw = _Draw(random.Random(1), topic_ids)
    found = []
    for api in REGISTRY.values():
        for version in api.versions:
            request_type = kio.index.load_request_schema(api.key, version)
            for _ in range(REQUESTS_PER_VERSION):
                request = draw.entity(request_type)
                header = build(
                    request_type.__header_schema__,
                    {
                        "request_api_key": api.key,
                        "request_api_version": version,
                        "correlation_id": 1,
                        "client_id": draw.random.choice((None, "fuzz")),
                    },
                )
                found.append(encode(header) + encode(request))
    return found


class _Draw:
    """Random entities of any kio schema."""

    def __init__(self, rng: random.Random, topic_ids: tuple[uuid.UUID, ...]) -> None:
        self.random = rng
        self._topic_ids: tuple[uuid.UUID | None, ...] = (*topic_ids, None)

    def entity(self, entity_type: Any) -> Any:
        hints = typing.get_type_hints(entity_type)
        return entity_type(
            **{item.name: self._field(item, hints[item.name]) for item in fields(entity_type)}
        )

    def _field(self, item: Any, annotation: Any) -> Any:
        if "tag" in item.metadata and self.random.random() < 0.8:
            return item.default
        (inner,) = choices(annotation)
        if is_nullable(annotation) and self.random.random() < 0.3 and item.name != "records":
            return None
        if typing.get_origin(inner) is tuple:
            (element,) = choices(typing.get_args(inner)[0])
            count = self.random.choice((0, 1, 1, 2))
            return tuple(self._one(item, element) for _ in range(count))
        return self._one(item, inner)

    def _one(self, item: Any, annotation: Any) -> Any:
        if is_dataclass(annotation):
            return self.entity(annotation)
        kafka_type = item.metadata["kafka_type"]
        tame = _TAME.get(item.name)
        if kafka_type.startswith("timedelta"):
            return datetime.timedelta(milliseconds=self.random.choice(tame or (0, 100, 1000)))
        if tame is not None:
            return self.random.choice(tame)
        return self._scalar(kafka_type)

    def _scalar(self, kafka_type: str) -> Any:
        if kafka_type == "string":
            return self.random.choice(_NAMES)
        if kafka_type == "records":
            return self._records()
        if kafka_type == "bytes":
            return self.random.randbytes(self.random.randrange(20))
        if kafka_type == "uuid":
            return self.random.choice(self._topic_ids)
        if kafka_type == "bool":
            return self.random.random() < 0.5
        if kafka_type == "error_code":
            return ErrorCode.none
        return self.random.choice((-1, 0, 0, 1, 2, 100))

    def _records(self) -> bytes:
        values = [self.random.randbytes(20) for _ in range(self.random.randrange(1, 4))]
        if self.random.random() < 0.5:
            return make_batch(*values)
        identity = self.random.randrange(50)
        return make_batch(*values, producer_id=identity, epoch=0, sequence=0)
