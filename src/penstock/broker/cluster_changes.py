"""Writing changes of the cluster's metadata, and waiting until this broker sees what comes of them.

A change is a compare-and-swap, which any broker may write: it says what is wanted, and the controller
does the rest. A refused compare shows what is there instead, and the change is worked out anew from that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.cluster.batching import KeyChange, batched
from penstock.cluster.controller import Decision
from penstock.cluster.state import partition_of_key
from penstock.cluster.view import Change, PartitionChanged, TopicChanged
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.errors import StoreError
from penstock.metadata.store import MetadataStore, Rejected
from penstock.metadata.watching import apply_refused
from penstock.model import TopicPartition

if TYPE_CHECKING:
    from penstock.cluster.node import ClusterNode

__all__ = ["ClusterChanges", "Outcomes"]

Subject: TypeAlias = str | TopicPartition  # a topic, with all of its partitions, or one partition
Condition: TypeAlias = Callable[[Change], bool]
Outcomes: TypeAlias = dict[TopicPartition, ApiError | None]
"""What came of a request for many partitions; None: it is done."""


class ClusterChanges:
    """Of one broker. Lives on one event loop."""

    def __init__(self, store: MetadataStore, node: ClusterNode) -> None:
        self._store = store
        self._node = node
        self._waiting: dict[Subject, dict[asyncio.Future[None], Condition]] = {}
        self._is_closed = False

    # -- waiting --------------------------------------------------------------------------------

    def seen(self, change: Change) -> None:
        """The view has changed: whoever waits for that goes on."""
        match change:
            case TopicChanged():
                self._wake(change.topic, change)
            case PartitionChanged():
                self._wake(change.partition.topic, change)
                self._wake(change.partition, change)

    def _wake(self, subject: Subject, change: Change) -> None:
        for future, condition in self._waiting.get(subject, {}).items():
            if not future.done() and condition(change):
                future.set_result(None)

    async def until(
        self, subject: Subject, condition: Condition, what: str, timeout_s: float
    ) -> None:
        """Wait for a change of `subject` of which `condition` is true. REQUEST_TIMED_OUT: in vain."""
        if self._is_closed:
            raise _stopped(what)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(subject, {})
        waiting[future] = condition
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await future
            if self._is_closed:
                raise _stopped(what)
        except TimeoutError:
            text = f"{what} within {max(timeout_s, 0):g} s"
            raise ApiError(ErrorCode.request_timed_out, text) from None
        finally:
            del waiting[future]
            if not waiting and self._waiting.get(subject) is waiting:
                del self._waiting[subject]

    def close(self) -> None:
        """The broker stops: nobody waits any longer. What was written goes on without it."""
        self._is_closed = True
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    # -- writing --------------------------------------------------------------------------------

    async def commit(self, decision: Decision) -> bool:
        """Whether it was written. If not, what the store has instead has been applied."""
        try:
            result = await self._store.commit(decision.transaction)
        except StoreError as error:
            raise ApiError(
                ErrorCode.request_timed_out, f"the metadata store did not answer: {error}"
            ) from error
        if isinstance(result, Rejected):
            apply_refused(self._node.apply, result)
            return False
        for put in decision.transaction.puts:
            self._node.apply(put.key, put.value, result.revision)
        return True

    async def commit_partitions(
        self,
        partitions: Iterable[TopicPartition],
        change: Callable[[TopicPartition], KeyChange | None],
    ) -> Outcomes:
        """Write what `change` makes of each partition: many in a transaction, transactions side by side.

        An `ApiError` of `change` is that partition's outcome, and None means that it needs no change.
        """
        outcomes: Outcomes = {}
        left: Sequence[TopicPartition] = list(dict.fromkeys(partitions))
        while left:
            changes = []
            for partition in left:
                outcomes[partition] = None
                try:
                    wanted = change(partition)
                except ApiError as error:
                    outcomes[partition] = error
                else:
                    if wanted is not None:
                        changes.append(wanted)
            decisions = [
                Decision(transaction, tuple(partition_of_key(put.key) for put in transaction.puts))
                for transaction in batched(changes)
            ]
            refused = await asyncio.gather(*(self._refused(d, outcomes) for d in decisions))
            left = [partition for some in refused for partition in some]
        return outcomes

    async def _refused(self, decision: Decision, outcomes: Outcomes) -> tuple[TopicPartition, ...]:
        """Commit it; the partitions that have to be looked at again."""
        try:
            return () if await self.commit(decision) else decision.partitions
        except ApiError as error:
            outcomes.update(dict.fromkeys(decision.partitions, error))
            return ()


def _stopped(what: str) -> ApiError:
    return ApiError(ErrorCode.request_timed_out, f"{what} before the broker stopped")
