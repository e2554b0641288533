"""Random histories: the stores against a model that is too simple to be wrong.

Groups of transactions are committed concurrently and must come out as if done one by one; the SQLite
store is closed and reopened at random; a watch must have told the whole story. On etcd transactions are
committed one by one, for it decides concurrent ones in an order of its own, and time does not pass.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.metadata.embedded import EmbeddedStore
from penstock.metadata.errors import LeaseLost
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.memory import MemoryStore
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import (
    CommitResult,
    Committed,
    Compare,
    Delete,
    Entry,
    Lease,
    MetadataStore,
    Mismatch,
    Put,
    Rejected,
    Transaction,
    Watch,
)
from penstock.testing.etcd import EtcdCluster

if TYPE_CHECKING:
    from tests.metadata.conftest import SharedEtcd

KEYS = st.sampled_from(["a", "a/", "a/1", "a/2", "a0", "b/1", "b/é", "b/\x00", "c"])
PREFIXES = st.sampled_from(["", "a", "a/", "b/", "c", "x"])
AGE = st.integers(0, 3)  # how many of a key's writes ago a compare is taken from; 0: the right one


@dataclass(frozen=True)
class Plan:
    """A transaction in terms that can be drawn before the revisions are known."""

    compares: list[tuple[str, int]]
    puts: dict[str, tuple[bytes, bool]]
    deletes: list[str]
    delete_prefixes: list[str]


PLANS = st.builds(
    Plan,
    compares=st.lists(st.tuples(KEYS, AGE), max_size=2),
    puts=st.dictionaries(KEYS, st.tuples(st.binary(max_size=3), st.booleans()), max_size=3),
    deletes=st.lists(KEYS, max_size=2),
    delete_prefixes=st.lists(PREFIXES, max_size=1),
)


class Model:
    """The state as one dictionary, changed in the most obvious way."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, Entry] = {}
        self.leases: set[int] = set()
        self.told: list[tuple[int, dict[str, bytes | None]]] = []  # by revision, for the watch

    def commit(self, transaction: Transaction) -> CommitResult | type[LeaseLost]:
        mismatches = []
        for compare in transaction.compares:
            actual = self.entries.get(compare.key)
            if compare.mod_revision != (actual.mod_revision if actual else 0):
                mismatches.append(Mismatch(compare=compare, actual=actual))
        if mismatches:
            return Rejected(revision=self.revision, mismatches=tuple(mismatches))
        if any(put.lease_id not in {None, *self.leases} for put in transaction.puts):
            return LeaseLost
        doomed = {
            key
            for key in self.entries
            for delete in transaction.deletes
            if key == delete.key or (delete.prefix and key.startswith(delete.key))
        }
        self.change({put.key: put for put in transaction.puts}, doomed)
        return Committed(revision=self.revision)

    def end_lease(self, lease_id: int) -> None:
        self.leases.discard(lease_id)
        self.change({}, {key for key, e in self.entries.items() if e.lease_id == lease_id})

    def change(self, puts: dict[str, Put], doomed: set[str]) -> None:
        if not puts and not doomed:
            return
        self.revision += 1
        for key, put in puts.items():
            old = self.entries.get(key)
            self.entries[key] = Entry(
                key=key,
                value=put.value,
                create_revision=old.create_revision if old else self.revision,
                mod_revision=self.revision,
                lease_id=put.lease_id,
            )
        for key in doomed:
            del self.entries[key]
        told: dict[str, bytes | None] = {key: put.value for key, put in puts.items()}
        self.told.append((self.revision, told | dict.fromkeys(doomed)))


