"""Fetch, versions 4 to 18, by hand: records leave as ranges of files.

version 5    log start offset              version 12   flexible, last fetched epoch
version 7    incremental sessions          version 13   topics by id
version 9    current leader epoch          version 15   the replica id is a tagged field
version 11   rack id, preferred replica

A client of ours on the same machine asks for references in place of records: `wire.FileReference`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, overload

from penstock.kafka.primitives import (
    Topic,
    check_element_count,
    check_tag_count,
    read_count,
    read_string,
    read_topic,
    skip_tags,
    topic_of_id,
    write_topic,
)
from penstock.log import FileSlice
from penstock.machine import boot_id
from penstock.wire import (
    BY_REFERENCE,
    INT32,
    FileReference,
    read_tagged,
    read_uvarint,
    write_count,
    write_uvarint,
)

_WAIT_MIN_MAX_ISOLATION: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">ihi")  # throttle, error code, session id
_REPLICA: Final = struct.Struct(">iq")
_REPLICA_STATE_TAG: Final = 1
_READ_COMMITTED: Final = 1

_PARTITION_4: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iqqi")
_PARTITION_9: Final = struct.Struct(">iiqqi")
_PARTITION_12: Final = struct.Struct(">iiqiqi")
_UNTAGGED_12: Final = struct.Struct(">iiqiqix")  # the number of its tagged fields is a zero

# A whole request, from version 15 on, that is for one partition and has neither rack nor tagged fields.
_LONE_15: Final = struct.Struct(">iiibiiB16sBiiqiqiBBBBB")
_LONE_COUNTS: Final = (2, 2, 0, 0, 1, 1, 0)  # lengths are one more than what follows

_DATA_4: Final = struct.Struct(">ihqq")
_DATA_5: Final = struct.Struct(">ihqqq")
_DIVERGING_TAG: Final = 0
_DIVERGING: Final = struct.Struct(">iq")
_NO_REPLICA: Final = INT32.pack(-1)  # none is preferred over this one
_LONE_DATA_13: Final = struct.Struct(">ihiB16sBihqqqBi")  # an answer up to its only records' length
_THREE_TAGLESS: Final = bytes(3)  # of the partition, of the topic, of the answer

Part = bytes | FileSlice


class FetchPartition(NamedTuple):
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class PackedPartitions(Sequence[FetchPartition]):
    """Partitions of a topic as they came, each of the same size, and unpacked when it is looked at."""

    __slots__ = ("_unpack", "packed")

    @classmethod
    def read(
        cls, data: memoryview, size: int, unpack: Callable[[bytes], FetchPartition]
    ) -> PackedPartitions:
        return cls(
            list(itertools.chain.from_iterable(struct.iter_unpack(f"{size}s", data))), unpack
        )

    def __init__(self, packed: list[bytes], unpack: Callable[[bytes], FetchPartition]) -> None:
        self.packed = packed
        self._unpack = unpack

    def none(self) -> PackedPartitions:
        """No partitions, of a request of the same version."""
        return PackedPartitions([], self._unpack)

    def __len__(self) -> int:
        return len(self.packed)

    @overload
    def __getitem__(self, index: int) -> FetchPartition: ...
    @overload
    def __getitem__(self, index: slice) -> list[FetchPartition]: ...
    def __getitem__(self, index: int | slice) -> FetchPartition | list[FetchPartition]:
        if isinstance(index, slice):
            return list(map(self._unpack, self.packed[index]))
        return self._unpack(self.packed[index])

    def __iter__(self) -> Iterator[FetchPartition]:
        return map(self._unpack, self.packed)


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[Topic, Sequence[FetchPartition]]]
    forgotten: list[tuple[Topic, list[int]]]
    rack_id: str
    replica_epoch: int = -1  # the registration of the replica that asks
    by_reference: bool = False  # from this machine, where it can look into files

    @property
    def is_committed(self) -> bool:
        """Whether who asks reads committed records only."""
        return self.isolation_level == _READ_COMMITTED


class PartitionData(NamedTuple):
    """One partition of the answer. `diverging` is (epoch, end offset) where the log parted ways."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileSlice | FileReference | bytes | None = None
    diverging: tuple[int, int] | None = None


