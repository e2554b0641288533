"""What every `MetadataStore` does alike, whatever keeps its keys: the short form of a write, and its end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from penstock.metadata.errors import RevisionMismatch, StoreClosed
from penstock.metadata.store import CommitResult, Compare, Lease, Put, Rejected, Transaction

__all__ = ["BaseStore"]


class BaseStore(ABC):
    """Closes once, however often and by however many it is asked to."""

    def __init__(self) -> None:
        self._closing: asyncio.Task[None] | None = None

    @abstractmethod
    async def commit(self, transaction: Transaction) -> CommitResult:
        """As `MetadataStore` says."""

    @abstractmethod
    async def _close(self) -> None:
        """Finish the commits that wait, then let go of everything. Called once."""

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        put = Put(key=key, value=value, lease_id=lease.id if lease is not None else None)
        compares: tuple[Compare, ...] = ()
        if expected_revision is not None:
            compares = (Compare(key=key, mod_revision=expected_revision),)
        result = await self.commit(Transaction(compares=compares, puts=(put,)))
        if isinstance(result, Rejected):
            raise RevisionMismatch(result.mismatches[0])
        return result.revision

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed
