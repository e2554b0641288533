"""Record batches made and read by kafka-python, so that no code of ours checks itself."""

from __future__ import annotations

import struct
import time
from typing import Final

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

HEADER_BYTES: Final = 61
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def make_batch(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    compression: int = 0,
    timestamp_ms: int | None = None,
) -> bytes:
    """One batch with a record for each value, of now unless told: old ones fall to retention."""
    if timestamp_ms is None:
        timestamp_ms = time.time_ns() // 1_000_000
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 30,
    )
    for offset, value in enumerate(values):
        builder.append(offset, timestamp=timestamp_ms, key=None, value=value, headers=[])
    return bytes(builder.build())


def records_in(data: bytes | None) -> list[tuple[int, bytes]]:
    """Offset and value of every record in whole batches."""
    found = []
    batches = MemoryRecords(data or b"")
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += [(record.offset, record.value) for record in batch]
    return found


def patched(batch: bytes, position: int, layout: str, value: int, *, fix_crc: bool = True) -> bytes:
    """The batch with one header field changed; its CRC is made right again unless told not to."""
    from crc32c import crc32c

    data = bytearray(batch)
    struct.pack_into(layout, data, position, value)
    if fix_crc:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)
