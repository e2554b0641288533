"""Many changes of keys, packed into transactions that the store accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.metadata.store import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Delete,
    Put,
    Transaction,
)

__all__ = ["KeyChange", "batched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """Write `value` (None: delete the key) if the key is at `revision`, and `also` holds."""

    key: str
    value: bytes | None
    revision: int  # 0: it must not exist
    also: tuple[Compare, ...] = ()  # of other keys that the change rests on

    @property
    def size_bytes(self) -> int:
        others = sum(len(compare.key) for compare in self.also)
        return 2 * len(self.key) + len(self.value or b"") + others


def batched(
    changes: Iterable[KeyChange],
    guard: Compare | None = None,
    *,
    changes_max: int = TRANSACTION_OPERATIONS_MAX,
) -> Iterator[Transaction]:
    """Transactions of as many changes as fit, in order. Each holds only if `guard` does, if there is one."""
    batch: list[KeyChange] = []
    guards = () if guard is None else (guard,)
    compares = set(guards)
    least = sum(len(compare.key) for compare in guards)
    size = least
    for change in changes:
        needed = compares | _compares(change)
        bigger = size + change.size_bytes
        if batch and (
            len(needed) > TRANSACTION_OPERATIONS_MAX
            or len(batch) >= changes_max
            or bigger > TRANSACTION_BYTES_MAX
        ):
            yield _transaction(batch, guards)
            batch, size = [], least
            needed, bigger = {*guards} | _compares(change), size + change.size_bytes
        batch.append(change)
        compares, size = needed, bigger
    if batch:
        yield _transaction(batch, guards)


def _compares(change: KeyChange) -> set[Compare]:
    return {Compare(key=change.key, mod_revision=change.revision), *change.also}


def _transaction(batch: list[KeyChange], guards: Iterable[Compare]) -> Transaction:
    compares = dict.fromkeys(guards)  # a dict keeps the order
    for change in batch:
        compares.update(dict.fromkeys(change.also))
        compares[Compare(key=change.key, mod_revision=change.revision)] = None
    return Transaction(
        compares=tuple(compares),
        puts=tuple(Put(key=c.key, value=c.value) for c in batch if c.value is not None),
        deletes=tuple(Delete(key=c.key) for c in batch if c.value is None),
    )
