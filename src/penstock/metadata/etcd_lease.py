"""Leases of the etcd store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import grpc

from penstock.metadata.errors import LeaseLost
from penstock.metadata.etcd_client import EtcdClient, EtcdRefused
from penstock.metadata.etcd_endpoint import Endpoint, Metadata
from penstock.metadata.etcd_messages import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE

__all__ = ["EtcdLease"]

# What is left of a TTL is shared out over this many attempts, so that a member that hangs costs a part
# of the lease and not the lease.
_ATTEMPTS_PER_TTL: Final = 3


class EtcdLease:
    """A `Lease` that etcd keeps.

    `ttl_s` is what was asked for. etcd may grant more (never less: it has a minimum of about 1.5 of its
    election timeouts) and gives its leases more time after a change of its leader. So the holder stops
    believing in its lease before anyone else can see it end.
    """

    def __init__(
        self,
        client: EtcdClient,
        operation: Callable[[], AbstractContextManager[None]],
        now: Callable[[], float],
        ttl_s: int,
    ) -> None:
        self._client = client
        self._operation = operation
        self._now = now
        self._ttl_s = ttl_s
        self._id = 0
        self._expires_at = 0.0
        self._over = False  # once set, no answer that is still on its way revives the lease

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl_s(self) -> int:
        return self._ttl_s

    @property
    def expires_at(self) -> float:
        return self._expires_at

    async def grant(self) -> None:
        """Begin the lease. If an answer is lost, etcd keeps a lease without keys until it ends."""

        async def perform(endpoint: Endpoint, metadata: Metadata, timeout_s: float) -> None:
            sent_at = self._now()
            request = LEASE_GRANT.request(TTL=self._ttl_s)
            answer = await endpoint.call(LEASE_GRANT, request, metadata, timeout_s)
            self._id = answer.ID
            self._expires_at = sent_at + min(self._ttl_s, answer.TTL)

        await self._client.run(perform)

    async def keep_alive(self) -> None:
        with self._operation():
            if self._over:
                raise LeaseLost(self._id)
            share_s = self._ttl_s / _ATTEMPTS_PER_TTL
            left_s = max(self._expires_at - self._now(), share_s)
            await self._client.run(
                self._renew,
                timeout_s=min(left_s, self._client.config.request_timeout_s),
                attempt_timeout_s=share_s,
            )

    async def revoke(self) -> None:
        with self._operation():
            self._end()
            try:
                await self._client.call(LEASE_REVOKE, LEASE_REVOKE.request(ID=self._id))
            except EtcdRefused as error:
                if error.code is not grpc.StatusCode.NOT_FOUND:  # else it is over already
                    raise

    async def _renew(self, endpoint: Endpoint, metadata: Metadata, timeout_s: float) -> None:
        sent_at = self._now()
        request = LEASE_KEEP_ALIVE.request(ID=self._id)
        answer = await endpoint.exchange(LEASE_KEEP_ALIVE, request, metadata, timeout_s)
        if answer.TTL <= 0:
            self._end()
            raise LeaseLost(self._id)
        if not self._over:
            expires_at = sent_at + min(self._ttl_s, answer.TTL)
            self._expires_at = max(self._expires_at, expires_at)

    def _end(self) -> None:
        self._over = True
        self._expires_at = min(self._expires_at, self._now())
