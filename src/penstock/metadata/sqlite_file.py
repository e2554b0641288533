"""The database file of `SqliteStore`: everything that touches SQLite, and nothing else.

One row per key and one row with the store's revision, each with a CRC of its own: SQLite checks the
structure of its pages, not their content. The file is locked for this process as long as it is open.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.metadata.errors import StoreCorrupt, StoreError, StoreLocked, StoreUnavailable
from penstock.metadata.keyspace import EMPTY_REVISION
from penstock.metadata.store import Entry

__all__ = ["Contents", "SqliteFile"]

_APPLICATION_ID = 0x50454E53  # "PENS"
_FORMAT_VERSION = 1

# WAL + synchronous=FULL: COMMIT returns after the log is synced, so it outlives a power loss.
# EXCLUSIVE before the first access: the lock is never given back, and no shared-memory file is needed.
_SETTINGS = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS: a real sync; elsewhere nothing
    "PRAGMA checkpoint_fullfsync = ON",
    f"PRAGMA journal_size_limit = {64 * 1024 * 1024}",
)
_SCHEMA = (
    """CREATE TABLE entry (
        key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,
        mod_revision INTEGER NOT NULL, lease_id INTEGER, crc INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE store (revision INTEGER NOT NULL, crc INTEGER NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT_VERSION}",
)
_UPSERT = "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the file held when it was opened."""

    entries: tuple[Entry, ...]
    revision: int


class SqliteFile:
    """An open database file. Every method blocks; call them all from one and the same thread.

    Errors of SQLite leave here as `StoreError`s.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._connection: sqlite3.Connection | None = None

    def open(self) -> Contents:
        """Open or create the file, take its lock, check it and read it all.

        Raises `StoreLocked`, `StoreCorrupt`, or `StoreUnavailable` if it cannot be opened at all.
        """
        try:
            self._connection = connection = self._connect()
            for setting in _SETTINGS:
                connection.execute(setting)
            connection.execute("BEGIN IMMEDIATE")  # takes the lock, also if there is nothing to do
            self._check_format()
            contents = self._load()
            connection.execute("COMMIT")
            self._sync_directory()
        except (sqlite3.Error, StoreError, OSError, UnicodeError) as error:
            self.close()
            raise self._translated(error, "open") from error
        return contents

    def write(
        self, writes: Mapping[str, Entry | None], *, base_revision: int, revision: int
    ) -> None:
        """Make `writes` (None: delete) and the revision durable, in one transaction and one sync.

        The file must be at `base_revision`. If this raises, the file is as it was (see
        `StoreUnavailable` for the one exception) and later writes may succeed.
        """
        connection = self._open_connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
            updated = connection.execute(
                "UPDATE store SET revision = ?, crc = ? WHERE revision = ?",
                (revision, _revision_crc(revision), base_revision),
            )
            if updated.rowcount != 1:
                raise StoreCorrupt(self._advice(f"it is not at revision {base_revision} any more"))
            connection.executemany(_UPSERT, [_row(e) for e in writes.values() if e is not None])
            connection.executemany(
                "DELETE FROM entry WHERE key = ?", [(k,) for k, e in writes.items() if e is None]
            )
            connection.execute("COMMIT")
        except (sqlite3.Error, StoreError) as error:
            self._roll_back()
            if self._stored_revision() == revision:
                return  # it was committed; what failed came after
            raise self._translated(error, "write") from error

    def close(self) -> None:
        """Give the file and its lock back. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        # No timeout: nobody else may have the file. No isolation level: we say BEGIN ourselves.
        return sqlite3.connect(self._path, timeout=0, isolation_level=None)

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"{self._path} is not open")
        return self._connection

    def _check_format(self) -> None:
        """Create the tables in an empty file; refuse one that is not ours or is damaged."""
        connection = self._open_connection()
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO store VALUES (?, ?)", (EMPTY_REVISION, _revision_crc(EMPTY_REVISION))
            )
            return
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id != _APPLICATION_ID:
            raise StoreCorrupt(f"{self._path} is not a Penstock metadata database: choose another")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT_VERSION:
            raise StoreCorrupt(
                f"{self._path} has format {version}, this Penstock reads {_FORMAT_VERSION}:"
                " start the version that wrote it"
            )
        (problem,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            raise StoreCorrupt(self._advice(str(problem)))

    def _load(self) -> Contents:
        connection = self._open_connection()
        revision = self._stored_revision()
        if revision is None:
            raise StoreCorrupt(self._advice("its revision cannot be read"))
        entries = []
        for key, value, created, modified, lease_id, crc in connection.execute(
            "SELECT CAST(key AS BLOB), value, create_revision, mod_revision, lease_id, crc FROM entry"
        ):
            try:
                entry = Entry(
                    key=key.decode(),
                    value=value,
                    create_revision=created,
                    mod_revision=modified,
                    lease_id=lease_id,
                )
                sound = _crc(entry) == crc and 0 < created <= modified <= revision
            except (TypeError, AttributeError, ValueError):
                sound = False
            if not sound:
                raise StoreCorrupt(self._advice(f"the entry {key!r} fails its checksum"))
            entries.append(entry)
        return Contents(entries=tuple(entries), revision=revision)

    def _stored_revision(self) -> int | None:
        """The revision the file is at, or None if it does not say."""
        try:
            rows = self._open_connection().execute("SELECT revision, crc FROM store").fetchall()
        except (sqlite3.Error, StoreError):
            return None
        if len(rows) != 1:
            return None
        revision, crc = rows[0]
        return revision if isinstance(revision, int) and crc == _revision_crc(revision) else None

    def _roll_back(self) -> None:
        connection = self._open_connection()
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")

    def _sync_directory(self) -> None:
        """A new file is only durable when its directory knows it."""
        directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _translated(self, error: Exception, action: str) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, UnicodeError):  # SQLite quoting damaged bytes in its own message
            return StoreCorrupt(self._advice("it holds bytes that are no text"))
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreLocked(
                f"{self._path} is in use by another process: is a broker already running on this"
                " data directory? Stop it or choose another directory"
            )
        # A plain SQL error at open means that the schema is not what we wrote.
        damage = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
        if code in damage or (action == "open" and code == sqlite3.SQLITE_ERROR):
            return StoreCorrupt(self._advice(str(error)))
        return StoreUnavailable(f"cannot {action} {self._path}: {error}")

    def _advice(self, problem: str) -> str:
        return (
            f"the metadata database {self._path} is damaged: {problem}. Restore it from a backup, or"
            f' salvage it with `sqlite3 {self._path} ".recover"`, or move it away (with its -wal'
            " file) to start with empty metadata: topics, their settings and the groups' offsets"
            " would be lost, the records would not"
        )


def _row(entry: Entry) -> tuple[str, bytes, int, int, int | None, int]:
    return (
        entry.key,
        entry.value,
        entry.create_revision,
        entry.mod_revision,
        entry.lease_id,
        _crc(entry),
    )


def _crc(entry: Entry) -> int:
    numbers = f"{entry.create_revision},{entry.mod_revision},{entry.lease_id},{len(entry.key)},"
    return zlib.crc32(entry.value, zlib.crc32((numbers + entry.key).encode()))


def _revision_crc(revision: int) -> int:
    return zlib.crc32(str(revision).encode())
