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
        self.ttl_s = ttl_s
        self.id = 0
        self.expires_at = 0.0
        self._over = False  # once set, no answer that is still on its way revives the lease

    async def grant(self) -> None:
        """Begin the lease. If an answer is lost, etcd keeps a lease without keys until it ends."""

        async def perform(endpoint: Endpoint, metadata: Metadata, timeout_s: float) -> None:
            sent_at = self._now()
            request = LEASE_GRANT.request(TTL=self.ttl_s)
            answer = await endpoint.call(LEASE_GRANT, request, metadata, timeout_s)
            self.id = answer.ID
            self.expires_at = sent_at + min(self.ttl_s, answer.TTL)

        await self._client.run(perform)

    async def keep_alive(self) -> None:
        with self._operation():
            if self._over:
                raise LeaseLost(self.id)
            share_s = self.ttl_s / _ATTEMPTS_PER_TTL
            left_s = max(self.expires_at - self._now(), share_s)
            await self._client.run(
                self._renew,
                timeout_s=min(left_s, self._client.config.request_timeout_s),
                attempt_timeout_s=share_s,
            )

    async def revoke(self) -> None:
        with self._operation():
            self._end()
            try:
                await self._client.call(LEASE_REVOKE, LEASE_REVOKE.request(ID=self.id))
            except EtcdRefused as error:
                if error.code is not grpc.StatusCode.NOT_FOUND:  # else it is over already
                    raise

    async def _renew(self, endpoint: Endpoint, metadata: Metadata, timeout_s: float) -> None:
        sent_at = self._now()
        request = LEASE_KEEP_ALIVE.request(ID=self.id)
        answer = await endpoint.exchange(LEASE_KEEP_ALIVE, request, metadata, timeout_s)
        if answer.TTL <= 0:
            self._end()
            raise LeaseLost(self.id)
        if not self._over:
            expires_at = sent_at + min(self.ttl_s, answer.TTL)
            self.expires_at = max(self.expires_at, expires_at)

    def _end(self) -> None:
        self._over = True
        self.expires_at = min(self.expires_at, self._now())
