"""What only the SQLite store promises: durability, group commit, and honest failure."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from penstock.metadata.errors import (
    LeaseLost,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreUnavailable,
)
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.sqlite_file import SqliteFile
from penstock.metadata.store import (
    Committed,
    Compare,
    Delete,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)

if TYPE_CHECKING:
    from tests.metadata.conftest import Reader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


F = TypeVar("F", bound=SqliteFile)


async def keys(store: MetadataStore) -> list[str]:
    return [entry.key for entry in (await store.get_prefix("")).entries]


class GatedFile(SqliteFile):
    """A file whose writes stop at a gate, before they begin, until the test opens it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)  # a write waits at the closed gate

    def write(self, *args: Any, **kwargs: Any) -> None:
        if not self.gate.is_set():
            self.arrived.release()
            assert self.gate.wait(20)
        super().write(*args, **kwargs)


class FaultyConnection(sqlite3.Connection):
    """A connection whose next COMMIT fails before or after it is done."""

    fail_before_commit = False
    fail_after_commit = False

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.fail_before_commit:
            self.fail_before_commit = False
            raise sqlite3.OperationalError("disk I/O error")
        cursor = super().execute(sql, *args)
        if sql == "COMMIT" and self.fail_after_commit:
            self.fail_after_commit = False
            raise sqlite3.OperationalError("disk I/O error")
        return cursor


class FaultyFile(SqliteFile):
    def _connect(self) -> FaultyConnection:
        self.connection = sqlite3.connect(
            self._path, timeout=0, isolation_level=None, factory=FaultyConnection
        )
        return self.connection


async def open_with(path: Path, kind: Callable[[Path], F]) -> tuple[SqliteStore, F]:
    file = kind(path)
    return await SqliteStore.open(path, file_at=lambda _: file), file


class TestReopening:
    async def test_everything_committed_is_there_again(self, path: Path) -> None:
        async with await SqliteStore.open(path) as store:
            await asyncio.gather(*(store.put(f"k{n}", bytes([n])) for n in range(100)))
            await store.commit(Transaction(deletes=(Delete(key="k1", prefix=True),)))
            await store.put("k0", b"again")
            before = await store.get_prefix("")
        async with await SqliteStore.open(path) as store:
            assert await store.get_prefix("") == before
            assert await store.put("k", b"") == before.revision + 1

    async def test_leased_keys_are_deleted_because_leases_die_with_the_process(
        self, path: Path
    ) -> None:
        async with await SqliteStore.open(path) as store:
            await store.put("topics/a", b"")
            lease = await store.lease(3600)
            await store.put("brokers/1", b"", lease=lease)
            last = await store.put("controller", b"", lease=lease)
        for _ in range(2):
            async with await SqliteStore.open(path) as store:
                assert await keys(store) == ["topics/a"]
                assert (await store.get_prefix("")).revision == last + 1
                await store.put("brokers/1", b"", lease=await store.lease(1), expected_revision=0)
                last += 1
            last += 1
        async with await SqliteStore.open(path) as store:
            with pytest.raises(LeaseLost):
                await store.commit(Transaction(puts=(Put(key="k", value=b"", lease_id=lease.id),)))

    async def test_a_write_is_synced_before_it_is_answered(self, path: Path) -> None:
        class AskingFile(SqliteFile):
            def write(self, *args: Any, **kwargs: Any) -> None:
                assert self._connection is not None
                for pragma in ("synchronous", "journal_mode", "locking_mode"):
                    (answer,) = self._connection.execute(f"PRAGMA {pragma}").fetchone()
                    answers[pragma] = answer
                super().write(*args, **kwargs)

        answers: dict[str, object] = {}
        store, _ = await open_with(path, AskingFile)
        async with store:
            await store.put("k", b"")
        assert answers == {"synchronous": 2, "journal_mode": "wal", "locking_mode": "exclusive"}