class MemoryMachine(RuleBasedStateMachine):
    store: MetadataStore
    watch: Watch

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.time = 0.0
        self.model = Model()
        self.leases: list[Lease] = []

    def now(self) -> float:
        return self.time

    @initialize()
    def begin(self) -> None:
        async def begin() -> None:
            self.store = MemoryStore(now=self.now)
            self.watch = self.store.watch("", 2)

        self.runner.run(begin())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.runner.run(self.store.close())
        self.runner.close()

    def transaction(self, plan: Plan) -> Transaction:
        compares = []
        for key, age in plan.compares:
            entry = self.model.entries.get(key)
            right = entry.mod_revision if entry else 0
            compares.append(Compare(key=key, mod_revision=max(0, right - age)))
        lease_id = self.leases[-1].id if self.leases else None
        covered = tuple(plan.delete_prefixes)
        puts = tuple(
            Put(key=key, value=value, lease_id=lease_id if leased else None)
            for key, (value, leased) in plan.puts.items()
            if not covered or not key.startswith(covered)
        )
        deletes = [Delete(key=key) for key in plan.deletes if key not in {p.key for p in puts}]
        deletes += [Delete(key=prefix, prefix=True) for prefix in plan.delete_prefixes]
        return Transaction(compares=tuple(compares), puts=puts, deletes=tuple(deletes))

    @rule(plans=st.lists(PLANS, min_size=1, max_size=6))
    def commit_concurrently(self, plans: list[Plan]) -> None:
        transactions = [self.transaction(plan) for plan in plans]

        async def commit() -> list[CommitResult | BaseException]:
            commits = (self.store.commit(transaction) for transaction in transactions)
            return await asyncio.gather(*commits, return_exceptions=True)

        for transaction, result in zip(transactions, self.runner.run(commit()), strict=True):
            expected = self.model.commit(transaction)
            if isinstance(expected, type):
                assert isinstance(result, expected)
            else:
                assert result == expected

    @rule(ttl_s=st.integers(1, 5))
    def take_lease(self, ttl_s: int) -> None:
        lease = self.runner.run(self.store.lease(ttl_s))
        self.leases.append(lease)
        self.model.leases.add(lease.id)

    @precondition(lambda self: self.leases)
    @rule()
    def revoke_lease(self) -> None:
        lease = self.leases[-1]
        self.runner.run(lease.revoke())
        self.model.end_lease(lease.id)

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds: int) -> None:
        async def expire() -> None:
            assert isinstance(self.store, EmbeddedStore)
            self.store.expire_leases()
            await self.store.commit(Transaction())  # waits for all that was before it

        self.time += seconds
        self.runner.run(expire())
        for lease in self.leases:
            if lease.id in self.model.leases and lease.expires_at <= self.time:
                self.model.end_lease(lease.id)

    @rule(prefix=PREFIXES)
    def read_prefix(self, prefix: str) -> None:
        snapshot = self.runner.run(self.store.get_prefix(prefix))
        expected = [e for k, e in sorted(self.model.entries.items()) if k.startswith(prefix)]
        assert list(snapshot.entries) == expected

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        snapshot = self.runner.run(self.store.get_prefix(""))
        assert list(snapshot.entries) == [e for _, e in sorted(self.model.entries.items())]
        assert snapshot.revision == self.model.revision

    @invariant()
    def the_watch_told_the_whole_story(self) -> None:
        async def read() -> list[tuple[int, dict[str, bytes | None]]]:
            told = []
            for _ in self.model.told:
                events: dict[str, bytes | None] = {}
                while True:
                    event = await asyncio.wait_for(anext(self.watch), 20)
                    assert event.key not in events
                    events[event.key] = event.value
                    if event.last_in_revision:
                        break
                told.append((event.mod_revision, events))
            return told

        assert self.runner.run(read()) == self.model.told
        self.model.told.clear()


class SqliteMachine(MemoryMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()

    async def open(self) -> None:
        self.store = await SqliteStore.open(Path(self.directory.name, "m.db"), now=self.now)
        self.watch = self.store.watch("", self.model.revision + 1)

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.open())

    @rule()
    def reopen(self) -> None:
        for lease_id in {e.lease_id for e in self.model.entries.values() if e.lease_id is not None}:
            self.model.end_lease(lease_id)
        self.model.leases.clear()
        self.model.told.clear()
        self.leases.clear()

        async def reopen() -> None:
            await self.store.close()
            await self.open()

        self.runner.run(reopen())

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class EtcdMachine(MemoryMachine):
    cluster: EtcdCluster  # set by the test

    @initialize()
    def begin(self) -> None:
        async def begin() -> None:
            prefix = f"{uuid.uuid4().hex}/"
            config = EtcdConfig(endpoints=self.cluster.endpoints, key_prefix=prefix)
            self.store = await EtcdMetadataStore.open(config)
            self.model.revision = (await self.store.get_prefix("")).revision
            self.watch = self.store.watch("", self.model.revision + 1)

        self.runner.run(begin())

    @rule(plans=st.lists(PLANS, min_size=1, max_size=6))
    def commit_concurrently(self, plans: list[Plan]) -> None:
        for plan in plans:
            super().commit_concurrently([plan])

    @rule(ttl_s=st.just(300))
    def take_lease(self, ttl_s: int) -> None:
        super().take_lease(ttl_s)

    @rule(seconds=st.just(0))
    def pass_time(self, seconds: int) -> None:
        pass

    def teardown(self) -> None:
        for lease in self.leases:  # else they would end in the middle of another history
            self.runner.run(lease.revoke())
        super().teardown()


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMemoryAgainstModel = MemoryMachine.TestCase
TestMemoryAgainstModel.settings = SETTINGS
TestSqliteAgainstModel = SqliteMachine.TestCase
TestSqliteAgainstModel.settings = SETTINGS


def test_etcd_against_model(shared_etcd: SharedEtcd) -> None:
    shared_etcd.fresh_config()
    EtcdMachine.cluster = shared_etcd.cluster
    run_state_machine_as_test(
        EtcdMachine, settings=settings(SETTINGS, max_examples=15, derandomize=True)
    )
