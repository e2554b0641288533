"""What leaders propose as ISR, on its way to the store: many partitions share a transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from penstock.cluster.messages import ProposeIsr
from penstock.cluster.replica import Replica
from penstock.cluster.state import encode_partition, partition_key
from penstock.metadata.store import (
    TRANSACTION_BYTES_MAX,
    Compare,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)

__all__ = ["Proposals"]

logger = logging.getLogger(__name__)

_TOGETHER_MAX: Final = 64  # changes of partitions in one transaction

Apply = Callable[[str, bytes | None, int], None]


class _Proposed(NamedTuple):
    replica: Replica
    proposal: ProposeIsr

    @property
    def key(self) -> str:
        return partition_key(self.replica.local.partition)


class Proposals:
    """Commits proposals and reports every outcome: written, refused with what was there, or unknown."""

    def __init__(
        self,
        store: MetadataStore,
        apply: Apply,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._store = store
        self._apply = apply
        self._spawn = spawn
        self._waiting: list[_Proposed] = []

    def add(self, replica: Replica, proposal: ProposeIsr) -> None:
        """To be written soon, with whatever else is proposed in this turn of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(_Proposed(replica, proposal))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        batch: list[tuple[_Proposed, Put]] = []
        size = 0
        for item in waiting:
            put = Put(key=item.key, value=encode_partition(item.proposal.state))
            bigger = size + 2 * len(put.key) + len(put.value)
            if batch and (len(batch) == _TOGETHER_MAX or bigger > TRANSACTION_BYTES_MAX):
                self._spawn(self._commit(batch))
                batch, bigger = [], bigger - size
            batch.append((item, put))
            size = bigger
        if batch:
            self._spawn(self._commit(batch))

    async def _commit(self, batch: list[tuple[_Proposed, Put]]) -> None:
        transaction = Transaction(
            compares=tuple(
                Compare(key=put.key, mod_revision=item.proposal.revision) for item, put in batch
            ),
            puts=tuple(put for _, put in batch),
        )
        try:
            result = await self._store.commit(transaction)
        except Exception as error:  # whatever it was, who proposed them must not wait for ever
            logger.warning("%d changes of ISRs have an unknown outcome: %r", len(batch), error)
            for item, _ in batch:
                item.replica.proposal_unknown(item.proposal)
            return
        if not isinstance(result, Rejected):
            for _, put in batch:
                self._apply(put.key, put.value, result.revision)
            return
        refused = set()
        for mismatch in result.mismatches:
            refused.add(mismatch.compare.key)
            actual = mismatch.actual
            if actual is None:
                self._apply(mismatch.compare.key, None, result.revision)
            else:
                self._apply(actual.key, actual.value, actual.mod_revision)
        rest = [(item, put) for item, put in batch if put.key not in refused]
        if rest:
            await self._commit(rest)