def decode_request(version: int, data: memoryview, position: int) -> FetchRequest:
    if version >= 15 and len(data) - position == _LONE_15.size:
        lone = _read_lone(data, position)
        if lone is not None:
            return lone
    flexible, by_id = version >= 12, version >= 13
    replica_id = -1
    if version <= 14:
        replica_id = INT32.unpack_from(data, position)[0]
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _WAIT_MIN_MAX_ISOLATION.unpack_from(
        data, position
    )
    position += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(data, position)
        position += 8
    count, position = read_count(data, position, flexible)
    topics = []
    partition_count = 0
    for _ in range(count):
        topic, position = read_topic(data, position, flexible, by_id)
        partitions, position = _read_partitions(version, data, position, flexible)
        topics.append((topic, partitions))
        partition_count += len(partitions)
        check_element_count(partition_count)
    forgotten: list[tuple[Topic, list[int]]] = []
    if version >= 7:
        forgotten, position = _read_forgotten(data, position, flexible, by_id)
    rack_id = ""
    if version >= 11:
        rack_id, position = read_string(data, position, flexible)
    replica_epoch = -1
    by_reference = False
    if version >= 15:
        replica_id, replica_epoch, by_reference = _read_request_tags(data, position)
    elif flexible:
        skip_tags(data, position)
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation,
        session_id, session_epoch, topics, forgotten, rack_id, replica_epoch,
        by_reference,
    )  # fmt: skip


def _read_lone(data: memoryview, position: int) -> FetchRequest | None:
    """A request for one partition, read at once; None if it is no such request.

    One reader of one partition asks a thousand times a second, and waits for each answer.
    """
    (
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, topic_id,
        partitions, index, epoch, offset, last_epoch, log_start, bytes_max, *counts,
    ) = _LONE_15.unpack_from(data, position)  # fmt: skip
    if (topics, partitions, *counts) != _LONE_COUNTS:
        return None
    partition = FetchPartition(index, epoch, offset, last_epoch, log_start, bytes_max)
    return FetchRequest(
        -1, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch,
        [(topic_of_id(topic_id), [partition])], [], "",
    )  # fmt: skip


def _read_partitions(
    version: int, data: memoryview, position: int, flexible: bool
) -> tuple[Sequence[FetchPartition], int]:
    count, position = read_count(data, position, flexible)
    if version >= 12:
        return _read_tagged_partitions(data, position, count)
    if version >= 9:
        size, unpack = _PARTITION_9.size, _unpack_9
    elif version >= 5:
        size, unpack = _PARTITION_5.size, _unpack_5
    else:
        size, unpack = _PARTITION_4.size, _unpack_4
    end = position + count * size
    if end > len(data):
        raise IndexError("the partitions end too early")
    return PackedPartitions.read(data[position:end], size, unpack), end


def _unpack_4(packed: bytes) -> FetchPartition:
    index, offset, bytes_max = _PARTITION_4.unpack(packed)
    return FetchPartition(index, -1, offset, -1, -1, bytes_max)


def _unpack_5(packed: bytes) -> FetchPartition:
    index, offset, log_start, bytes_max = _PARTITION_5.unpack(packed)
    return FetchPartition(index, -1, offset, -1, log_start, bytes_max)


def _unpack_9(packed: bytes) -> FetchPartition:
    index, epoch, offset, log_start, bytes_max = _PARTITION_9.unpack(packed)
    return FetchPartition(index, epoch, offset, -1, log_start, bytes_max)


def _unpack_12(packed: bytes) -> FetchPartition:
    return FetchPartition._make(_UNTAGGED_12.unpack(packed))


def _read_tagged_partitions(
    data: memoryview, position: int, count: int
) -> tuple[Sequence[FetchPartition], int]:
    """Version 12 and later. Nobody uses the tagged fields, so all partitions are mostly of one size."""
    size = _UNTAGGED_12.size
    end = position + count * size
    if end <= len(data) and not any(data[position + _PARTITION_12.size : end : size]):
        return PackedPartitions.read(data[position:end], size, _unpack_12), skip_tags(data, end)
    partitions = []
    for _ in range(count):
        partitions.append(FetchPartition(*_PARTITION_12.unpack_from(data, position)))
        position = skip_tags(data, position + _PARTITION_12.size)
    return partitions, skip_tags(data, position)


def _read_forgotten(
    data: memoryview, position: int, flexible: bool, by_id: bool
) -> tuple[list[tuple[Topic, list[int]]], int]:
    count, position = read_count(data, position, flexible)
    forgotten = []
    partition_count = 0
    for _ in range(count):
        topic, position = read_topic(data, position, flexible, by_id)
        here, position = read_count(data, position, flexible)
        end = position + 4 * here
        if end > len(data):
            raise ValueError("the forgotten partitions end too early")
        forgotten.append((topic, list(struct.unpack_from(f">{here}i", data, position))))
        partition_count += here
        check_element_count(partition_count)
        position = skip_tags(data, end) if flexible else end
    return forgotten, position


