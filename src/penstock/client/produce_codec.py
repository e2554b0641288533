"""Produce, versions 3 to 12, by hand: a request is a list of pieces, and batches are never copied.

version 5    log start offset       version 9    flexible
version 8    error messages         version 13   topics by id: not ours
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.client.wire import read_string
from penstock.model import TopicPartition
from penstock.records.batch import CRC_START, crc_of
from penstock.wire import INT32, read_count, skip_tags, write_count, write_string, write_uvarint

_FLEXIBLE_FROM: Final = 9
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_RESULT_3: Final = struct.Struct(">ihqq")
_RESULT_5: Final = struct.Struct(">ihqqq")
_PRODUCER: Final = struct.Struct(">qhi")  # producer id, producer epoch, first sequence number
_PRODUCER_AT: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = CRC_START - _CRC.size

Piece = bytes | memoryview


class PartitionResult(NamedTuple):
    partition: TopicPartition
    error_code: int
    base_offset: int
    message: str | None


def stamp(batch: bytearray, producer_id: int, producer_epoch: int, sequence: int) -> None:
    """Write who sends the batch and its place in what they send, and renew the CRC."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, sequence)
    _CRC.pack_into(batch, _CRC_AT, crc_of(batch))


def encode_request(
    version: int,
    acks: int,
    timeout_ms: int,
    topics: Mapping[str, Sequence[tuple[int, memoryview]]],
) -> list[Piece]:
    """A request with one batch for each partition that is named."""
    flexible = version >= _FLEXIBLE_FROM
    tags = b"\x00" if flexible else b""
    pieces: list[Piece] = []
    text = write_string(None, flexible) + _ACKS_TIMEOUT.pack(acks, timeout_ms)
    text += write_count(len(topics), flexible)
    for topic, partitions in topics.items():
        text += write_string(topic, flexible) + write_count(len(partitions), flexible)
        for index, batch in partitions:
            size = write_uvarint(len(batch) + 1) if flexible else INT32.pack(len(batch))
            pieces += [text + INT32.pack(index) + size, batch]
            text = tags  # of the partition
        text += tags  # of the topic
    return [*pieces, text + tags]


def decode_response(version: int, data: memoryview, position: int) -> list[PartitionResult]:
    """What became of each batch. Raises one of `MALFORMED` if the bytes are no answer."""
    flexible = version >= _FLEXIBLE_FROM
    topic_count, position = read_count(data, position, flexible)
    results: list[PartitionResult] = []
    for _ in range(topic_count):
        topic, position = read_string(data, position, flexible)
        count, position = read_count(data, position, flexible)
        for _ in range(count):
            result, position = _read_result(version, data, position, topic or "")
            results.append(result)
        if flexible:
            position = skip_tags(data, position)
    return results


def _read_result(
    version: int, data: memoryview, position: int, topic: str
) -> tuple[PartitionResult, int]:
    flexible = version >= _FLEXIBLE_FROM
    layout = _RESULT_5 if version >= 5 else _RESULT_3
    fields: Sequence[Any] = layout.unpack_from(data, position)
    position += layout.size
    message = None
    if version >= 8:
        record_errors, position = read_count(data, position, flexible)
        first = None
        for _ in range(record_errors):
            text, position = read_string(data, position + 4, flexible)
            first = first or text
            if flexible:
                position = skip_tags(data, position)
        message, position = read_string(data, position, flexible)
        message = message or first
    if flexible:
        position = skip_tags(data, position)
    index, error_code, base_offset = fields[:3]
    return PartitionResult(TopicPartition(topic, index), error_code, base_offset, message), position
