"""The group coordinators of one broker in a cluster: it claims its slots, loads them, hands them over.

What should be is always reckoned from what is: the brokers that are there, the claims in the store, our
lease. One task compares the two whenever something has changed, and does what is missing:

    the slot is ours and free                 claim it, on our lease; load it; serve
    the slot is ours and held by an earlier   take the claim over by its revision; load; serve
      incarnation of ours
    a write of ours may be lost               write the claim anew, which shuts that write out; load; serve
    we hold it and it is somebody else's      stop serving, finish what is being written, delete the claim

So it does not matter which answer of the store was lost: the next look tells. Two coordinators may
believe in the same slot for a moment (one was paused, or cut off); the claim's revision, compared by each
of their writes, lets only the later one write, and it has read everything after it claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock.clock import Clock
from penstock.errors import ApiError, ErrorCode
from penstock.groups import records
from penstock.groups.coordinator import GroupCoordinator, GroupOverview
from penstock.groups.slots import (
    COORDINATORS,
    SLOTS,
    Claim,
    Claims,
    owner_of,
    parse_slot_key,
    slot_key,
    slot_of,
)
from penstock.groups.storage import Kept
from penstock.metadata.errors import (
    LeaseLost,
    StoreCorrupt,
    StoreError,
)
from penstock.metadata.fenced import FencedStore
from penstock.metadata.store import (
    Compare,
    Delete,
    Entry,
    Lease,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)
from penstock.metadata.watching import PrefixWatcher, apply_refused
from penstock.settings import BrokerConfig

__all__ = ["SpreadCoordinator"]

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
_CORRUPT_RETRY_S: Final = 30.0  # somebody has to mend it by hand


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A slot that we hold."""

    slot: int
    revision: int  # of our claim
    coordinator: GroupCoordinator


