"""Requests to an etcd cluster: which member takes them, what is tried again, what is not.

A request that changes nothing, or that does no harm when it is done twice, goes from endpoint to endpoint
until one answers or its time is over. One that must be done at most once is sent at most once: it moves
on only while it is certain that no etcd has taken it up (no connection, no leader, an old token). Once
it was sent and no answer came, its outcome is unknown, and that is what the caller is told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc
import grpc.aio

from penstock.metadata.errors import StoreUnavailable
from penstock.metadata.etcd_config import EtcdConfig
from penstock.metadata.etcd_endpoint import Endpoint, Metadata, Unreachable
from penstock.metadata.etcd_messages import AUTHENTICATE, Message, Method

__all__ = ["EtcdClient", "EtcdRefused", "EtcdSilent"]

Answer = TypeVar("Answer")

# Not to be served by a member that is cut off from the others: it would be silent instead of failing.
_REQUIRE_LEADER: Final = ("hasleader", "true")

# etcd's words for: this was not even proposed to the cluster.
_NOT_TAKEN_UP: Final = frozenset(
    {
        "etcdserver: no leader",
        "etcdserver: rpc not supported for learner",
        "etcdserver: too many requests",
        "raft proposal dropped",
    }
)
_TOKEN_ERRORS: Final = frozenset(
    {
        "etcdserver: invalid auth token",
        "etcdserver: revision of auth store is old",
        "etcdserver: user name is empty",
    }
)
# With these codes the trouble is the connection or the member. All others are etcd's own decision.
_TROUBLE_CODES: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
    }
)
_TOKEN_RENEWALS_MAX: Final = 2
_ROUND_PAUSE_S: Final = 0.1


class EtcdRefused(StoreUnavailable):
    """etcd understood the request and said no; nothing was done."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"etcd refused: {details} ({code.name})")
        self.code = code
        self.details = details


class EtcdSilent(StoreUnavailable):
    """No endpoint has answered in time; one may yet."""