class TestGroupCommit:
    async def test_a_thousand_concurrent_commits_share_a_few_syncs(self, path: Path) -> None:
        async with await SqliteStore.open(path) as store:
            await asyncio.gather(*(store.put(f"k{n}", b"") for n in range(1000)))
            assert store.groups_written <= 5
            assert len(await keys(store)) == 1000

    async def test_commits_gather_while_a_group_is_being_synced(self, path: Path) -> None:
        store, file = await open_with(path, GatedFile)
        async with store:
            file.gate.clear()
            first = asyncio.create_task(store.put("first", b""))
            await asyncio.to_thread(file.arrived.acquire)
            rest = [asyncio.create_task(store.put(f"k{n}", b"")) for n in range(50)]
            await asyncio.sleep(0)
            file.gate.set()
            revisions = await asyncio.gather(first, *rest)
            assert store.groups_written == 2
            assert revisions == list(range(revisions[0], revisions[0] + 51))

    async def test_each_commit_of_a_group_is_compared_in_its_turn(self, path: Path) -> None:
        """Rejections neither disturb their group nor miss what it did just before."""
        create = Transaction(
            compares=(Compare(key="k", mod_revision=0),), puts=(Put(key="k", value=b""),)
        )
        delete = Transaction(deletes=(Delete(key="k", prefix=True),))
        async with await SqliteStore.open(path) as store:
            results = await asyncio.gather(
                *(store.commit(t) for t in (create, create, delete, create, create, delete, delete))
            )
            outcome = [isinstance(result, Committed) for result in results]
            assert outcome == [True, False, True, True, False, True, True]
            first = results[0].revision
            assert [r.revision - first for r in results] == [0, 0, 1, 2, 2, 3, 3]
            assert store.groups_written == 1

    async def test_what_changes_nothing_is_not_written(self, path: Path) -> None:
        async with await SqliteStore.open(path) as store:
            await store.commit(Transaction())
            await store.commit(Transaction(deletes=(Delete(key="absent"),)))
            await store.commit(Transaction(compares=(Compare(key="k", mod_revision=9),)))
            assert store.groups_written == 0

    async def test_a_commit_cancelled_in_the_queue_is_withdrawn(self, path: Path) -> None:
        store, file = await open_with(path, GatedFile)
        async with store:
            file.gate.clear()
            first = asyncio.create_task(store.put("first", b""))
            await asyncio.to_thread(file.arrived.acquire)
            waiting = [asyncio.create_task(store.put(name, b"")) for name in ("gone", "kept")]
            await asyncio.sleep(0)
            waiting[0].cancel()
            file.gate.set()
            await asyncio.gather(first, *waiting, return_exceptions=True)
            assert await keys(store) == ["first", "kept"]

    async def test_a_commit_cancelled_while_it_is_written_is_still_whole(self, path: Path) -> None:
        store, file = await open_with(path, GatedFile)
        async with store:
            file.gate.clear()
            written = asyncio.create_task(store.put("k", b""))
            await asyncio.to_thread(file.arrived.acquire)
            written.cancel()
            file.gate.set()
            assert await store.put("l", b"") == 3
            assert await keys(store) == ["k", "l"]

    async def test_what_waits_for_the_disk_is_bounded(self, path: Path) -> None:
        store, file = await open_with(path, GatedFile)
        async with store:
            file.gate.clear()
            first = asyncio.create_task(store.put("first", b""))
            await asyncio.to_thread(file.arrived.acquire)
            value = bytes(1_000_000)
            many = [asyncio.create_task(store.put(f"k{n}", value)) for n in range(150)]
            await asyncio.sleep(0)
            refused = [task for task in many if task.done()]
            assert 0 < len(refused) < 50
            for task in refused:
                assert isinstance(task.exception(), StoreUnavailable)
            for task in many:
                task.cancel()
            file.gate.set()
            await first
            await store.put("later", value)
            assert await keys(store) == ["first", "later"]

    async def test_a_key_detached_in_the_group_that_ends_its_lease_is_spared(
        self, path: Path
    ) -> None:
        store, file = await open_with(path, GatedFile)
        async with store:
            lease = await store.lease(60)
            for key in ("plain", "deleted", "leased"):
                await store.put(key, b"", lease=lease)
            file.gate.clear()
            groups = store.groups_written
            first = asyncio.create_task(store.put("first", b""))
            await asyncio.to_thread(file.arrived.acquire)
            detach = Transaction(
                puts=(Put(key="plain", value=b""),), deletes=(Delete(key="deleted"),)
            )
            detaching = asyncio.create_task(store.commit(detach))
            await asyncio.sleep(0)
            revoking = asyncio.create_task(lease.revoke())
            await asyncio.sleep(0)
            file.gate.set()
            await asyncio.gather(first, detaching, revoking)
            assert store.groups_written == groups + 2
            assert await keys(store) == ["first", "plain"]


