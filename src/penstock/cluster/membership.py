"""Being a member of the cluster: a registration under a lease, kept alive, taken anew when it is lost.

    join ──> registered ──keep alive──> registered ──revoke──> gone
                 ^                          │
                 └──── a new incarnation ───┘ the lease has ended: etcd was away, or we were

A key of an earlier life of ours may still be there, under a lease that nobody keeps. If it names our own
storage, that life is over for certain, because we hold the lock on its data directory: the key is taken
over at once. If it names other storage, it may be another broker with our id: it is waited for until its
lease must have ended, and if it is still there then, the start is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import replace
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.cluster.local import BrokerTerm
from penstock.cluster.state import BrokerRegistration, broker_key, decode_broker, encode_broker
from penstock.errors import ConfigError
from penstock.metadata.errors import LeaseLost, StoreError
from penstock.metadata.store import (
    Compare,
    Entry,
    Lease,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)

__all__ = ["Member", "Membership"]

logger = logging.getLogger(__name__)

_KEEP_ALIVES_PER_TTL: Final = 4
_RETRY_S: Final = 0.2
_LATE_S: Final = (
    2.0  # etcd looks for ended leases now and then, and gives more time after an election
)


class Member(Protocol):
    """Who is told what becomes of the registration."""

    def registered(self, lease: Lease, *, is_first: bool) -> None:
        """A new term has begun."""

    def lease_renewed(self) -> None: ...

    def unregistered(self) -> None:
        """The term is over. Another one may begin."""


class Membership:
    """Registers one broker and keeps it registered. Lives on one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        broker: BrokerRegistration,
        term: BrokerTerm,
        ttl_s: int,
        clock: Clock,
        member: Member,
    ) -> None:
        self._store = store
        self._broker = broker  # as it was registered last
        self._term = term
        self._ttl_s = ttl_s
        self._clock = clock
        self._member = member
        self._lease: Lease | None = None
        self._revision = 0  # of our key
        self._leaves = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def registration(self) -> BrokerRegistration:
        return self._broker

    @property
    def lease(self) -> Lease | None:
        return self._lease

    async def join(self) -> None:
        """Register for the first time. `ConfigError` if another broker has our id."""
        patience = self._clock.monotonic_s() + self._ttl_s + _LATE_S
        while (taken := await self._register(is_first=True)) is not None:
            other = decode_broker(taken)
            if self._clock.monotonic_s() > patience:
                raise ConfigError(
                    f"broker id {self._broker.id} is taken by a broker at {other.host}:{other.port};"
                    " stop that one, or give this one another id with --broker-id"
                )
            logger.info(
                "waiting for an earlier registration to end id=%d address=%s:%d",
                other.id, other.host, other.port,
            )  # fmt: skip
            await asyncio.sleep(_RETRY_S)
        self._keeping = asyncio.create_task(self._keep())

    async def _register(self, *, is_first: bool) -> Entry | None:
        """Take a lease and write our key under it; the key of somebody else if that is there."""
        sent_at = self._clock.monotonic_s()
        lease = await self._store.lease(self._ttl_s)
        broker = replace(
            self._broker, incarnation=str(secrets.randbits(62)), is_leaving=self._leaves
        )
        revision = 0
        while True:
            result = await self._store.commit(self._write(broker, lease, revision))
            if not isinstance(result, Rejected):
                break
            taken = result.mismatches[0].actual
            if taken is None:
                revision = 0  # it ended just now
            elif self._is_ours(taken):
                revision = taken.mod_revision
            else:
                with contextlib.suppress(StoreError):
                    await lease.revoke()
                return taken
        self._broker, self._lease, self._revision = broker, lease, result.revision
        self._term.begin(broker.incarnation, sent_at, self._ttl_s)
        self._member.registered(lease, is_first=is_first)
        return None

    def _is_ours(self, entry: Entry) -> bool:
        """Whether an earlier life of this very broker wrote it."""
        return decode_broker(entry).storage_id == self._broker.storage_id

    @staticmethod
    def _write(broker: BrokerRegistration, lease: Lease, revision: int) -> Transaction:
        key = broker_key(broker.id)
        return Transaction(
            compares=(Compare(key=key, mod_revision=revision),),
            puts=(Put(key=key, value=encode_broker(broker), lease_id=lease.id),),
        )

    async def _keep(self) -> None:
        """Keep the lease alive; when it is lost, register anew, for ever."""
        while True:
            try:
                if self._lease is None:
                    await self._register_again()
                await asyncio.sleep(self._ttl_s / _KEEP_ALIVES_PER_TTL)
                await self._renew()
            except LeaseLost:
                self._lost("etcd has ended it")
            except StoreError as error:
                logger.warning("etcd does not answer: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                logger.exception("keeping the registration failed; it is tried again")
                await asyncio.sleep(_RETRY_S)

    async def _renew(self) -> None:
        lease = self._lease
        if lease is None:
            return
        sent_at = self._clock.monotonic_s()
        await lease.keep_alive()
        if lease is self._lease:
            self._term.lease_renewed(sent_at, self._ttl_s)
            self._member.lease_renewed()

    async def _register_again(self) -> None:
        if await self._register(is_first=False) is not None:
            logger.error("broker id %d was taken by another broker meanwhile", self._broker.id)
            await asyncio.sleep(self._ttl_s)

    def _lost(self, why: str) -> None:
        logger.warning("the registration is lost: %s; registering anew", why)
        self._term.end()
        self._lease = None
        self._member.unregistered()

    def seen(self, registered: BrokerRegistration | None, revision: int) -> None:
        """Our key as the watch shows it: gone, or written by somebody else, it is not ours any more."""
        if self._lease is None or revision <= self._revision:
            return
        if registered is None or registered.incarnation != self._broker.incarnation:
            self._lost(
                "another broker registered with this id" if registered else "the key is gone"
            )

    # -- leaving --------------------------------------------------------------------------------

    async def announce_leaving(self) -> None:
        """Ask for our leaderships to be taken over."""
        self._leaves = True
        if self._lease is None:
            return
        leaving = replace(self._broker, is_leaving=True)
        result = await self._store.commit(self._write(leaving, self._lease, self._revision))
        if not isinstance(result, Rejected):
            self._broker, self._revision = leaving, result.revision

    async def leave(self) -> None:
        """End the term, then the lease: from here on nothing is answered as a leader."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._term.end()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await lease.revoke()
            except StoreError as error:
                logger.warning("the lease was not given back, it will run out: %s", error)
