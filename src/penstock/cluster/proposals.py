"""What leaders propose as ISR, on its way to the store: many partitions share a transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from penstock.cluster.batching import KeyChange, batched
from penstock.cluster.messages import ProposeIsr
from penstock.cluster.replica import Replica
from penstock.cluster.state import encode_partition, partition_key
from penstock.metadata.store import MetadataStore, Rejected, Transaction
from penstock.metadata.watching import Apply, apply_refused

__all__ = ["Proposals"]

logger = logging.getLogger(__name__)

_TOGETHER_MAX: Final = 64  # changes of partitions in one transaction


class _Proposed(NamedTuple):
    replica: Replica
    proposal: ProposeIsr


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
        self._waiting: dict[str, _Proposed] = {}  # by the partition's key

    def add(self, replica: Replica, proposal: ProposeIsr) -> None:
        """To be written soon, with whatever else is proposed in this turn of the event loop.

        A later one of the same partition takes its place: the partition was seen at a higher revision
        in between, so the earlier one could not be applied any more.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting[partition_key(replica.local.partition)] = _Proposed(replica, proposal)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._commit_all(waiting)

    def _commit_all(self, proposed: Mapping[str, _Proposed]) -> None:
        changes = (
            KeyChange(key=key, value=encode_partition(proposal.state), revision=proposal.revision)
            for key, (_, proposal) in proposed.items()
        )
        for transaction in batched(changes, changes_max=_TOGETHER_MAX):
            batch = {put.key: proposed[put.key] for put in transaction.puts}
            self._spawn(self._commit(transaction, batch))

    async def _commit(self, transaction: Transaction, batch: Mapping[str, _Proposed]) -> None:
        try:
            result = await self._store.commit(transaction)
        except Exception as error:  # whatever it was, who proposed them must not wait for ever
            logger.warning("%d changes of ISRs have an unknown outcome: %r", len(batch), error)
            for replica, proposal in batch.values():
                replica.proposal_unknown(proposal)
            return
        if isinstance(result, Rejected):
            apply_refused(self._apply, result)
            refused = {mismatch.compare.key for mismatch in result.mismatches}
            self._commit_all({key: batch[key] for key in batch if key not in refused})
        else:
            for put in transaction.puts:
                self._apply(put.key, put.value, result.revision)