class TestNothingIsShownBeforeItIsDurable:
    async def test_reads_watches_and_rejections_wait_for_the_sync(
        self, path: Path, read: Reader
    ) -> None:
        store, file = await open_with(path, GatedFile)
        async with store:
            watch = store.watch("k", 2)
            file.gate.clear()
            writing = asyncio.create_task(store.put("k", b"new"))
            await asyncio.to_thread(file.arrived.acquire)
            losing = asyncio.create_task(
                store.commit(Transaction(compares=(Compare(key="k", mod_revision=0),)))
            )
            reading = asyncio.create_task(read(watch, 1))
            await asyncio.sleep(0)
            assert await store.get("k") is None
            assert (await store.get_prefix("")).revision == 1
            assert not any(task.done() for task in (writing, losing, reading))
            file.gate.set()
            assert await writing == 2
            assert isinstance(await losing, Rejected)
            assert [event.value for event in await reading] == [b"new"]

    async def test_a_group_that_cannot_be_written_never_happened(
        self, path: Path, read: Reader
    ) -> None:
        store, file = await open_with(path, FaultyFile)
        async with store:
            kept = await store.put("kept", b"")
            watch = store.watch("", kept + 1)
            file.connection.fail_before_commit = True
            lost = await asyncio.gather(
                store.put("k", b""),
                store.commit(Transaction(compares=(Compare(key="k", mod_revision=0),))),
                store.commit(Transaction(deletes=(Delete(key="kept"),))),
                return_exceptions=True,
            )
            assert all(isinstance(error, StoreUnavailable) for error in lost)
            assert await keys(store) == ["kept"]
            assert await store.put("later", b"") == kept + 1
            assert [event.key for event in await read(watch, 1)] == ["later"]
            snapshot = await store.get_prefix("")
        async with await SqliteStore.open(path) as store:
            assert await store.get_prefix("") == snapshot

    async def test_a_write_that_was_committed_before_the_error_counts(self, path: Path) -> None:
        store, file = await open_with(path, FaultyFile)
        async with store:
            file.connection.fail_after_commit = True
            at = await store.put("k", b"")
            assert await store.put("l", b"") == at + 1

    async def test_an_ended_lease_is_cleaned_up_once_the_disk_works_again(
        self, path: Path, read: Reader
    ) -> None:
        store, file = await open_with(path, FaultyFile)
        async with store:
            lease = await store.lease(60)
            at = await store.put("brokers/1", b"", lease=lease)
            file.connection.fail_before_commit = True
            with pytest.raises(StoreUnavailable):
                await lease.revoke()
            with pytest.raises(LeaseLost):
                await lease.keep_alive()
            (event,) = await read(store.watch("", at + 1), 1)
            assert (event.key, event.deleted) == ("brokers/1", True)

    async def test_the_timer_ends_leases_in_real_time(self, path: Path, read: Reader) -> None:
        async with await SqliteStore.open(path) as store:
            at = await store.put("brokers/1", b"", lease=await store.lease(1))
            (event,) = await read(store.watch("", at + 1), 1)
            assert (event.key, event.deleted) == ("brokers/1", True)


class TestOpening:
    async def test_a_second_opener_is_told_who_is_in_the_way(self, path: Path) -> None:
        async with await SqliteStore.open(path) as store:
            with pytest.raises(StoreLocked, match="already running"):
                await SqliteStore.open(path)
            await store.put("k", b"")
            with pytest.raises(StoreLocked):
                await SqliteStore.open(path)
        async with await SqliteStore.open(path) as store:
            assert await keys(store) == ["k"]

    async def test_a_directory_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match="nowhere"):
            await SqliteStore.open(tmp_path / "nowhere" / "metadata.db")

    @pytest.mark.parametrize("content", [b"not a database, but long enough to look like one" * 99])
    async def test_a_file_that_is_no_database_is_refused(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(StoreCorrupt, match="Restore it from a backup"):
            await SqliteStore.open(path)
        assert path.read_bytes() == content

    async def test_a_database_of_another_program_is_refused(self, path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        connection.close()
        with pytest.raises(StoreCorrupt, match="not a Penstock metadata database"):
            await SqliteStore.open(path)

    async def test_a_newer_format_is_refused(self, path: Path) -> None:
        await (await SqliteStore.open(path)).close()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 2")
        connection.close()
        with pytest.raises(StoreCorrupt, match="format 2"):
            await SqliteStore.open(path)

    async def test_a_revision_that_fails_its_checksum_is_refused(self, path: Path) -> None:
        await self._fill(path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE store SET revision = revision + 1")
        connection.close()
        with pytest.raises(StoreCorrupt, match="its revision cannot be read"):
            await SqliteStore.open(path)

    async def test_a_truncated_file_is_refused(self, path: Path) -> None:
        await self._fill(path)
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(StoreCorrupt, match="Restore it from a backup"):
            await SqliteStore.open(path)

    async def test_damage_anywhere_is_refused_or_harmless(self, path: Path) -> None:
        """One flipped bit: the store does not open, or opens with exactly what was written."""
        await self._fill(path)
        sound = path.read_bytes()
        async with await SqliteStore.open(path) as store:
            before = await store.get_prefix("")
        rng = random.Random(7)
        positions = [*range(100), *(rng.randrange(len(sound)) for _ in range(200))]
        refused = 0
        for position in positions:
            damaged = bytearray(sound)
            damaged[position] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            try:
                async with await SqliteStore.open(path) as store:
                    assert await store.get_prefix("") == before, f"byte {position}"
            except StoreError:
                refused += 1
            for leftover in path.parent.glob("metadata.db-*"):
                leftover.unlink()
        assert refused > len(positions) / 2

    async def _fill(self, path: Path) -> None:
        async with await SqliteStore.open(path) as store:
            puts = [store.put(f"topics/{n:03}", random.Random(n).randbytes(60)) for n in range(300)]
            await asyncio.gather(*puts)
