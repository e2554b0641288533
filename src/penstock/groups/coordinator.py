"""The group coordinator: what the front doors call for consumer groups and their offsets."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.clock import Clock
from penstock.errors import ApiError, ErrorCode
from penstock.groups.driver import Entry, GroupDriver
from penstock.groups.messages import (
    NO_MEMBER,
    Assignor,
    GroupDescription,
    GroupState,
    JoinRequest,
    JoinResult,
    Leaving,
    SyncRequest,
    SyncResult,
)
from penstock.groups.offset_keeper import OffsetKeeper
from penstock.groups.offsets import NewOffset, OffsetTable
from penstock.groups.storage import GroupStorage, Kept
from penstock.metadata.errors import StoreError
from penstock.metadata.store import MetadataStore
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

__all__ = ["GROUP_TYPE", "GroupCoordinator", "GroupOverview"]

logger = logging.getLogger(__name__)

GROUP_TYPE = "classic"


class _Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    group_id: str
    protocol_type: str  # "" for a group that only holds offsets
    state: GroupState


class GroupCoordinator:
    """Coordinates every group of this broker. Belongs to one event loop.

    `load` first, `start` then, `stop` last. Before `load` is done requests are told so; after `stop`
    they, and whoever still waits, are sent to look for the coordinator anew.

    In a cluster there is one for each slot of groups that a broker holds: see `SpreadCoordinator`.

    What is answered is durable: assignments before members get them, offsets before they are
    acknowledged or seen. If the store fails, the answer is COORDINATOR_NOT_AVAILABLE, which clients
    retry, and the group is as it was.
    """

    def __init__(
        self, store: MetadataStore, config: BrokerConfig, clock: Clock, broker_id: int | None = None
    ) -> None:
        self._broker_id = config.broker_id if broker_id is None else broker_id
        self._config = config
        self._driver = GroupDriver(GroupStorage(store), config, clock)
        self._offsets = OffsetKeeper(self._driver, config)
        self._phase = _Phase.LOADING
        self._expiry: asyncio.Task[None] | None = None

    # -- who coordinates what -------------------------------------------------------------------

    def of(self, group_id: str) -> GroupCoordinator:  # noqa: ARG002
        """The coordinator to ask about the group: this one. In a cluster it may be elsewhere."""
        return self

    def coordinator_of(self, group_id: str) -> int | None:  # noqa: ARG002
        """The id of the broker that coordinates the group: this one."""
        return self._broker_id

    # -- life -----------------------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return self._phase is not _Phase.LOADING

    async def load(self, kept: Kept | None = None) -> None:
        """Read groups and offsets; members go on in their generation, with a full session each.

        `kept` is what somebody else has read of the store; then offsets of topics that are gone are
        deleted, too. `StoreError` if the store cannot be read or holds what is neither.
        """
        storage = self._driver.storage
        if kept is None:
            kept = await storage.read()
        for record in await storage.load_groups(kept.groups):
            self._driver.restore(record)
        await self._offsets.load(kept.offsets)
        if kept.topics is not None:
            await self._offsets.forget_older(kept.topics)
        if self._phase is _Phase.LOADING:
            self._phase = _Phase.ACTIVE

    async def start(self) -> None:
        """Begin to expire offsets, every `retention_check_interval_ms`."""
        self._expiry = asyncio.get_running_loop().create_task(self._expire_for_ever())

    def retire(self) -> None:
        """Take no more requests, and answer whoever waits. What is on its way to the store goes on."""
        if self._phase is _Phase.STOPPED:
            return
        self._phase = _Phase.STOPPED
        if self._expiry is not None:
            self._expiry.cancel()
        for entry in self._driver.entries():
            entry.group.unload()
            self._driver.perform(entry)

    async def stop(self) -> None:
        """`retire`, and wait for what is on its way to the store. Idempotent."""
        self.retire()
        if self._expiry is not None:
            await asyncio.wait([self._expiry])
            self._expiry = None
        await self._driver.finish()

    def tick(self) -> None:
        """Do what is due by the clock. Timers do it by themselves; for a clock that is moved by hand."""
        self._driver.tick()

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_check_interval_ms / 1000)
            try:
                await self.expire()
            except Exception:
                logger.exception("expiring offsets failed; it is tried again")

    # -- membership -----------------------------------------------------------------------------

    async def join(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        client_id: str | None,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocol_type: str,
        protocols: Sequence[Assignor],
        requires_member_id: bool,
        can_skip_assignment: bool,
    ) -> JoinResult:
        """Become a member of the next generation; returns when it begins, or with what speaks against.

        A group exists from its first join without a member id.
        """
        self._check_ready()
        _check_group_id(group_id)
        config = self._config
        if not (
            config.group_session_timeout_ms_min
            <= session_timeout_ms
            <= config.group_session_timeout_ms_max
        ):
            raise ApiError(
                ErrorCode.invalid_session_timeout,
                f"the session timeout must be {config.group_session_timeout_ms_min}"
                f" to {config.group_session_timeout_ms_max} ms",
            )
        if member_id == NO_MEMBER:
            entry = self._driver.get_or_create(group_id)
        else:
            entry = self._existing(group_id, ErrorCode.unknown_member_id)
        request = JoinRequest(
            member_id=member_id,
            new_member_id=f"{group_instance_id or client_id or 'member'}-{uuid.uuid4()}",
            group_instance_id=group_instance_id,
            client_id=client_id or "",
            client_host=client_host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple(protocols),
            requires_member_id=requires_member_id,
            can_skip_assignment=can_skip_assignment,
        )
        reply: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        entry.group.join(request, reply, self._driver.now())
        self._driver.perform(entry)
        return await reply

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """The member's assignment; waits for the leader to bring it and for the store to keep it."""
        if self._phase is _Phase.LOADING:
            # The rebalance it belonged to is gone; older clients do not expect to hear of loading.
            raise ApiError(ErrorCode.rebalance_in_progress)
        self._check_ready()
        _check_group_id(group_id)
        entry = self._existing(group_id, ErrorCode.unknown_member_id)
        reply: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        entry.group.sync(request, reply, self._driver.now())
        self._driver.perform(entry)
        return await reply

    def heartbeat(
        self,
        group_id: str,
        *,
        member_id: str,
        generation_id: int,
        group_instance_id: str | None = None,
    ) -> None:
        """The member lives. Raises REBALANCE_IN_PROGRESS when it has to join again."""
        if self._phase is _Phase.LOADING:
            return
        self._check_ready()
        _check_group_id(group_id)
        entry = self._existing(group_id, ErrorCode.unknown_member_id)
        error = entry.group.heartbeat(
            member_id, group_instance_id, generation_id, self._driver.now()
        )
        self._driver.perform(entry)
        if error is not ErrorCode.none:
            raise ApiError(error)

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[ErrorCode]:
        """Remove members; one answer for each, in order."""
        self._check_ready()
        _check_group_id(group_id)
        entry = self._driver.get(group_id)
        if entry is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        if entry.group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.coordinator_not_available)
        now = self._driver.now()
        errors = [entry.group.leave(one, now) for one in leaving]
        self._driver.perform(entry)
        return errors

    # -- admin ----------------------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription:
        """The group as it is now, or GROUP_ID_NOT_FOUND."""
        self._check_ready()
        entry = self._existing(group_id, ErrorCode.group_id_not_found)
        if entry.group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.group_id_not_found, f"Group {group_id} is being deleted.")
        return entry.group.describe()

    def list(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupOverview]:
        """All groups, or those in one of `states` and of one of `types` (any case; empty: all)."""
        self._check_ready()
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        if wanted_types and GROUP_TYPE not in wanted_types:
            return []
        return [
            GroupOverview(
                group_id=entry.group.group_id,
                protocol_type=entry.group.protocol_type or "",
                state=entry.group.state,
            )
            for entry in self._driver.entries()
            if not wanted_states or entry.group.state.lower() in wanted_states
        ]

    async def delete(self, group_id: str) -> None:
        """Delete an empty group and its offsets; NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND otherwise."""
        self._check_ready()
        entry = self._existing(group_id, ErrorCode.group_id_not_found)
        await asyncio.shield(self._delete(entry))

    def _delete(self, entry: Entry) -> asyncio.Task[None]:
        error = entry.group.begin_delete()
        if error is not ErrorCode.none:
            raise ApiError(error, f"group {entry.group.group_id!r} can not be deleted")
        self._driver.perform(entry)
        return self._driver.run(self._finish_delete(entry))

    async def _finish_delete(self, entry: Entry) -> None:
        await self._driver.settle(entry)
        try:
            await self._driver.storage.delete_group(entry.group.group_id)
        except StoreError as failure:
            if self._phase is not _Phase.STOPPED:
                entry.group.revive()
            raise ApiError(ErrorCode.coordinator_not_available, str(failure)) from failure
        self._driver.forget(entry)

    # -- offsets --------------------------------------------------------------------------------

    async def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, NewOffset],
        *,
        member_id: str = NO_MEMBER,
        group_instance_id: str | None = None,
        generation_id: int = -1,
        retention_ms: int | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Keep offsets, from a member of the current generation or (-1) for a group without members.

        Returns when they are durable, with an error for each. `retention_ms` is for these offsets only
        (None: as the broker is set). The caller has checked that the topics exist. GROUP_ID_NOT_FOUND if
        a generation is claimed of a group that does not exist.
        """
        self._check_ready()
        return await self._offsets.commit(
            group_id,
            offsets,
            member_id=member_id,
            group_instance_id=group_instance_id,
            generation_id=generation_id,
            retention_ms=retention_ms,
        )

    def offsets(self, group_id: str) -> OffsetTable:
        """The group's durable offsets, to read at once; empty if there is no such group."""
        self._check_ready()
        return self._offsets.of_group(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete offsets; GROUP_SUBSCRIBED_TO_TOPIC for those that consumers are at work on.

        GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if members are there that are no consumers.
        """
        self._check_ready()
        _check_group_id(group_id)
        return await self._offsets.delete(group_id, partitions)

    async def forget_topic(self, name: str) -> None:
        """The topic was deleted: delete its offsets, in every group.

        Call it when the topic is out of the catalog, so that no more of them are committed.
        COORDINATOR_NOT_AVAILABLE if it could not be done: call it, or `retain_topics`, again.
        """
        await self._offsets.forget_topics(lambda topic: topic == name)

    async def retain_topics(self, exists: Callable[[str], bool]) -> None:
        """Delete the offsets of topics that do not exist, as a crash may have left them. After `load`."""
        await self._offsets.forget_topics(lambda topic: not exists(topic))

    async def forget_deleted(self, topic: str) -> None:
        """As `forget_topic`, where the topic may be there again already, with offsets of its own.

        Only offsets older than the topic, as the store has it now, are deleted: those committed for the
        one that was deleted.
        """
        await self._offsets.forget_deleted(topic)

    async def expire(self) -> None:
        """One pass of expiry: offsets that are too old, and empty groups without any. See `start`."""
        await self._offsets.expire(self._delete)

    # -- checks ---------------------------------------------------------------------------------

    def _check_ready(self) -> None:
        if self._phase is _Phase.LOADING:
            raise ApiError(ErrorCode.coordinator_load_in_progress, "the groups are being loaded")
        if self._phase is _Phase.STOPPED:
            raise ApiError(ErrorCode.coordinator_not_available, "the coordinator has stopped")

    def _existing(self, group_id: str, otherwise: ErrorCode) -> Entry:
        entry = self._driver.get(group_id)
        if entry is None:
            raise ApiError(otherwise, f"Group {group_id} not found.")
        return entry


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise ApiError(ErrorCode.invalid_group_id, "the group id is empty")
