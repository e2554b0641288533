"""How the metadata store keeps topics.

`topics/{name}` is the topic: its id, partition count and own settings, as JSON. It is written by one
compare-and-swap, so a topic of 1,000 partitions is created as quickly as one of one.
`partitions/{topic}/{p}` is a partition's state where it differs from how every partition starts: leader
epoch 0 on the broker that holds it. Deleting a topic deletes both.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import StorageError
from penstock.metadata.errors import StoreCorrupt, StoreError
from penstock.metadata.store import (
    CommitResult,
    Compare,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)
from penstock.model import TopicPartition, TopicRecord

TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as the store has it."""

    record: TopicRecord
    revision: int
    is_deleting: bool = False  # gone for everyone; what is left is to remove its files


class TopicStore:
    """Reads and writes topics. Writes are durable on return, and `StorageError` if they can not be."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read_all(self) -> list[StoredTopic]:
        """`StoreCorrupt` if one of them is no topic: what it was is not guessed."""
        snapshot = await self._store.get_prefix(TOPICS)
        return [_decode_topic(entry) for entry in snapshot.entries]

    async def read_epochs(self) -> dict[TopicPartition, int]:
        """The leader epochs of partitions that have had more than one."""
        snapshot = await self._store.get_prefix(PARTITIONS)
        return dict(_decode_partition(entry) for entry in snapshot.entries)

    async def insert(self, record: TopicRecord) -> StoredTopic:
        """Write a new topic. Returns it, or the one of that name that is there already."""
        key = TOPICS + record.name
        result = await self._commit(
            Transaction(
                compares=(Compare(key=key, mod_revision=0),),
                puts=(Put(key=key, value=_encode_topic(record)),),
            )
        )
        if isinstance(result, Rejected):
            actual = result.mismatches[0].actual
            assert actual is not None, "the key was compared with absence"
            return _decode_topic(actual)
        return StoredTopic(record=record, revision=result.revision)

    async def replace(
        self, revision: int, record: TopicRecord, *, is_deleting: bool = False
    ) -> tuple[bool, StoredTopic | None]:
        """Write the topic if it is still at `revision`: whether it was, and what is there now.

        With `is_deleting` its partitions' keys go in the same transaction.
        """
        key = TOPICS + record.name
        partitions = Delete(key=f"{PARTITIONS}{record.name}/", prefix=True)
        result = await self._commit(
            Transaction(
                compares=(Compare(key=key, mod_revision=revision),),
                puts=(Put(key=key, value=_encode_topic(record, is_deleting=is_deleting)),),
                deletes=(partitions,) if is_deleting else (),
            )
        )
        if isinstance(result, Rejected):
            actual = result.mismatches[0].actual
            return False, None if actual is None else _decode_topic(actual)
        written = StoredTopic(record=record, revision=result.revision, is_deleting=is_deleting)
        return True, written

    async def erase(self, name: str, revision: int) -> None:
        """Remove the last trace of a topic, if it is still at `revision`."""
        key = TOPICS + name
        await self._commit(
            Transaction(
                compares=(Compare(key=key, mod_revision=revision),), deletes=(Delete(key=key),)
            )
        )

    async def _commit(self, transaction: Transaction) -> CommitResult:
        try:
            return await self._store.commit(transaction)
        except StoreError as error:
            raise StorageError(f"the metadata store can not write: {error}") from error


def _encode_topic(record: TopicRecord, *, is_deleting: bool = False) -> bytes:
    value: dict[str, Any] = {
        "id": str(record.id),
        "partitions": record.partition_count,
        "overrides": record.overrides,
    }
    if is_deleting:
        value["deleting"] = True
    return json.dumps(value, separators=(",", ":")).encode()


def _decode_topic(entry: Entry) -> StoredTopic:
    try:
        value = json.loads(entry.value)
        record = TopicRecord(
            name=entry.key.removeprefix(TOPICS),
            id=uuid.UUID(value["id"]),
            partition_count=int(value["partitions"]),
            overrides={str(name): str(text) for name, text in value["overrides"].items()},
        )
        is_deleting = bool(value.get("deleting", False))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(f"{entry.key} in the metadata store is no topic: {error!r}") from error
    return StoredTopic(record=record, revision=entry.mod_revision, is_deleting=is_deleting)


def _decode_partition(entry: Entry) -> tuple[TopicPartition, int]:
    try:
        topic, _, index = entry.key.removeprefix(PARTITIONS).rpartition("/")
        return TopicPartition(topic, int(index)), int(json.loads(entry.value)["leader_epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(
            f"{entry.key} in the metadata store is no partition: {error!r}"
        ) from error
