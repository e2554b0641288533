"""What a metadata store can refuse, and why.

PenstockError
└── MetadataError
    ├── RevisionMismatch   `put` met another revision than it expected
    ├── Compacted          the history that a watch needs is gone: take a snapshot, watch again
    ├── LeaseLost          the lease expired or was revoked
    └── StoreError         the store itself
        ├── StoreUnavailable   it cannot write (or be reached) now; later it may again
        ├── StoreClosed        it was closed
        ├── Fenced             what the writer may write under is no longer its own
        ├── StoreLocked        another process has the database file open
        └── StoreCorrupt       the database file is damaged, or is not ours
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.metadata.store import Mismatch

__all__ = [
    "Compacted",
    "Fenced",
    "LeaseLost",
    "MetadataError",
    "RevisionMismatch",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreUnavailable",
]


class MetadataError(PenstockError):
    """Base of everything a metadata store raises on purpose."""


class RevisionMismatch(MetadataError):
    """`put(expected_revision=…)` lost the race; `mismatch.actual` is what the store holds."""

    def __init__(self, mismatch: Mismatch) -> None:
        actual = mismatch.actual.mod_revision if mismatch.actual is not None else 0
        super().__init__(
            f"{mismatch.compare.key!r} is at revision {actual},"
            f" expected {mismatch.compare.mod_revision}"
        )
        self.mismatch = mismatch


class Compacted(MetadataError):
    """Events the watch needs are no longer kept. Nothing from `oldest_revision` on is missing.

    The way on: `get_prefix`, then watch from the snapshot's revision + 1.
    """

    def __init__(self, oldest_revision: int) -> None:
        super().__init__(f"history before revision {oldest_revision} is gone; read a new snapshot")
        self.oldest_revision = oldest_revision


class LeaseLost(MetadataError):
    """The lease expired or was revoked: its keys are deleted or about to be. Take a new one."""

    def __init__(self, lease_id: int) -> None:
        super().__init__(f"lease {lease_id} expired or was revoked")
        self.lease_id = lease_id


class StoreError(MetadataError):
    """The store, and not the request, is the trouble."""


class StoreUnavailable(StoreError):
    """The store cannot do this now: disk full, I/O error, overload, no connection. Retry later.

    A commit that ends so must be taken as *unknown*: read again before deciding. (The embedded
    stores have not applied it; yet if the sync itself failed and the machine then crashes, the
    transaction may be found after the restart, just as etcd may have applied one whose answer was
    lost.)
    """


class StoreClosed(StoreError):
    """The store was closed; pending watches end with this too."""

    def __init__(self) -> None:
        super().__init__("the metadata store is closed")


class Fenced(StoreError):
    """A `FencedStore` has lost what it writes under: nothing was written, nothing ever will be."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} has changed hands: this writer may write no more")
        self.key = key


class StoreLocked(StoreError):
    """Another process has the database file open."""


class StoreCorrupt(StoreError):
    """The database file is damaged or is not a Penstock database. The text says what to do."""
