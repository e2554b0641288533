"""The key space of an embedded store, as pure state: decide on a `Draft`, then `apply` it.

    draft = Draft(space)
    outcome = draft.commit(transaction, live_leases)   # decided; the space is as it was
    ... make `draft.writes` durable ...
    changes = space.apply(draft)                       # done; the events to publish

A draft takes any number of transactions, each of which sees those before it: this is how a group
commit decides many at once. If it cannot be made durable it is dropped and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from penstock.metadata.errors import LeaseLost
from penstock.metadata.sorted_keys import SortedKeys
from penstock.metadata.store import (
    CommitResult,
    Committed,
    Delete,
    Entry,
    Event,
    Mismatch,
    Rejected,
    Snapshot,
    Transaction,
)

__all__ = ["EMPTY_REVISION", "Draft", "KeySpace"]

EMPTY_REVISION = 1  # of a store in which nothing was ever written, as in etcd


class KeySpace:
    """All entries, their order and their leases, at one revision. Only `apply` changes it."""

    def __init__(self, entries: Iterable[Entry] = (), revision: int = EMPTY_REVISION) -> None:
        self._revision = revision
        self._entries = {entry.key: entry for entry in entries}
        self._keys = SortedKeys(self._entries)
        self._leased = _LeaseIndex()  # exactly the entries with a lease_id
        for entry in self._entries.values():
            self._leased.move(entry.key, None, entry.lease_id)

    @property
    def revision(self) -> int:
        return self._revision

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def keys(self, prefix: str) -> Iterator[str]:
        return self._keys.prefix(prefix)

    def keys_of_lease(self, lease_id: int) -> Iterable[str]:
        return self._leased.keys(lease_id)

    def leases(self) -> tuple[int, ...]:
        """Every lease that has a key."""
        return self._leased.leases()

    def snapshot(self, prefix: str) -> Snapshot:
        entries = self._entries
        return Snapshot(
            entries=tuple([entries[key] for key in self._keys.prefix(prefix)]),
            revision=self._revision,
        )

    def apply(self, draft: Draft) -> list[tuple[Event, ...]]:
        """Take over what `draft` decided. Returns the events, one tuple for each new revision.

        The draft must have been made from this space as it is: one draft at a time.
        """
        assert draft.base_revision == self._revision, "a draft of another state of the space"
        for key, entry in draft.writes.items():
            old = self._entries.get(key)
            if entry is None:
                if old is not None:
                    del self._entries[key]
                    self._keys.discard(key)
            else:
                self._entries[key] = entry
                if old is None:
                    self._keys.add(key)
            old_lease = old.lease_id if old is not None else None
            self._leased.move(key, old_lease, entry.lease_id if entry is not None else None)
        self._revision = draft.revision
        return draft.changes


class Draft:
    """Transactions decided, in order, on top of a `KeySpace` that stays as it is."""

    def __init__(self, space: KeySpace) -> None:
        self._space = space
        self._writes: dict[str, Entry | None] = {}  # None: deleted
        # The keys of _writes in order, kept only from the first delete by prefix on: few drafts need it.
        self._keys: SortedKeys | None = None
        self._leased = _LeaseIndex()  # exactly the entries in _writes with a lease_id
        # Invariant: len(changes) == revision - base_revision; changes[i] is not empty.
        self.changes: list[tuple[Event, ...]] = []
        self.base_revision = space.revision
        self.revision = space.revision

    @property
    def writes(self) -> Mapping[str, Entry | None]:
        """What each touched key becomes in the end; None: it does not exist."""
        return self._writes

    def get(self, key: str) -> Entry | None:
        return self._writes[key] if key in self._writes else self._space.get(key)

    def commit(self, transaction: Transaction, live_leases: Container[int]) -> CommitResult:
        """Decide one transaction. Raises `LeaseLost` (and decides nothing) for a put on a dead lease."""
        mismatches = []
        for compare in transaction.compares:
            actual = self.get(compare.key)
            if compare.mod_revision != (actual.mod_revision if actual is not None else 0):
                mismatches.append(Mismatch(compare=compare, actual=actual))
        if mismatches:
            return Rejected(revision=self.revision, mismatches=tuple(mismatches))
        for put in transaction.puts:
            if put.lease_id is not None and put.lease_id not in live_leases:
                raise LeaseLost(put.lease_id)
        written: list[tuple[str, bytes | None]] = []
        revision = self.revision + 1
        for put in transaction.puts:
            old = self.get(put.key)
            entry = Entry(
                key=put.key,
                value=put.value,
                create_revision=old.create_revision if old is not None else revision,
                mod_revision=revision,
                lease_id=put.lease_id,
            )
            self._write(put.key, entry)
            written.append((put.key, put.value))
        for delete in transaction.deletes:
            written += self._delete(self._covered(delete) if delete.prefix else [delete.key])
        return self._finish(written)

    def end_lease(self, lease_id: int) -> Committed:
        """Decide the end of a lease: delete the keys that are attached to it now."""
        candidates = {*self._space.keys_of_lease(lease_id), *self._leased.keys(lease_id)}
        doomed = []
        for key in sorted(candidates):
            entry = self.get(key)
            if entry is not None and entry.lease_id == lease_id:
                doomed.append(key)
        return self._finish(self._delete(doomed))

    def _covered(self, delete: Delete) -> list[str]:
        """The keys a delete by prefix may mean: some may be gone already, some are named twice."""
        if self._keys is None:
            self._keys = SortedKeys(self._writes)
        return [*self._space.keys(delete.key), *self._keys.prefix(delete.key)]

    def _delete(self, keys: Iterable[str]) -> list[tuple[str, bytes | None]]:
        """Delete those of `keys` that exist, and say which."""
        deleted: list[tuple[str, bytes | None]] = []
        for key in keys:
            if self.get(key) is not None:
                self._write(key, None)
                deleted.append((key, None))
        return deleted

    def _write(self, key: str, entry: Entry | None) -> None:
        old = self._writes.get(key)
        if self._keys is not None:
            self._keys.add(key)
        self._writes[key] = entry
        old_lease = old.lease_id if old is not None else None
        self._leased.move(key, old_lease, entry.lease_id if entry is not None else None)

    def _finish(self, written: list[tuple[str, bytes | None]]) -> Committed:
        if written:
            self.revision += 1
            last = len(written) - 1
            self.changes.append(
                tuple(
                    Event(
                        key=key,
                        value=value,
                        mod_revision=self.revision,
                        last_in_revision=i == last,
                    )
                    for i, (key, value) in enumerate(written)
                )
            )
        return Committed(revision=self.revision)


class _LeaseIndex:
    """Which keys hang on which lease."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[int, set[str]] = {}  # no empty sets

    def keys(self, lease_id: int) -> Iterable[str]:
        return self._keys.get(lease_id, ())

    def leases(self) -> tuple[int, ...]:
        return tuple(self._keys)

    def move(self, key: str, old: int | None, new: int | None) -> None:
        if old == new:
            return
        if old is not None:
            keys = self._keys[old]
            keys.discard(key)
            if not keys:
                del self._keys[old]
        if new is not None:
            self._keys.setdefault(new, set()).add(key)