class EtcdClient:
    """Belongs to one event loop and may be shared by all its tasks."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self._endpoints = [Endpoint(address, config) for address in config.endpoints]
        # Clients begin at different members, so that these share the work.
        self._current = random.randrange(len(self._endpoints))
        self._token: str | None = None  # "": this etcd asks for none
        # While a login is under way. One that hangs must not hold up the next endpoint's.
        self._login: tuple[Endpoint, asyncio.Task[None]] | None = None

    async def call(self, method: Method, request: Message, *, once: bool = False) -> Message:
        """The answer to one request. Raises `StoreUnavailable`.

        `once`: it must not be done twice. If it is not known whether it was done, the error says so.
        """

        async def perform(endpoint: Endpoint, metadata: Metadata, timeout_s: float) -> Message:
            return await endpoint.call(method, request, metadata, timeout_s)

        return await self.run(perform, once=once)

    async def run(
        self,
        perform: Callable[[Endpoint, Metadata, float], Awaitable[Answer]],
        *,
        once: bool = False,
        timeout_s: float | None = None,
        attempt_timeout_s: float | None = None,
    ) -> Answer:
        """Have `perform` done at one endpoint after the other until it succeeds."""
        loop = asyncio.get_running_loop()
        timeout_s = timeout_s or self.config.request_timeout_s
        # A member that hangs must leave time to ask another one.
        share = 1 if once else min(3, len(self._endpoints))
        attempt_timeout_s = attempt_timeout_s or timeout_s / share
        give_up_at = loop.time() + timeout_s
        troubles: dict[str, str] = {}  # by address, in the order they were met
        attempts = renewals = 0
        while (left_s := give_up_at - loop.time()) > 0:
            endpoint = self.current
            try:
                metadata = await self.prepare(endpoint, min(left_s, attempt_timeout_s))
                left_s = max(0.001, give_up_at - loop.time())
                return await perform(endpoint, metadata, min(left_s, attempt_timeout_s))
            except Unreachable as error:
                troubles[endpoint.address] = str(error)
            except grpc.aio.AioRpcError as error:
                if error.details() in _TOKEN_ERRORS and renewals < _TOKEN_RENEWALS_MAX:
                    renewals += 1
                    self.forget_token(metadata)
                    continue
                troubles[endpoint.address] = self._trouble(error, endpoint, once=once)
            self.leave(endpoint)
            attempts += 1
            if attempts % len(self._endpoints) == 0:
                pause_s = _ROUND_PAUSE_S * random.uniform(0.5, 1.5)
                await asyncio.sleep(min(pause_s, max(0.0, give_up_at - loop.time())))
        raise _unavailable(troubles, timeout_s)

    @property
    def current(self) -> Endpoint:
        """Where the next request goes first."""
        return self._endpoints[self._current]

    async def prepare(self, endpoint: Endpoint, timeout_s: float) -> Metadata:
        """Connect and log in, and return what every request to `endpoint` carries.

        Raises `Unreachable`, or `StoreUnavailable` if etcd does not let us in.
        """
        await endpoint.connect(min(timeout_s, self.config.connect_timeout_s))
        if self.config.user is None:
            return (_REQUIRE_LEADER,)
        if self._token is None:
            await self._log_in_together(endpoint, timeout_s)
        token = self._token
        return (_REQUIRE_LEADER, ("token", token)) if token else (_REQUIRE_LEADER,)

    def leave(self, endpoint: Endpoint) -> None:
        """Turn to the next endpoint, with all streams, unless that was done already."""
        if len(self._endpoints) > 1 and self.current is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)
            endpoint.end_streams()

    def forget_token(self, metadata: Metadata) -> None:
        """The token in `metadata` is no longer good; the next request gets a new one."""
        if self._token == dict(metadata).get("token", ""):
            self._token = None

    async def close(self) -> None:
        if self._login is not None:
            self._login[1].cancel()
        for endpoint in self._endpoints:
            await endpoint.close()

    async def _log_in_together(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Wait for the login that is under way, or begin one: a thousand waiting requests need one."""
        if self._login is None or self._login[0] is not endpoint:
            task = asyncio.get_running_loop().create_task(self._log_in(endpoint))
            self._login = endpoint, task
            task.add_done_callback(self._login_ended)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._login[1])
        except TimeoutError:
            raise Unreachable("cannot log in: no answer") from None

    def _login_ended(self, task: asyncio.Task[None]) -> None:
        if self._login is not None and self._login[1] is task:
            self._login = None
        if not task.cancelled():
            task.exception()  # those who waited have seen it

    async def _log_in(self, endpoint: Endpoint) -> None:
        request = AUTHENTICATE.request(name=self.config.user, password=self.config.password)
        timeout_s = self.config.connect_timeout_s
        try:
            answer = await endpoint.call(AUTHENTICATE, request, (_REQUIRE_LEADER,), timeout_s)
            self._token = str(answer.token)
        except grpc.aio.AioRpcError as error:
            details = error.details() or ""
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and "not enabled" in details:
                self._token = ""
            elif error.code() in _TROUBLE_CODES or details in _NOT_TAKEN_UP:
                raise Unreachable(f"cannot log in: {_describe(error)}") from error
            else:
                raise StoreUnavailable(
                    f"etcd at {endpoint.address} does not let user {self.config.user!r} in:"
                    f" {details}"
                ) from error

    def _trouble(self, error: grpc.aio.AioRpcError, endpoint: Endpoint, *, once: bool) -> str:
        """What went wrong, if the request may be tried elsewhere; else raises."""
        details = error.details() or ""
        if details in _NOT_TAKEN_UP:
            return details
        if error.code() not in _TROUBLE_CODES:
            raise EtcdRefused(error.code(), details) from error
        if once:
            self.leave(endpoint)
            raise StoreUnavailable(
                f"etcd at {endpoint.address} was sent a transaction and did not answer"
                f" ({_describe(error)}): whether it was applied is not known"
            ) from error
        return _describe(error)


def _unavailable(troubles: dict[str, str], timeout_s: float) -> EtcdSilent:
    tried = "; ".join(f"{address}: {trouble}" for address, trouble in troubles.items())
    return EtcdSilent(f"no etcd endpoint answered within {timeout_s:.1f} s: {tried}")


def _describe(error: grpc.aio.AioRpcError) -> str:
    details = error.details()
    return f"{error.code().name}: {details}" if details else error.code().name
