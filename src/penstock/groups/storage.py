"""Groups and offsets in the metadata store: what is written together, and how it is read back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.groups import records
from penstock.groups.messages import GroupRecord
from penstock.groups.offsets import CommittedOffset
from penstock.groups.records import Parts
from penstock.metadata.errors import StoreCorrupt, StoreError
from penstock.metadata.store import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Delete,
    Entry,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)
from penstock.model import TopicPartition

__all__ = ["DeletedOffsets", "GroupStorage", "Kept", "StoredOffset", "stored_offset"]

logger = logging.getLogger(__name__)

# A transaction has room left for the compare that fences a coordinator.
OPERATIONS_MAX: Final = TRANSACTION_OPERATIONS_MAX - 1
BYTES_MAX: Final = TRANSACTION_BYTES_MAX - 1024
PART_BYTES_MAX: Final = 512 * 1024
# From here on encoding takes long enough to be worth a thread.
MEMBERS_ON_LOOP_MAX: Final = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffset:
    group_id: str
    at: TopicPartition
    value: CommittedOffset
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the store holds of groups: those of a coordinator, or all."""

    groups: Sequence[Entry]
    offsets: Sequence[Entry]
    # Every topic, and the revision it was created at, read after the offsets. None: not looked at.
    topics: Mapping[str, int] | None = None


@dataclass(slots=True)
class DeletedOffsets:
    """What became of a deletion."""

    # Nothing older than this revision is in the store.
    removed: dict[TopicPartition, int] = field(default_factory=dict)
    # Not deleted, as they were not what the caller knew; the caller's view is to be mended by these.
    changed: list[StoredOffset] = field(default_factory=list)
    complete: bool = True  # False: some were not even tried, as others had changed


