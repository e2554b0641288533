"""Commits, deletes and expires offsets: what is durable first, and what is seen only then."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from penstock.errors import ApiError, ErrorCode
from penstock.groups.driver import Entry, GroupDriver
from penstock.groups.messages import GroupState
from penstock.groups.offsets import CommittedOffset, NewOffset, OffsetTable, expired_offsets
from penstock.groups.storage import DeletedOffsets, stored_offset
from penstock.metadata.errors import StoreError
from penstock.metadata.store import Entry as StoreEntry
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

__all__ = ["OffsetKeeper"]

logger = logging.getLogger(__name__)

# Whatever the setting says, a note must fit in a write to the store: escaped six-fold, with its key.
METADATA_BYTES_LIMIT: Final = 128 * 1024
DELETE_ATTEMPTS_MAX: Final = 3
LOADED_AT_ONCE_MAX: Final = 2_000
NEVER: Final = sys.maxsize  # as a revision: no write is as late


class OffsetKeeper:
    """The offsets of all groups. See `GroupCoordinator` for the contracts of its methods."""

    def __init__(self, driver: GroupDriver, config: BrokerConfig) -> None:
        self._driver = driver
        self._retention_ms = config.offsets_retention_ms
        self._metadata_bytes_max = min(config.offset_metadata_bytes_max, METADATA_BYTES_LIMIT)

    async def load(self, entries: Iterable[StoreEntry]) -> None:
        for count, found in enumerate(entries):
            stored = stored_offset(found)
            entry = self._driver.get_or_create(stored.group_id)
            entry.offsets.put(stored.at, stored.value, stored.revision)
            if count % LOADED_AT_ONCE_MAX == LOADED_AT_ONCE_MAX - 1:
                await asyncio.sleep(0)  # a broker that takes over still serves the rest

    # -- commit and fetch -----------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, NewOffset],
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        retention_ms: int | None,
    ) -> dict[TopicPartition, ErrorCode]:
        driver = self._driver
        entry = driver.get(group_id)
        if entry is None:
            if generation_id >= 0:
                raise ApiError(ErrorCode.group_id_not_found, f"there is no group {group_id!r}")
            entry = driver.get_or_create(group_id)
        now = driver.now()
        error = entry.group.check_commit(member_id, group_instance_id, generation_id, now)
        values: dict[TopicPartition, CommittedOffset] = {}
        outcome = dict.fromkeys(offsets, error)
        if error is ErrorCode.none:
            expire_ms = None if retention_ms is None else now.wall_ms + retention_ms
            for at, offset in offsets.items():
                metadata = offset.metadata or ""
                if self._is_too_large(metadata):
                    outcome[at] = ErrorCode.offset_metadata_too_large
                    continue
                values[at] = CommittedOffset(
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=metadata,
                    commit_ms=now.wall_ms,
                    expire_ms=expire_ms,
                )
        write = self._begin_write(entry, values) if values else None
        driver.perform(entry)
        if write is not None:
            outcome |= await asyncio.shield(write)
        return outcome

    def _begin_write(
        self, entry: Entry, values: Mapping[TopicPartition, CommittedOffset]
    ) -> asyncio.Task[dict[TopicPartition, ErrorCode]]:
        """Write after those under way for the same partitions: a store need not keep their order."""
        under_way = entry.offset_writes
        before = {under_way[at] for at in values if at in under_way}
        task = self._driver.spawn(entry, self._write(entry, values, before))
        under_way.update(dict.fromkeys(values, task))

        def finished(done: asyncio.Task[dict[TopicPartition, ErrorCode]]) -> None:
            for at in values:
                if under_way.get(at) is done:
                    del under_way[at]

        task.add_done_callback(finished)
        return task

    async def _write(
        self,
        entry: Entry,
        values: Mapping[TopicPartition, CommittedOffset],
        before: Collection[asyncio.Task[Any]],
    ) -> dict[TopicPartition, ErrorCode]:
        if before:
            await asyncio.wait(before)
        revisions = await self._driver.storage.put_offsets(entry.group.group_id, values)
        for at, revision in revisions.items():
            entry.offsets.put(at, values[at], revision)
        return {
            at: ErrorCode.none if at in revisions else ErrorCode.coordinator_not_available
            for at in values
        }

    def _is_too_large(self, metadata: str) -> bool:
        size = len(metadata) if metadata.isascii() else len(metadata.encode())
        return size > self._metadata_bytes_max

    def of_group(self, group_id: str) -> OffsetTable:
        entry = self._driver.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            return OffsetTable()
        return entry.offsets

    # -- delete ---------------------------------------------------------------------------------

    async def delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        entry = self._driver.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.group_id_not_found, f"there is no group {group_id!r}")
        group = entry.group
        if group.state is not GroupState.EMPTY and not group.has_consumers:
            raise ApiError(ErrorCode.non_empty_group, f"group {group_id!r} has members")
        outcome = {
            at: ErrorCode.group_subscribed_to_topic
            if group.is_subscribed(at.topic)
            else ErrorCode.none
            for at in partitions
        }
        doomed = [at for at, error in outcome.items() if error is ErrorCode.none]
        try:
            await asyncio.shield(self._driver.run(self._delete(entry, doomed)))
        except StoreError as error:
            raise ApiError(ErrorCode.coordinator_not_available, str(error)) from error
        return outcome

    async def _delete(self, entry: Entry, doomed: Iterable[TopicPartition]) -> None:
        """Delete those that are there, as they are now; nothing else may keep changing them."""
        for _ in range(DELETE_ATTEMPTS_MAX):
            await self._driver.settle(entry)
            if await self._delete_once(entry, doomed):
                return
        raise ApiError(ErrorCode.coordinator_not_available, "the offsets keep changing; try again")

    async def _delete_once(self, entry: Entry, doomed: Iterable[TopicPartition]) -> bool:
        """Delete offsets unless they have changed in the store, and learn what it has. Done?"""
        offsets = entry.offsets
        revisions = {
            at: revision for at in doomed if (revision := offsets.revision(at)) is not None
        }
        return (await self._delete_revisions(entry, revisions)).complete

    async def _delete_revisions(
        self, entry: Entry, revisions: Mapping[TopicPartition, int]
    ) -> DeletedOffsets:
        offsets = entry.offsets
        outcome = await self._driver.storage.delete_offsets(entry.group.group_id, revisions)
        for at, revision in outcome.removed.items():
            offsets.remove(at, revision)
        for stored in outcome.changed:
            offsets.put(stored.at, stored.value, stored.revision)
        self._driver.forget_if_vacant(entry)
        return outcome

    async def forget_topics(self, is_gone: Callable[[str], bool]) -> None:
        """Delete the offsets of every topic that is gone. Commits for it must be refused already."""
        touched = list(self._driver.entries())
        for entry in touched:
            await self._driver.settle(entry)
        doomed = [
            (entry, topic)
            for entry in touched
            for topic in entry.offsets.topics()
            if is_gone(topic)
        ]
        if not doomed:
            return
        partitions = [(entry, list(entry.offsets.entries(topic))) for entry, topic in doomed]
        try:
            await self._driver.storage.delete_topic_offsets(
                [(entry.group.group_id, topic) for entry, topic in doomed]
            )
        except StoreError as error:
            raise ApiError(ErrorCode.coordinator_not_available, str(error)) from error
        for entry, kept in partitions:
            for at, _ in kept:
                entry.offsets.drop(at)
            self._driver.forget_if_vacant(entry)

    async def forget_deleted(self, topic: str) -> None:
        """Delete the offsets of a topic that are older than it is, or all if there is none now."""
        for entry in self._driver.entries():
            await self._driver.settle(entry)
        # What is deleted is what was there before the topic was looked at, and not what came since.
        doomed = self._older({topic: NEVER})
        if not doomed:
            return
        try:
            created = await self._driver.storage.topic_revision(topic)
            if created is not None:
                doomed = self._older({topic: created})
            await self._delete_exactly(doomed)
        except StoreError as error:
            raise ApiError(ErrorCode.coordinator_not_available, str(error)) from error

    async def forget_older(self, topics: Mapping[str, int]) -> None:
        """Delete every offset that is older than its topic, or whose topic is not one of `topics`."""
        names = {name for entry in self._driver.entries() for name in entry.offsets.topics()}
        await self._delete_exactly(self._older({name: topics.get(name, NEVER) for name in names}))

    def _older(self, topics: Mapping[str, int]) -> list[tuple[Entry, dict[TopicPartition, int]]]:
        """The offsets of each topic that were committed before a revision, with their own."""
        found = []
        for entry in self._driver.entries():
            offsets = entry.offsets
            older = {
                at: revision
                for topic in topics
                for at, _ in offsets.entries(topic)
                if (revision := offsets.revision(at)) is not None and revision < topics[topic]
            }
            if older:
                found.append((entry, older))
        return found

    async def _delete_exactly(self, doomed: list[tuple[Entry, dict[TopicPartition, int]]]) -> None:
        """Delete offsets as they were; one that has been committed since stays."""

        async def delete(entry: Entry, revisions: dict[TopicPartition, int]) -> None:
            while not (await self._delete_revisions(entry, revisions)).complete:
                current = {at: entry.offsets.revision(at) for at in revisions}
                revisions = {at: r for at, r in revisions.items() if current[at] == r}

        await asyncio.gather(*[delete(entry, revisions) for entry, revisions in doomed])

    # -- expire ---------------------------------------------------------------------------------

    async def expire(self, delete_group: Callable[[Entry], asyncio.Task[None]]) -> None:
        """One pass: delete offsets that are too old, and empty groups that have none left."""
        for entry in self._driver.entries():
            group = entry.group
            now_ms = self._driver.now().wall_ms
            doomed = expired_offsets(group, entry.offsets, now_ms, self._retention_ms)
            try:
                if doomed:
                    await asyncio.shield(self._driver.run(self._delete_once(entry, doomed)))
                if _is_abandoned(entry) and self._driver.get(group.group_id) is entry:
                    await asyncio.shield(delete_group(entry))
            except (StoreError, ApiError) as error:
                logger.warning("offsets of group %r were not expired: %s", group.group_id, error)
            await asyncio.sleep(0)  # many groups: let others work in between


def _is_abandoned(entry: Entry) -> bool:
    """Nobody is there or on the way, nothing is kept and nothing is being kept."""
    group = entry.group
    return group.state is GroupState.EMPTY and not (entry.offsets or group.pending or entry.writes)
