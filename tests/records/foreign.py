"""Record batches made and read by kafka-python and aiokafka, so that no code of ours checks itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords


class Made(NamedTuple):
    """A record as a client gives it."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


BUILDERS: dict[str, Any] = {"kafka-python": KafkaPythonBuilder, "aiokafka": AiokafkaBuilder}
PARSERS: dict[str, Any] = {"kafka-python": KafkaPythonRecords, "aiokafka": AiokafkaRecords}


def build(library: str, records: Sequence[Made], codec: int = 0) -> bytes:
    """One batch, as the library's producer sends it."""
    builder = BUILDERS[library](
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for offset, record in enumerate(records):
        builder.append(
            offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    return bytes(builder.build())


def parse(library: str, data: bytes) -> list[tuple[int, Made]]:
    """Offset and content of every record, as the library's consumer reads them."""
    found = []
    batches = PARSERS[library](data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch is not None
        for record in batch:
            headers = [(name, bytes(content)) for name, content in record.headers]
            content = Made(record.timestamp, record.key, record.value, tuple(headers))
            found.append((record.offset, content))
    return found