def _read_request_tags(data: memoryview, position: int) -> tuple[int, int, bool]:
    """From version 15 on: the replica's id and epoch, -1 without them; whether references will do."""
    count, position = read_uvarint(data, position)
    check_tag_count(count)
    fields, _ = read_tagged(data, position, count)
    replica_id = replica_epoch = -1
    if _REPLICA_STATE_TAG in fields:
        replica_id, replica_epoch = _REPLICA.unpack_from(fields[_REPLICA_STATE_TAG])
    machine = bytes(fields.get(BY_REFERENCE, b""))
    return replica_id, replica_epoch, machine == boot_id().encode()


def encode_response(
    version: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[Topic, Sequence[PartitionData | bytes]]],
    *,
    is_committed: bool = False,
) -> list[Part]:
    """The answer as memory and file ranges in order; adjoining pieces of memory are joined. A partition
    may be what `encode_quiet` made of it.

    As in Kafka, who reads committed records is told that no transaction was aborted; others are told
    nothing of transactions.
    """
    if version >= 13 and len(topics) == 1 and len(topics[0][1]) == 1:
        lone = _encode_lone(error_code, session_id, *topics[0], is_committed=is_committed)
        if lone is not None:
            return lone
    flexible = version >= 12
    aborted = write_count(0 if is_committed else -1, flexible)
    parts: list[Part] = []
    head = _HEAD.pack(0, error_code, session_id) if version >= 7 else INT32.pack(0)
    memory = [head, write_count(len(topics), flexible)]
    for topic, partitions in topics:
        memory.append(write_topic(topic, flexible))
        memory.append(write_count(len(partitions), flexible))
        for partition in partitions:
            if type(partition) is bytes:
                memory.append(partition)
                continue
            assert isinstance(partition, PartitionData)
            records = partition.records
            size = _size_sent(records)
            memory.append(_data_head(version, partition) + _data_rest(version, size, aborted))
            if isinstance(records, FileSlice):
                parts.append(b"".join(memory))
                parts.append(records)
                memory = []
            elif isinstance(records, bytes):
                memory.append(records)
            if flexible:
                memory.append(_data_tags(partition))
        if flexible:
            memory.append(b"\x00")
    if flexible:
        memory.append(b"\x00")
    if memory:
        parts.append(b"".join(memory))
    return parts


def encode_quiet(version: int, data: PartitionData, *, is_committed: bool) -> bytes:
    """A partition without records, as it stands in an answer."""
    aborted = write_count(0 if is_committed else -1, version >= 12)
    tags = b"\x00" if version >= 12 else b""
    return _data_head(version, data) + _data_rest(version, 0, aborted) + tags


def _encode_lone(
    error_code: int,
    session_id: int,
    topic: Topic,
    partitions: Sequence[PartitionData | bytes],
    *,
    is_committed: bool,
) -> list[Part] | None:
    """An answer of one partition with many records, from version 13 on; None if it is no such answer."""
    if not isinstance(partitions[0], PartitionData):
        return None
    index, error, high_watermark, last_stable, log_start, records, diverging = partitions[0]
    if not isinstance(records, FileSlice) or diverging is not None:
        return None
    assert not isinstance(topic, str)
    head = _LONE_DATA_13.pack(
        0, error_code, session_id, 2, topic.bytes, 2, index, error, high_watermark, last_stable,
        log_start, 1 if is_committed else 0, -1,
    )  # fmt: skip
    return [head + write_uvarint(records.size + 1), records, _THREE_TAGLESS]


def _size_sent(records: FileSlice | FileReference | bytes | None) -> int:
    if isinstance(records, FileSlice):
        return records.size
    return len(records) if isinstance(records, bytes) else 0


def _data_head(version: int, data: PartitionData) -> bytes:
    return _DATA_5.pack(*data[:5]) if version >= 5 else _DATA_4.pack(*data[:4])


def _data_rest(version: int, size: int, aborted: bytes) -> bytes:
    """What is between the head and the records, up to and with their length."""
    if version >= 12:
        return aborted + _NO_REPLICA + write_uvarint(size + 1)
    if version >= 11:
        return aborted + _NO_REPLICA + INT32.pack(size)
    return aborted + INT32.pack(size)


def _data_tags(data: PartitionData) -> bytes:
    fields = []
    if data.diverging is not None:
        fields.append((_DIVERGING_TAG, _DIVERGING.pack(*data.diverging) + b"\x00"))
    if isinstance(data.records, FileReference):
        fields.append((BY_REFERENCE, data.records.encode()))
    tags = [write_uvarint(len(fields))]
    for tag, value in fields:
        tags += (write_uvarint(tag), write_uvarint(len(value)), value)
    return b"".join(tags)
