"""What is the etcd store's own: its key prefix, pages, leases, big and busy watches, closing."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import uvloop

from penstock.errors import ConfigError
from penstock.metadata import etcd as etcd_module
from penstock.metadata import etcd_watch
from penstock.metadata.errors import Compacted, LeaseLost, StoreUnavailable
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.store import Committed, Compare, Delete, Put, Transaction
from penstock.testing.proxy import proxy

if TYPE_CHECKING:
    from tests.metadata.conftest import Reader, SharedEtcd


@pytest.fixture
async def config(shared_etcd: SharedEtcd) -> AsyncIterator[EtcdConfig]:
    yield shared_etcd.fresh_config()
    await shared_etcd.end_leases()


@pytest.fixture
async def store(config: EtcdConfig) -> AsyncIterator[EtcdMetadataStore]:
    async with await EtcdMetadataStore.open(config) as store:
        yield store


async def put_many(store: EtcdMetadataStore, prefix: str, count: int, value: bytes = b"") -> int:
    """Writes `count` keys, a hundred at a time, and returns the last revision."""
    result = Committed(revision=0)
    for first in range(0, count, 100):
        keys = (f"{prefix}{n:06}" for n in range(first, min(first + 100, count)))
        transaction = Transaction(puts=tuple(Put(key=key, value=value) for key in keys))
        done = await store.commit(transaction)
        assert isinstance(done, Committed)
        result = done
    return result.revision


class TestKeyPrefix:
    async def test_stores_with_different_prefixes_do_not_see_each_other(
        self, config: EtcdConfig, read: Reader
    ) -> None:
        left = EtcdMetadataStore(replace(config, key_prefix=f"{config.key_prefix}a/"))
        right = EtcdMetadataStore(replace(config, key_prefix=f"{config.key_prefix}b/"))
        async with left, right:
            start = (await left.get_prefix("")).revision + 1
            watch = left.watch("", start)
            await left.put("k", b"left")
            await right.put("k", b"right")
            await right.commit(Transaction(deletes=(Delete(key="", prefix=True),)))
            await left.put("end", b"")
            assert [(e.key, e.value) for e in await read(watch, 2)] == [
                ("k", b"left"),
                ("end", b""),
            ]
            assert [e.key for e in (await left.get_prefix("")).entries] == ["end", "k"]
            assert (await right.get_prefix("")).entries == ()

    async def test_callers_never_see_the_prefix(
        self, store: EtcdMetadataStore, config: EtcdConfig, read: Reader
    ) -> None:
        async with EtcdMetadataStore(replace(config, key_prefix="")) as everything:
            at = await store.put("topics/a", b"")
            entry = await everything.get(f"{config.key_prefix}topics/a")
            assert entry is not None
            assert entry.mod_revision == at
            found = [e.key for e in (await everything.get_prefix("")).entries]
            assert f"{config.key_prefix}topics/a" in found
            (event,) = await read(store.watch("topics/", at), 1)
            assert event.key == "topics/a"


class TestPages:
    async def test_a_snapshot_of_many_pages_is_of_one_revision(
        self, store: EtcdMetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """First and last key always change together, so no snapshot may show them apart."""
        monkeypatch.setattr(etcd_module, "_PAGE_KEYS_FIRST", 3)
        monkeypatch.setattr(etcd_module, "_PAGE_KEYS_MAX", 50)
        await put_many(store, "k", 400)
        done = asyncio.Event()

        async def write() -> int:
            writes = 0
            while not done.is_set():
                value = str(writes).encode()
                puts = (Put(key="k", value=value), Put(key="k999999", value=value))
                await store.commit(Transaction(puts=puts))
                writes += 1
            return writes

        writer = asyncio.create_task(write())
        seen: set[bytes] = set()
        while len(seen) < 5:
            snapshot = await store.get_prefix("k")
            assert len(snapshot.entries) in (400, 402)
            if len(snapshot.entries) == 402:
                first, last = snapshot.entries[0], snapshot.entries[-1]
                assert first.value == last.value
                assert first.mod_revision == last.mod_revision <= snapshot.revision
                seen.add(first.value)
        done.set()
        assert await writer > 5

    async def test_pages_of_large_values_stay_small(self, store: EtcdMetadataStore) -> None:
        for first in range(0, 320, 64):
            puts = (Put(key=f"k{n:03}", value=b"v" * 16_000) for n in range(first, first + 64))
            await store.commit(Transaction(puts=tuple(puts)))
        snapshot = await store.get_prefix("k")
        assert [entry.key for entry in snapshot.entries] == [f"k{n:03}" for n in range(320)]

    async def test_compaction_between_two_pages_begins_the_snapshot_anew(
        self,
        store: EtcdMetadataStore,
        shared_etcd: SharedEtcd,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(etcd_module, "_PAGE_KEYS_FIRST", 1)
        monkeypatch.setattr(etcd_module, "_PAGE_KEYS_MAX", 1)
        await put_many(store, "k", 300)
        reading = asyncio.create_task(store.get_prefix("k"))
        await asyncio.sleep(0.02)
        assert not reading.done()
        newest = await store.put("other", b"")
        await shared_etcd.compact()
        snapshot = await reading
        assert len(snapshot.entries) == 300
        assert snapshot.revision >= newest  # else the reading was too fast to be disturbed


class TestLeases:
    async def test_a_slow_answer_does_not_lengthen_what_the_holder_believes(
        self, config: EtcdConfig
    ) -> None:
        async with proxy(config.endpoints[0]) as slow:
            store = await EtcdMetadataStore.open(replace(config, endpoints=(slow.address,)))
            async with store:
                slow.answer_delay_s = 0.3
                before = time.monotonic()
                lease = await store.lease(5)
                assert before + 4.5 < lease.expires_at <= before + 5 + 0.1
                assert time.monotonic() >= before + 0.3
                before = time.monotonic()
                await lease.keep_alive()
                assert before + 4.5 < lease.expires_at <= before + 5 + 0.1
                assert time.monotonic() >= before + 0.3

    async def test_a_keep_alive_that_fails_leaves_the_belief_as_it_was(
        self, config: EtcdConfig
    ) -> None:
        async with proxy(config.endpoints[0]) as line:
            store = await EtcdMetadataStore.open(replace(config, endpoints=(line.address,)))
            async with store:
                lease = await store.lease(1)
                believed = lease.expires_at
                line.silent = True
                with pytest.raises(StoreUnavailable, match=line.address):
                    await lease.keep_alive()
                assert lease.expires_at == believed
                # It gave up when the lease was over at the latest: there is nothing to win after that.
                assert time.monotonic() <= believed + 0.5
                line.silent = False

    async def test_a_lease_that_was_revoked_is_not_revived_by_a_late_answer(
        self, config: EtcdConfig
    ) -> None:
        async with proxy(config.endpoints[0]) as slow:
            store = await EtcdMetadataStore.open(replace(config, endpoints=(slow.address,)))
            async with store:
                lease = await store.lease(60)
                slow.answer_delay_s = 0.2
                kept = asyncio.create_task(lease.keep_alive())
                await asyncio.sleep(0.1)
                await lease.revoke()
                await asyncio.gather(kept, return_exceptions=True)
                assert lease.expires_at <= time.monotonic()
                with pytest.raises(LeaseLost):
                    await lease.keep_alive()

    async def test_the_lost_one_of_several_leases_is_named(self, store: EtcdMetadataStore) -> None:
        leases = [await store.lease(60) for _ in range(3)]
        await leases[1].revoke()
        puts = tuple(Put(key=f"k{n}", value=b"", lease_id=leases[n].id) for n in range(3))
        with pytest.raises(LeaseLost) as caught:
            await store.commit(Transaction(puts=puts))
        assert caught.value.lease_id == leases[1].id


class TestWatches:
    async def test_large_transactions_come_whole(
        self, store: EtcdMetadataStore, read: Reader
    ) -> None:
        """etcd sends a long past in pieces that may end within a revision."""
        start = (await store.get_prefix("")).revision + 1
        for _ in range(6):
            puts = (Put(key=f"k{n:02}", value=b"v" * 20_000) for n in range(50))
            await store.commit(Transaction(puts=tuple(puts)))
        async with aclosing(store.watch("k", start)) as watch:
            events = await read(watch, 300)
        assert Counter(event.mod_revision for event in events) == {start + n: 50 for n in range(6)}
        ends = [n for n, event in enumerate(events) if event.last_in_revision]
        assert ends == [49, 99, 149, 199, 249, 299]

    async def test_a_slow_reader_holds_a_bounded_number_of_events_and_misses_none(
        self, store: EtcdMetadataStore, read: Reader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(etcd_watch, "UNREAD_EVENTS_MAX", 100)
        start = (await store.get_prefix("")).revision + 1
        watch = store.watch("k", start)
        assert isinstance(watch, etcd_watch.EtcdWatch)
        await put_many(store, "k", 1)
        await read(watch, 1)
        await asyncio.gather(*(store.put("k", b"v" * 1000) for n in range(2000)))
        assert len(watch._unread._events) <= 110
        revisions = [event.mod_revision for event in await read(watch, 2000)]
        assert revisions == list(range(start + 1, start + 2001))

    async def test_a_watch_that_nobody_holds_ends(self, store: EtcdMetadataStore) -> None:
        watch = store.watch("k", 1)
        assert isinstance(watch, etcd_watch.EtcdWatch)
        pump = watch._task
        await asyncio.sleep(0.05)
        assert not pump.done()
        del watch
        gc.collect()
        async with asyncio.timeout(5):
            await asyncio.gather(pump, return_exceptions=True)

    async def test_a_delete_at_the_revision_of_a_compaction_is_not_lost(
        self, store: EtcdMetadataStore, shared_etcd: SharedEtcd, read: Reader
    ) -> None:
        """etcd takes a watch from that revision, though old ones have forgotten the delete."""
        await store.put("k", b"")
        deleted = (await store.commit(Transaction(deletes=(Delete(key="k"),)))).revision
        await shared_etcd.compact()
        watch = store.watch("k", deleted)
        await store.put("k", b"again")
        with pytest.raises(Compacted) as caught:
            await read(watch, 1)
        assert caught.value.oldest_revision == deleted + 1

    async def test_thousands_of_events_a_second_reach_every_watch(
        self, store: EtcdMetadataStore, read: Reader
    ) -> None:
        start = (await store.get_prefix("")).revision + 1
        watches = [store.watch("k", start) for _ in range(4)]
        transactions = [
            Transaction(puts=tuple(Put(key=f"k{n}/{i}", value=b"value") for i in range(20)))
            for n in range(250)
        ]
        reading = [asyncio.create_task(read(watch, 5000)) for watch in watches]
        await asyncio.gather(*(store.commit(transaction) for transaction in transactions))
        seen = await asyncio.gather(*reading)
        assert all(events == seen[0] for events in seen)
        assert sum(event.last_in_revision for event in seen[0]) == 250


class TestConcurrency:
    async def test_a_thousand_concurrent_compare_and_swaps_are_each_decided_once(
        self, store: EtcdMetadataStore
    ) -> None:
        chances = random.Random(4)
        keys = [f"k{n}" for n in range(100)]
        at = {key: await store.put(key, b"") for key in keys}
        choices = [chances.choice(keys) for _ in range(1000)]
        results = await asyncio.gather(
            *(
                store.commit(
                    Transaction(
                        compares=(Compare(key=key, mod_revision=at[key]),),
                        puts=(Put(key=key, value=str(n).encode()),),
                    )
                )
                for n, key in enumerate(choices)
            )
        )
        winners = {choices[n]: n for n, r in enumerate(results) if isinstance(r, Committed)}
        assert len(winners) == sum(isinstance(result, Committed) for result in results)
        values = {entry.key: entry.value for entry in (await store.get_prefix("k")).entries}
        assert winners.keys() == set(choices)
        assert all(values[key] == str(n).encode() for key, n in winners.items())

    def test_stores_in_several_threads_work_side_by_side_on_uvloop(
        self, shared_etcd: SharedEtcd
    ) -> None:
        config = shared_etcd.fresh_config()
        failures: list[BaseException] = []

        async def work(n: int) -> None:
            async with await EtcdMetadataStore.open(config) as store:
                lease = await store.lease(60)
                async with aclosing(store.watch(f"{n}/", 1)) as watch:
                    for i in range(50):
                        await store.put(f"{n}/k", str(i).encode(), lease=lease)
                        event = await asyncio.wait_for(anext(watch), 20)
                        assert event.value == str(i).encode()
                await lease.keep_alive()
                await lease.revoke()
                assert await store.get(f"{n}/k") is None

        def run(n: int) -> None:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(work(n))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []

    async def test_a_cancelled_caller_leaves_the_store_usable(
        self, store: EtcdMetadataStore
    ) -> None:
        for _ in range(20):
            calls = [asyncio.create_task(store.put("k", b"")) for _ in range(5)]
            calls.append(asyncio.create_task(store.get_prefix("")))  # type: ignore[arg-type]
            await asyncio.sleep(0.001)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        await store.put("last", b"")  # of another key: a cancelled put may come even after this one
        assert await store.get("last") is not None


class TestConfig:
    def test_endpoints_are_read_as_people_write_them(self) -> None:
        config = EtcdConfig.parse("a:1, b ,[::1]:3,[::2]")
        assert config.endpoints == ("a:1", "b:2379", "[::1]:3", "[::2]:2379")
        assert not config.uses_tls
        assert EtcdConfig.parse("https://a:1,https://b").uses_tls

    @pytest.mark.parametrize(
        "text", ["", " , ", "a:0", "a:99999", ":2379", "a:b", "ftp://a", "https://a,http://b"]
    )
    def test_what_is_no_endpoint_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError):
            EtcdConfig.parse(text)

    @pytest.mark.parametrize(
        "settings",
        [
            {"user": "penstock"},
            {"password": "secret"},
            {"cert_file": __file__},
            {"ca_file": "/no/such/file"},
            {"request_timeout_s": 0},
        ],
    )
    def test_halves_and_nonsense_are_refused(self, settings: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            EtcdConfig.parse("localhost", **settings)

    def test_the_password_is_not_shown(self) -> None:
        assert "hunter2" not in repr(EtcdConfig.parse("a", user="u", password="hunter2"))
