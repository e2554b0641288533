"""How the metadata store keeps topics.

For a broker that is alone. `topics/{name}` is the topic: its id, partition count and own settings, as
JSON. It is written by one compare-and-swap, so a topic of 1,000 partitions is created as quickly as one
of one. `partitions/{topic}/{p}` is a partition's state where it differs from how every partition starts:
leader epoch 0 on the broker that holds it. Deleting a topic deletes both. `cluster/storage` names what the
disk held when the epochs were last raised.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.cluster.state import (
    PARTITIONS,
    TOPICS,
    TopicState,
    decode_topic,
    encode_topic,
    partition_key,
)
from penstock.errors import StorageError
from penstock.metadata.errors import StoreCorrupt, StoreError
from penstock.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    CommitResult,
    Compare,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)
from penstock.model import TopicPartition

_DELETING: Final = "deleting"
_STORAGE_KEY: Final = "cluster/storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as the store has it."""

    record: TopicState
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

    async def read_storage_id(self) -> str | None:
        """Of the disk for which epochs were last written; None if none ever were."""
        entry = await self._store.get(_STORAGE_KEY)
        return None if entry is None else entry.value.decode()

    async def write_epochs(self, epochs: Mapping[TopicPartition, int], storage_id: str) -> None:
        """The id comes last: if this is cut off, the next start finds the old one."""
        puts = [
            Put(key=partition_key(partition), value=b'{"leader_epoch":%d}' % epoch)
            for partition, epoch in epochs.items()
        ]
        await asyncio.gather(
            *(
                self._commit(Transaction(puts=tuple(puts[at : at + TRANSACTION_OPERATIONS_MAX])))
                for at in range(0, len(puts), TRANSACTION_OPERATIONS_MAX)
            )
        )
        await self._commit(Transaction(puts=(Put(key=_STORAGE_KEY, value=storage_id.encode()),)))

    async def insert(self, record: TopicState) -> StoredTopic:
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
        self, revision: int, record: TopicState, *, is_deleting: bool = False
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


def _encode_topic(record: TopicState, *, is_deleting: bool = False) -> bytes:
    if is_deleting:
        record = replace(record, extra={**record.extra, _DELETING: True})
    return encode_topic(record)


def _decode_topic(entry: Entry) -> StoredTopic:
    record = decode_topic(entry)
    extra = {name: value for name, value in record.extra.items() if name != _DELETING}
    return StoredTopic(
        record=replace(record, extra=extra),
        revision=entry.mod_revision,
        is_deleting=bool(record.extra.get(_DELETING, False)),
    )


def _decode_partition(entry: Entry) -> tuple[TopicPartition, int]:
    try:
        topic, _, index = entry.key.removeprefix(PARTITIONS).rpartition("/")
        return TopicPartition(topic, int(index)), int(json.loads(entry.value)["leader_epoch"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(
            f"{entry.key} in the metadata store is no partition: {error!r}"
        ) from error