class GroupStorage:
    """Reads and writes on one `MetadataStore`. Raises its `StoreError`s, unless it says otherwise.

    Writes of one group's record must not overlap; everything else may.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._parts: dict[str, Parts] = {}  # of the groups whose record is kept in parts

    # -- groups ---------------------------------------------------------------------------------

    async def read(self) -> Kept:
        """All groups and offsets there are."""
        groups = await self._store.get_prefix(records.GROUPS)
        offsets = await self._store.get_prefix(records.OFFSETS)
        return Kept(groups=groups.entries, offsets=offsets.entries)

    async def load_groups(self, entries: Iterable[Entry]) -> list[GroupRecord]:
        """The groups in `entries`. Parts that a crash left behind are deleted."""
        values = {entry.key: entry.value for entry in entries}
        loaded = []
        used = set()
        for key in [key for key in values if key.count("/") == 1]:
            value = values[key]
            used.add(key)
            parts = records.decode_parts(key, value)
            if parts is not None:
                keys = [f"{key}/{parts.version}/{index:06d}" for index in range(parts.count)]
                missing = [part for part in keys if part not in values]
                if missing:
                    raise StoreCorrupt(f"{missing[0]} is missing in the metadata store")
                value = b"".join(values[part] for part in keys)
                used.update(keys)
            record = records.decode_group(key, value)
            if parts is not None:
                self._parts[record.group_id] = parts
            loaded.append(record)
        leftovers = [Delete(key=key) for key in values if key not in used]
        await self._delete_all(leftovers)
        return loaded

    async def save_group(self, record: GroupRecord) -> None:
        """Make `record` durable in the place of the one before; a crash leaves one of the two."""
        group_id = record.group_id
        if len(record.members) > MEMBERS_ON_LOOP_MAX:
            value = await asyncio.to_thread(records.encode_group, record)
        else:
            value = records.encode_group(record)
        old = self._parts.get(group_id)
        new: Parts | None = None
        if len(value) > PART_BYTES_MAX:
            slices = [
                value[start : start + PART_BYTES_MAX]
                for start in range(0, len(value), PART_BYTES_MAX)
            ]
            new = Parts(version=old.version + 1 if old else 1, count=len(slices))
            for index, part in enumerate(slices):
                await self._store.put(records.part_key(group_id, new.version, index), part)
            value = records.encode_parts(new)
        deletes: tuple[Delete, ...] = ()
        if old is not None:
            deletes = (Delete(key=records.parts_prefix(group_id, old.version), prefix=True),)
        put = Put(key=records.group_key(group_id), value=value)
        await self._store.commit(Transaction(puts=(put,), deletes=deletes))
        if new is not None:
            self._parts[group_id] = new
        else:
            self._parts.pop(group_id, None)

    async def delete_group(self, group_id: str) -> None:
        """Delete the group and all its offsets, at once."""
        await self._store.commit(
            Transaction(
                deletes=(
                    Delete(key=records.group_key(group_id)),
                    Delete(key=records.parts_prefix(group_id), prefix=True),
                    Delete(key=records.offsets_prefix(group_id), prefix=True),
                )
            )
        )
        self._parts.pop(group_id, None)

    # -- offsets --------------------------------------------------------------------------------

    async def topic_revision(self, topic: str) -> int | None:
        """The revision that the topic was created at; None if there is no such topic now."""
        entry = await self._store.get(records.topic_key(topic))
        return None if entry is None else entry.create_revision

    async def put_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Make offsets durable; returns the revision of each that is. A store error is only logged.

        One transaction, unless there are more than it may hold; those go side by side.
        """
        puts = [
            (at, Put(key=records.offset_key(group_id, at), value=records.encode_offset(value)))
            for at, value in offsets.items()
        ]
        batches = list(_batches((len(put.key) + len(put.value), (at, put)) for at, put in puts))
        if len(batches) == 1:
            revisions = [await self._put(batches[0])]
        else:
            revisions = await asyncio.gather(*[self._put(batch) for batch in batches])
        return {
            at: revision
            for batch, revision in zip(batches, revisions, strict=True)
            if revision is not None
            for at, _ in batch
        }

    async def _put(self, batch: list[tuple[TopicPartition, Put]]) -> int | None:
        try:
            result = await self._store.commit(Transaction(puts=tuple([put for _, put in batch])))
        except StoreError as error:
            logger.warning("%d offsets could not be stored: %s", len(batch), error)
            return None
        return result.revision

    async def delete_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> DeletedOffsets:
        """Delete each offset that is still at the revision given, batch by batch, all or none."""
        outcome = DeletedOffsets()
        keys = {records.offset_key(group_id, at): at for at in offsets}
        for batch in _batches((2 * len(key), (key, at)) for key, at in keys.items()):
            result = await self._store.commit(
                Transaction(
                    compares=tuple(Compare(key=k, mod_revision=offsets[at]) for k, at in batch),
                    deletes=tuple(Delete(key=key) for key, _ in batch),
                )
            )
            if not isinstance(result, Rejected):
                outcome.removed.update((at, result.revision) for _, at in batch)
                continue
            outcome.complete = False
            for mismatch in result.mismatches:
                if mismatch.actual is None:
                    outcome.removed[keys[mismatch.compare.key]] = result.revision + 1
                else:
                    outcome.changed.append(stored_offset(mismatch.actual))
        return outcome

    async def delete_topic_offsets(self, topics: Iterable[tuple[str, str]]) -> None:
        """Delete every offset of each (group, topic). Several transactions, if there are many."""
        await self._delete_all(
            [
                Delete(key=records.offsets_prefix(group_id, topic), prefix=True)
                for group_id, topic in topics
            ]
        )

    async def _delete_all(self, deletes: Iterable[Delete]) -> None:
        batches = _batches((len(delete.key), delete) for delete in deletes)
        await asyncio.gather(
            *[self._store.commit(Transaction(deletes=tuple(batch))) for batch in batches]
        )


def stored_offset(entry: Entry) -> StoredOffset:
    group_id, at = records.parse_offset_key(entry.key)
    value = records.decode_offset(entry.key, entry.value)
    return StoredOffset(group_id=group_id, at=at, value=value, revision=entry.mod_revision)


def _batches(sized: Iterable[tuple[int, T]]) -> Iterator[list[T]]:
    """Items, each with its bytes, in lists that fit in a transaction."""
    batch: list[T] = []
    batch_bytes = 0
    for size, item in sized:
        if batch and (len(batch) == OPERATIONS_MAX or batch_bytes + size > BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += size
    if batch:
        yield batch
