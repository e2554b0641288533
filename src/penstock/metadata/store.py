"""The `MetadataStore` protocol: a small, ordered, watchable key space, shaped like etcd's.

Keys are non-empty `str` (ordered by code point, which is the order of their UTF-8 bytes), values are
`bytes`. The store has one revision. Each transaction that changes something raises it by one and
stamps every key it touches; a transaction that changes nothing (empty, or deletes what is not there)
leaves it. So `mod_revision` names a write uniquely, and a snapshot at revision R plus the events of a
watch from R + 1 is the whole truth:

    snapshot = await store.get_prefix("topics/")
    async with aclosing(store.watch("topics/", snapshot.revision + 1)) as events:
        async for event in events: ...

Every implementation keeps these promises (`tests/metadata/test_contract.py` runs on all of them):

- A transaction is applied as a whole or not at all, and is durable before `commit` returns.
- No read, watch, or result of a compare shows a write that is not durable.
- Reads are linearizable: a `get` that starts after a `commit` returned sees it.
- A caller that is cancelled inside `commit` does not know the outcome, as with any error. Such a commit
  may be applied even after the next read, so a compare, and not that read, guards what is done then.
- Commits that are under way at the same time are decided in any order: who needs one after the other
  awaits the first. (The embedded stores keep the order of the calls; etcd does not.)

One store object belongs to one event loop and may be shared by all its tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = [
    "TRANSACTION_BYTES_MAX",
    "TRANSACTION_OPERATIONS_MAX",
    "CommitResult",
    "Committed",
    "Compare",
    "Delete",
    "Entry",
    "Event",
    "Lease",
    "MetadataStore",
    "Mismatch",
    "Put",
    "Rejected",
    "Snapshot",
    "Transaction",
    "Watch",
]

# etcd's defaults (--max-txn-ops, and --max-request-bytes less room for framing), kept by every
# store so that what works on one node works in a cluster. Split larger work into several
# transactions and commit them concurrently: they share one sync.
TRANSACTION_OPERATIONS_MAX = 128
TRANSACTION_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key as it stands. `0 < create_revision <= mod_revision <= revision of the store`."""

    key: str
    value: bytes
    create_revision: int  # the write that made the key exist; a delete starts it anew
    mod_revision: int  # the last write
    lease_id: int | None = None  # the key is deleted when this lease ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All entries under a prefix, in key order, exactly as they stood at `revision`."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One key was written or deleted."""

    key: str
    value: bytes | None  # None: the key was deleted (by a transaction or because its lease ended)
    mod_revision: int  # the revision of the transaction that did it
    # The last event of its transaction that this watch will deliver. Only here is the watcher's view
    # consistent, and only here is `mod_revision + 1` a place to resume from.
    last_in_revision: bool

    @property
    def deleted(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Holds if `key` was last written at `mod_revision`; 0: if the key does not exist."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write `value`. Without `lease_id` the key is detached from any lease it had."""

    key: str
    value: bytes
    lease_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete `key`, or with `prefix=True` every key that starts with it. Absent is no error."""

    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """If all `compares` hold: do all `puts` and `deletes`, at one revision. Else do nothing.

    No key may be written twice (two puts, or a put and a delete that covers it); deletes may overlap.
    `ValueError` for a transaction that breaks this or one of the limits above.
    """

    compares: tuple[Compare, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[Delete, ...] = ()

    def __post_init__(self) -> None:
        if max(len(self.compares), len(self.puts) + len(self.deletes)) > TRANSACTION_OPERATIONS_MAX:
            raise ValueError(f"more than {TRANSACTION_OPERATIONS_MAX} operations in a transaction")
        for compare in self.compares:
            _check_key(compare.key)
            if compare.mod_revision < 0:
                raise ValueError(f"negative revision for {compare.key!r}")
        put_keys = set()
        for put in self.puts:
            _check_key(put.key)
            put_keys.add(put.key)
        if len(put_keys) != len(self.puts):
            raise ValueError("a key is put twice in one transaction")
        for delete in self.deletes:
            if delete.prefix:
                clash = any(key.startswith(delete.key) for key in put_keys)
            else:
                _check_key(delete.key)
                clash = delete.key in put_keys
            if clash:
                raise ValueError(
                    f"keys under {delete.key!r} are put and deleted in one transaction"
                )
        if self.size_bytes > TRANSACTION_BYTES_MAX:
            raise ValueError(f"a transaction of more than {TRANSACTION_BYTES_MAX} bytes")

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values, keys counted as characters."""
        return (
            sum(len(put.key) + len(put.value) for put in self.puts)
            + sum(len(delete.key) for delete in self.deletes)
            + sum(len(compare.key) for compare in self.compares)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A compare that did not hold, and what the store holds instead: enough to decide anew."""

    compare: Compare
    actual: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The transaction is applied and durable. `revision` is its own if it changed anything."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Nothing was done. `mismatches` (never empty) are all compares that failed at `revision`."""

    revision: int
    mismatches: tuple[Mismatch, ...]


CommitResult: TypeAlias = Committed | Rejected


class Watch(Protocol):
    """The events under a prefix, in revision order, without gap or duplicate. For one task at a time.

    `__anext__` waits for the next event. It raises `Compacted` when the events that come next are no
    longer kept: because the start was too old, or because the reader fell too far behind. It raises
    `StoreClosed` after the store was closed. A lost connection is mended inside and not seen here.
    """

    def __aiter__(self) -> Watch: ...

    async def __anext__(self) -> Event: ...

    async def aclose(self) -> None:
        """Stop watching. A waiting or later `__anext__` ends the iteration."""


class Lease(Protocol):
    """A promise to be alive. When it ends, its keys are deleted in one transaction, and watchers see it."""

    @property
    def id(self) -> int: ...

    @property
    def ttl_s(self) -> int: ...

    @property
    def expires_at(self) -> float:
        """When the lease ends unless it is kept alive, on the store's monotonic clock (`now`).

        Never later than the store's own reckoning: it counts from before the last successful
        `keep_alive` was sent. Whoever acts only before this time holds the lease for certain.
        """

    async def keep_alive(self) -> None:
        """Extend the lease to a full `ttl_s` from now. Once per call: the owner calls it in time.

        Raises `LeaseLost` if it has ended.
        """

    async def revoke(self) -> None:
        """End the lease now and delete its keys; returns when that is durable. Idempotent."""


@runtime_checkable
class MetadataStore(Protocol):
    """See the module's docstring for what every implementation promises.

    Any method may raise `StoreUnavailable` or `StoreClosed`.
    """

    async def get(self, key: str) -> Entry | None:
        """The entry, or None if the key does not exist."""

    async def get_prefix(self, prefix: str) -> Snapshot:
        """All entries whose key starts with `prefix` ("" is every key), at one revision."""

    async def commit(self, transaction: Transaction) -> CommitResult:
        """Compare and write, all or nothing.

        Raises `LeaseLost` (and does nothing) if a put names a lease that has ended.
        """

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        lease: Lease | None = None,
    ) -> int:
        """Write one key and return the revision of the write.

        With `expected_revision` only if the key is at that `mod_revision` (0: absent), else
        `RevisionMismatch`.
        """

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """Events with `mod_revision >= from_revision` under `prefix`: past ones first, then live.

        The revision, not the moment of the call or of the first read, decides what is seen. It is at
        least 1 and may lie in the future.
        """

    async def lease(self, ttl_s: int) -> Lease:
        """A new lease of `ttl_s >= 1` seconds, with no keys yet."""

    async def close(self) -> None:
        """Finish the commits that wait, then let go of everything. Idempotent.

        Leases are not revoked: they end by themselves, as they do in a crash.
        """


def _check_key(key: str) -> None:
    if not key:
        raise ValueError("an empty key")
    if not key.isascii():
        key.encode()  # UnicodeEncodeError is a ValueError: lone surrogates have no UTF-8