class SpreadCoordinator:
    """The groups of all slots that this broker holds. Belongs to one event loop.

    `holds_lease` says whether our registration's lease is held for certain at this moment: without it,
    somebody else may have taken over, and nothing is answered from memory.

    `start` first. Then it is told what it has to know: `registered` and `unregistered`, and
    `brokers_changed` with the ids of all brokers that are there to stay. `leave` hands over, `stop` ends.
    """

    def __init__(
        self,
        store: MetadataStore,
        config: BrokerConfig,
        clock: Clock,
        broker_id: int,
        *,
        holds_lease: Callable[[], bool],
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._broker_id = broker_id
        self._holds_lease = holds_lease
        self._brokers: frozenset[int] = frozenset()
        self._lease: Lease | None = None
        self._claim = Claim(broker=broker_id, incarnation="")  # as of now; for use with _lease
        self._leaves = False
        self._claims = Claims()
        self._held: dict[int, _Held] = {}
        # The revision of the last claim that we wrote under, by slot. A write may have been lost there,
        # so nobody reads and goes on under the same.
        self._used: dict[int, int] = {}
        # Topics deleted since the store was last read for slots: what was read may still have them.
        self._deleted_while_loading: list[str] = []
        self._changed = asyncio.Event()
        self._work = asyncio.Lock()  # one at a time changes claims
        slots = [slot_key(slot) for slot in range(SLOTS)]
        self._watcher = PrefixWatcher(store, COORDINATORS, self._see, lambda _: slots)
        self._reconciling: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to watch the claims, and to claim what is ours once we are `registered`."""
        self._watcher.start_soon()
        self._reconciling = asyncio.create_task(self._reconcile_for_ever())

    async def stop(self) -> None:
        """Answer whoever waits, and wait for what is on its way to the store. Idempotent.

        Claims stay until the lease ends: `leave` before, or after, to let them go.
        """
        await self._watcher.stop()
        if self._reconciling is not None:
            self._reconciling.cancel()
            await asyncio.wait([self._reconciling])
            self._reconciling = None
        self._drop_all()
        while self._retiring:
            await asyncio.wait(set(self._retiring))

    def registered(self, lease: Lease, incarnation: str) -> None:
        """A registration has begun: claims go on its lease. Those of the one before are void."""
        self._drop_all()
        self._lease, self._leaves = lease, False
        self._claim = Claim(broker=self._broker_id, incarnation=incarnation)
        self._changed.set()

    def unregistered(self) -> None:
        """The registration is over: others may take our slots from now on."""
        self._lease = None
        self._drop_all()

    def brokers_changed(self, ids: Collection[int]) -> None:
        """These brokers are registered and not about to leave."""
        if self._brokers != frozenset(ids):
            self._brokers = frozenset(ids)
            self._changed.set()

    async def leave(self) -> None:
        """Hand over every slot, and take none until the next registration. While the lease lasts."""
        self._leaves = True
        async with self._work:
            if self._lease is not None:
                await self._release(self._claims.of_broker(self._broker_id))

    def tick(self) -> None:
        """Do what is due by the clock: see `GroupCoordinator.tick`."""
        for held in list(self._held.values()):
            held.coordinator.tick()

    # -- for the front doors --------------------------------------------------------------------

    def of(self, group_id: str) -> GroupCoordinator:
        """The group's coordinator, if it is here; NOT_COORDINATOR otherwise.

        Use it at once: after an `await` it may be somewhere else.
        """
        if not group_id:
            raise ApiError(ErrorCode.invalid_group_id, "the group id is empty")
        held = self._held.get(slot_of(group_id))
        if held is None or not self._holds_lease():
            raise ApiError(ErrorCode.not_coordinator, "this broker does not coordinate the group")
        return held.coordinator

    def coordinator_of(self, group_id: str) -> int | None:
        """The id of the broker that coordinates the group now, as far as is known; None: nobody."""
        slot = slot_of(group_id)
        claim = self._claims.get(slot)
        if claim is None:
            return None
        if claim.broker == self._broker_id and not (slot in self._held and self._holds_lease()):
            return None  # on its way to, or from, us
        return claim.broker

    def list(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupOverview]:
        """The groups of this broker: see `GroupCoordinator.list`."""
        if not self._holds_lease():
            raise ApiError(ErrorCode.coordinator_not_available, "this broker is not registered")
        return [
            group
            for held in self._held.values()
            for group in held.coordinator.list(states=states, types=types)
        ]

    async def forget_topic(self, name: str) -> None:
        """The topic was deleted, in the store too: delete its offsets, in every group of this broker.

        It may be there again already: what was committed for the new one stays. Returns when it is done,
        however long that takes; a slot that is loaded, or taken, meanwhile does it by itself.
        """
        loaded = [held for held in self._held.values() if held.coordinator.is_loaded]
        if len(loaded) < len(self._held):
            self._deleted_while_loading.append(name)
        await asyncio.gather(*[self._forget_topic(held, name) for held in loaded])

    async def _forget_topic(self, held: _Held, name: str) -> None:
        while self._held.get(held.slot) is held:
            try:
                await held.coordinator.forget_deleted(name)
            except ApiError as error:
                logger.warning("offsets of topic %s are not deleted yet: %s", name, error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    # -- what is --------------------------------------------------------------------------------

    def _see(self, key: str, value: bytes | None, revision: int) -> None:
        """A slot's claim was so at `revision`."""
        slot = parse_slot_key(key)
        if slot is None:
            return
        try:
            claim = None if value is None else Claim.decode(key, value)
        except StoreCorrupt as error:
            logger.error("%s", error)
            return
        if not self._claims.see(slot, claim, revision):
            return
        held = self._held.get(slot)
        if held is not None and held.revision != revision:
            logger.warning("the groups of slot %d have been taken from this broker", slot)
            self._drop(slot)
        if claim != self._claim:  # what we wrote ourselves is no news
            self._changed.set()

    # -- what should be -------------------------------------------------------------------------

    async def _reconcile_for_ever(self) -> None:
        retry_s: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await self._changed.wait()
            self._changed.clear()
            try:
                async with self._work:
                    retry_s = await self._reconcile()
            except Exception:
                logger.exception("looking after the groups' slots failed; it is tried again")
                retry_s = _RETRY_S

    async def _reconcile(self) -> float | None:
        """Do what is missing, as far as it can be done now; when to look again, if it is not done."""
        if self._lease is None:
            return None
        ours = set() if self._leaves else set(self._own_slots())
        given_up = [slot for slot in self._claims.of_broker(self._broker_id) if slot not in ours]
        wanted = [slot for slot in ours if slot not in self._held]
        done = await self._release(given_up)
        done &= all(await asyncio.gather(*[self._take(slot) for slot in wanted]))
        retry_s = await self._load_all()
        return retry_s if done else _RETRY_S

    def _own_slots(self) -> Iterable[int]:
        return [slot for slot in range(SLOTS) if owner_of(slot, self._brokers) == self._broker_id]

    # -- claiming -------------------------------------------------------------------------------

    async def _take(self, slot: int) -> bool:
        """Take the slot unless another broker has it. False: it is to be tried again."""
        lease, claim = self._lease, self._claim
        if lease is None:
            return True
        found, revision = self._claims.get(slot), self._claims.revision(slot)
        if found is not None and found.broker != self._broker_id:
            return True  # we hear of it when it is free
        if found == claim and revision > self._used.get(slot, 0):
            self._hold(slot, revision)  # the answer to our claim was lost
            return True
        key = slot_key(slot)
        transaction = Transaction(
            compares=(Compare(key=key, mod_revision=0 if found is None else revision),),
            puts=(Put(key=key, value=claim.encode(), lease_id=lease.id),),
        )
        try:
            result = await self._store.commit(transaction)
        except (StoreError, LeaseLost) as error:
            logger.warning("the groups of slot %d could not be claimed: %s", slot, error)
            return False
        if isinstance(result, Rejected):
            apply_refused(self._see, result)
            return True  # if there is something to do now, we have been woken
        self._claims.see(slot, claim, result.revision)
        is_ours = self._claims.revision(slot) == result.revision
        if is_ours and self._lease is lease and not self._leaves:
            self._hold(slot, result.revision)
        return True

    def _hold(self, slot: int, revision: int) -> None:
        self._used[slot] = revision
        fence = Compare(key=slot_key(slot), mod_revision=revision)
        store = FencedStore(self._store, fence, partial(self._failed, slot, revision))
        coordinator = GroupCoordinator(store, self._config, self._clock, self._broker_id)
        self._held[slot] = _Held(slot, revision, coordinator)

    def _failed(self, slot: int, revision: int, failure: StoreError) -> None:
        """A write of the slot's coordinator was fenced off, or may be lost: it ends here."""
        held = self._held.get(slot)
        if held is not None and held.revision == revision:
            logger.warning("the groups of slot %d have to be loaded anew: %s", slot, failure)
            self._drop(slot)
            self._changed.set()

    # -- loading --------------------------------------------------------------------------------

    async def _load_all(self) -> float | None:
        """Load what is held and not loaded, with one look at the store; when to try again, if at all."""
        waiting = [held for held in self._held.values() if not held.coordinator.is_loaded]
        if not waiting:
            return None
        self._deleted_while_loading = []
        try:
            shares = await self._read({held.slot for held in waiting})
        except StoreError as error:
            logger.warning("the groups can not be loaded: %s", error)
            return _RETRY_S
        retry_s: float | None = None
        for held in waiting:
            if self._held.get(held.slot) is not held:
                continue  # lost meanwhile
            try:
                await held.coordinator.load(shares[held.slot])
            except StoreError as error:
                logger.error("the groups of slot %d can not be loaded: %s", held.slot, error)
                retry_s = _CORRUPT_RETRY_S if isinstance(error, StoreCorrupt) else _RETRY_S
                if self._held.get(held.slot) is held:
                    self._drop(held.slot)
                continue
            for name in tuple(self._deleted_while_loading):
                await self._forget_topic(held, name)
            if self._held.get(held.slot) is held:
                await held.coordinator.start()
            await asyncio.sleep(0)
        logger.info("coordinating the groups of %d slots of %d", len(self._held), SLOTS)
        return retry_s

    async def _read(self, slots: Collection[int]) -> dict[int, Kept]:
        """What the store holds of each slot. Read after they were claimed, so nobody adds to it."""
        groups = await self._store.get_prefix(records.GROUPS)
        offsets = await self._store.get_prefix(records.OFFSETS)
        topics = await self._store.get_prefix(records.TOPICS)
        created = {
            entry.key.removeprefix(records.TOPICS): entry.create_revision
            for entry in topics.entries
        }
        of_groups, of_offsets = _by_slot(groups.entries), _by_slot(offsets.entries)
        return {
            slot: Kept(
                groups=of_groups.get(slot, ()), offsets=of_offsets.get(slot, ()), topics=created
            )
            for slot in slots
        }

    # -- letting go -----------------------------------------------------------------------------

    async def _release(self, slots: Iterable[int]) -> bool:
        """Hand over slots. False: it is to be tried again."""
        return all(await asyncio.gather(*[self._release_one(slot) for slot in slots]))

    async def _release_one(self, slot: int) -> bool:
        if slot in self._held:
            await asyncio.shield(self._drop(slot))
        claim = self._claims.get(slot)
        if claim is None or claim.broker != self._broker_id:
            return True  # our lease has ended meanwhile, and the slot is another broker's
        key, revision = slot_key(slot), self._claims.revision(slot)
        transaction = Transaction(
            compares=(Compare(key=key, mod_revision=revision),), deletes=(Delete(key=key),)
        )
        try:
            result = await self._store.commit(transaction)
        except StoreError as error:
            logger.warning("the groups of slot %d could not be handed over: %s", slot, error)
            return False
        if isinstance(result, Rejected):
            apply_refused(self._see, result)
        else:
            self._claims.see(slot, None, result.revision)
        return True

    def _drop_all(self) -> None:
        for slot in list(self._held):
            self._drop(slot)

    def _drop(self, slot: int) -> asyncio.Task[None]:
        """Serve the slot no more, at once. The task ends when nothing of it is on its way to the store."""
        coordinator = self._held.pop(slot).coordinator
        coordinator.retire()
        task = asyncio.get_running_loop().create_task(coordinator.stop())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        return task


def _by_slot(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    """Entries of groups or offsets, by the slot of their group."""
    found: dict[int, Any] = {}
    for entry in entries:
        try:
            slot = slot_of(records.group_of_key(entry.key))
        except StoreCorrupt as error:
            logger.error("%s", error)
            continue
        found.setdefault(slot, []).append(entry)
    return found
