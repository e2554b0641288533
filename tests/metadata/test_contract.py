"""What every `MetadataStore` promises. Each test runs on every engine and states one rule."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from penstock.metadata.errors import Compacted, LeaseLost, RevisionMismatch, StoreClosed
from penstock.metadata.store import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    Committed,
    Compare,
    Delete,
    Entry,
    MetadataStore,
    Mismatch,
    Put,
    Rejected,
    Transaction,
)

if TYPE_CHECKING:
    from tests.metadata.conftest import Backend, Reader


def put(key: str, value: bytes = b"", lease_id: int | None = None) -> Transaction:
    return Transaction(puts=(Put(key=key, value=value, lease_id=lease_id),))


async def revision(store: MetadataStore) -> int:
    return (await store.get_prefix("")).revision


async def keys(store: MetadataStore, prefix: str = "") -> list[str]:
    return [entry.key for entry in (await store.get_prefix(prefix)).entries]


class TestReading:
    async def test_a_key_never_written_is_none(self, store: MetadataStore) -> None:
        assert await store.get("topics/a") is None

    async def test_a_read_after_a_write_sees_it(self, store: MetadataStore) -> None:
        at = await store.put("topics/a", b"one")
        assert await store.get("topics/a") == Entry(
            key="topics/a", value=b"one", create_revision=at, mod_revision=at
        )

    @pytest.mark.parametrize("value", [b"", b"\x00\xff", b"x" * 100_000])
    async def test_values_are_any_bytes(self, store: MetadataStore, value: bytes) -> None:
        await store.put("k", value)
        entry = await store.get("k")
        assert entry is not None
        assert entry.value == value

    @pytest.mark.parametrize("key", ["ключ/𝄞", "a b\n", "nul\x00in", "%'\"\\", "x" * 1000])
    async def test_keys_are_any_text(self, store: MetadataStore, key: str) -> None:
        await store.put(key, b"v")
        assert await keys(store) == [key]
        await store.commit(Transaction(deletes=(Delete(key=key),)))
        assert await store.get(key) is None

    async def test_a_prefix_read_is_sorted_and_holds_nothing_else(
        self, store: MetadataStore
    ) -> None:
        for key in ("b/2", "b", "b/", "b0", "a/1", "b/10", "b/\U0010ffff", "b/é", "c"):
            await store.put(key, b"")
        assert await keys(store, "b/") == ["b/", "b/10", "b/2", "b/é", "b/\U0010ffff"]
        assert await keys(store, "z") == []

    async def test_the_empty_prefix_is_every_key(self, store: MetadataStore) -> None:
        await asyncio.gather(*(store.put(f"k{n:04}", b"") for n in range(3000)))
        assert await keys(store) == [f"k{n:04}" for n in range(3000)]
        assert len(await keys(store, "k1")) == 1000

    async def test_a_snapshot_carries_the_revision_it_was_read_at(
        self, store: MetadataStore
    ) -> None:
        before = await store.get_prefix("nothing/")
        assert before.revision >= 1
        at = await store.put("elsewhere", b"")
        assert (await store.get_prefix("nothing/")).revision == at == before.revision + 1


class TestTransactions:
    async def test_each_write_transaction_raises_the_revision_by_one(
        self, store: MetadataStore
    ) -> None:
        start = await revision(store)
        assert await store.put("a", b"") == start + 1
        assert await store.put("a", b"") == start + 2
        assert await store.commit(put("b")) == Committed(revision=start + 3)
        deleted = await store.commit(Transaction(deletes=(Delete(key="a"),)))
        assert deleted == Committed(revision=start + 4)

    async def test_all_keys_of_a_transaction_share_its_revision(self, store: MetadataStore) -> None:
        puts = tuple(Put(key=f"k{n}", value=b"") for n in range(10))
        result = await store.commit(Transaction(puts=puts))
        snapshot = await store.get_prefix("k")
        assert {entry.mod_revision for entry in snapshot.entries} == {result.revision}

    @pytest.mark.parametrize(
        "transaction",
        [
            Transaction(),
            Transaction(deletes=(Delete(key="absent"), Delete(key="none/", prefix=True))),
            Transaction(compares=(Compare(key="absent", mod_revision=0),)),
        ],
    )
    async def test_a_transaction_that_changes_nothing_keeps_the_revision(
        self, store: MetadataStore, transaction: Transaction
    ) -> None:
        at = await store.put("a", b"")
        assert await store.commit(transaction) == Committed(revision=at)
        assert await revision(store) == at

    async def test_an_overwrite_keeps_the_create_revision_and_a_delete_ends_it(
        self, store: MetadataStore
    ) -> None:
        first = await store.put("a", b"1")
        second = await store.put("a", b"2")
        entry = await store.get("a")
        assert entry is not None
        assert (entry.create_revision, entry.mod_revision) == (first, second)
        await store.commit(Transaction(deletes=(Delete(key="a"),)))
        again = await store.put("a", b"3")
        entry = await store.get("a")
        assert entry is not None
        assert (entry.create_revision, entry.mod_revision) == (again, again)

    async def test_a_compare_holds_at_exactly_the_last_write(self, store: MetadataStore) -> None:
        first = await store.put("a", b"1")
        second = await store.put("a", b"2", expected_revision=first)
        for wrong in (0, first, second + 1):
            with pytest.raises(RevisionMismatch) as caught:
                await store.put("a", b"3", expected_revision=wrong)
            assert caught.value.mismatch.actual == await store.get("a")
        assert (await store.get("a")) == Entry(
            key="a", value=b"2", create_revision=first, mod_revision=second
        )

    async def test_expecting_revision_zero_creates_only_what_is_absent(
        self, store: MetadataStore
    ) -> None:
        await store.put("a", b"1", expected_revision=0)
        with pytest.raises(RevisionMismatch):
            await store.put("a", b"2", expected_revision=0)
        await store.commit(Transaction(deletes=(Delete(key="a"),)))
        await store.put("a", b"3", expected_revision=0)

    async def test_expecting_a_revision_of_an_absent_key_fails(self, store: MetadataStore) -> None:
        with pytest.raises(RevisionMismatch) as caught:
            await store.put("a", b"", expected_revision=5)
        assert caught.value.mismatch.actual is None

    async def test_a_failed_compare_does_nothing_and_names_all_that_failed(
        self, store: MetadataStore
    ) -> None:
        at = await store.put("holds", b"")
        other = await store.put("differs", b"now")
        holds = Compare(key="holds", mod_revision=at)
        differs = Compare(key="differs", mod_revision=at)
        absent = Compare(key="absent", mod_revision=at)
        result = await store.commit(
            Transaction(
                compares=(differs, holds, absent),
                puts=(Put(key="new", value=b""),),
                deletes=(Delete(key="holds"), Delete(key="d", prefix=True)),
            )
        )
        assert result == Rejected(
            revision=other,
            mismatches=(
                Mismatch(compare=differs, actual=await store.get("differs")),
                Mismatch(compare=absent, actual=None),
            ),
        )
        assert await keys(store) == ["differs", "holds"]
        assert await revision(store) == other

    async def test_compares_may_guard_keys_that_are_not_written(self, store: MetadataStore) -> None:
        epoch = await store.put("epoch", b"7")
        guarded = Transaction(
            compares=(Compare(key="epoch", mod_revision=epoch),), puts=(Put(key="isr", value=b""),)
        )
        assert isinstance(await store.commit(guarded), Committed)
        await store.put("epoch", b"8")
        assert isinstance(await store.commit(guarded), Rejected)

    async def test_puts_and_deletes_happen_together(self, store: MetadataStore) -> None:
        for key in ("t/a", "t/b", "u", "v"):
            await store.put(key, b"old")
        await store.commit(
            Transaction(
                puts=(Put(key="v", value=b"new"), Put(key="w", value=b"new")),
                deletes=(Delete(key="t/", prefix=True), Delete(key="u"), Delete(key="t/a")),
            )
        )
        assert await keys(store) == ["v", "w"]

    async def test_a_delete_by_prefix_spares_its_neighbours(self, store: MetadataStore) -> None:
        for key in ("a", "a.", "a/", "a/1", "a/2/3", "a0"):
            await store.put(key, b"")
        await store.commit(Transaction(deletes=(Delete(key="a/", prefix=True),)))
        assert await keys(store) == ["a", "a.", "a0"]

    async def test_of_many_who_create_one_key_exactly_one_wins(self, store: MetadataStore) -> None:
        election = [
            Transaction(
                compares=(Compare(key="controller", mod_revision=0),),
                puts=(Put(key="controller", value=str(n).encode()),),
            )
            for n in range(50)
        ]
        results = await asyncio.gather(*(store.commit(transaction) for transaction in election))
        winners = [n for n, result in enumerate(results) if isinstance(result, Committed)]
        controller = await store.get("controller")
        assert controller is not None
        assert [str(n).encode() for n in winners] == [controller.value]
        losers = [result for result in results if isinstance(result, Rejected)]
        assert all(result.mismatches[0].actual == controller for result in losers)

    async def test_concurrent_counting_by_compare_and_swap_loses_no_count(
        self, store: MetadataStore
    ) -> None:
        await store.put("count", b"0")

        async def count_up() -> None:
            while True:
                entry = await store.get("count")
                assert entry is not None
                value = str(int(entry.value) + 1).encode()
                try:
                    await store.put("count", value, expected_revision=entry.mod_revision)
                    return
                except RevisionMismatch:
                    continue

        await asyncio.gather(*(count_up() for _ in range(30)))
        entry = await store.get("count")
        assert entry is not None
        assert entry.value == b"30"

    async def test_concurrent_commits_get_revisions_of_their_own(
        self, store: MetadataStore
    ) -> None:
        start = await revision(store)
        revisions = await asyncio.gather(*(store.put(f"k{n}", b"") for n in range(200)))
        assert sorted(revisions) == list(range(start + 1, start + 201))
        for n, at in enumerate(revisions):
            entry = await store.get(f"k{n}")
            assert entry is not None
            assert entry.mod_revision == at

    async def test_a_transaction_may_be_as_large_as_the_limits_say(
        self, store: MetadataStore
    ) -> None:
        compares = tuple(
            Compare(key=f"k{n:03}", mod_revision=0) for n in range(TRANSACTION_OPERATIONS_MAX)
        )
        size = TRANSACTION_BYTES_MAX // TRANSACTION_OPERATIONS_MAX - 8
        puts = tuple(Put(key=compare.key, value=b"v" * size) for compare in compares)
        assert isinstance(await store.commit(Transaction(compares=compares, puts=puts)), Committed)
        assert len(await keys(store)) == TRANSACTION_OPERATIONS_MAX


class TestWatching:
    async def test_live_events_come_in_order(self, store: MetadataStore, read: Reader) -> None:
        watch = store.watch("a/", await revision(store) + 1)
        one = await store.put("a/1", b"x")
        two = await store.put("a/2", b"y")
        three = (await store.commit(Transaction(deletes=(Delete(key="a/1"),)))).revision
        events = await read(watch, 3)
        assert [(e.key, e.value, e.mod_revision) for e in events] == [
            ("a/1", b"x", one),
            ("a/2", b"y", two),
            ("a/1", None, three),
        ]
        assert [event.deleted for event in events] == [False, False, True]

    async def test_past_and_live_events_join_without_gap_or_duplicate(
        self, store: MetadataStore, read: Reader
    ) -> None:
        revisions = [await store.put("k", str(n).encode()) for n in range(10)]
        watch = store.watch("k", revisions[4])

        async def write_live() -> None:
            for n in range(10, 20):
                await store.put("k", str(n).encode())

        live = asyncio.create_task(write_live())
        events = await read(watch, 15)
        await live
        assert [event.value for event in events] == [str(n).encode() for n in range(5 - 1, 19)]
        tail = store.watch("k", events[-1].mod_revision + 1)
        assert [event.value for event in await read(tail, 1)] == [b"19"]

    async def test_what_happens_before_the_first_read_is_not_missed(
        self, store: MetadataStore, read: Reader
    ) -> None:
        watch = store.watch("k", await revision(store) + 1)
        await store.put("k", b"early")
        await store.put("k", b"late")
        assert [event.value for event in await read(watch, 2)] == [b"early", b"late"]

    async def test_a_new_store_can_be_watched_from_its_beginning(
        self, store: MetadataStore, read: Reader
    ) -> None:
        watches = [store.watch("k", 1)]
        await store.put("k", b"first")
        watches.append(store.watch("k", 1))
        for watch in watches:
            assert [event.value for event in await read(watch, 1)] == [b"first"]

    async def test_only_the_prefix_is_seen(self, store: MetadataStore, read: Reader) -> None:
        watch = store.watch("a/", await revision(store) + 1)
        for key in ("a", "a0", "b/1", "a/in", "ab", "a/end"):
            await store.put(key, b"")
        assert [event.key for event in await read(watch, 2)] == ["a/in", "a/end"]

    async def test_a_rejected_transaction_makes_no_event(
        self, store: MetadataStore, read: Reader
    ) -> None:
        watch = store.watch("", await revision(store) + 1)
        with pytest.raises(RevisionMismatch):
            await store.put("a", b"", expected_revision=99)
        await store.commit(Transaction(deletes=(Delete(key="absent"),)))
        await store.put("b", b"")
        assert [event.key for event in await read(watch, 1)] == ["b"]

    async def test_the_last_event_of_each_revision_is_marked(
        self, store: MetadataStore, read: Reader
    ) -> None:
        start = await revision(store) + 1
        live = store.watch("a/", start)
        names = ("b/0", "a/1", "a/2", "b/3")
        await store.commit(Transaction(puts=tuple(Put(key=k, value=b"") for k in names)))
        await store.commit(Transaction(deletes=(Delete(key="a/", prefix=True),)))
        for watch in (live, store.watch("a/", start)):
            events = await read(watch, 4)
            assert [(e.mod_revision, e.last_in_revision) for e in events] == [
                (start, False),
                (start, True),
                (start + 1, False),
                (start + 1, True),
            ]
            assert {event.key for event in events[:2]} == {event.key for event in events[2:]}

    async def test_a_watch_may_start_in_the_future(
        self, store: MetadataStore, read: Reader
    ) -> None:
        at = await revision(store)
        watch = store.watch("k", at + 3)
        for n in (1, 2, 3):
            await store.put("k", str(n).encode())
        assert [event.value for event in await read(watch, 1)] == [b"3"]

    async def test_every_watch_sees_every_event(self, store: MetadataStore, read: Reader) -> None:
        start = await revision(store) + 1
        watches = [store.watch("k", start) for _ in range(5)]
        await asyncio.gather(*(store.put(f"k{n}", b"") for n in range(40)))
        seen = await asyncio.gather(*(read(watch, 40) for watch in watches))
        assert [event.mod_revision for event in seen[0]] == list(range(start, start + 40))
        assert all(events == seen[0] for events in seen)

    async def test_a_snapshot_plus_its_watch_is_the_state(
        self, store: MetadataStore, read: Reader
    ) -> None:
        """Views begun at any moment among concurrent writers all end as the store does."""

        async def view() -> dict[str, bytes]:
            snapshot = await store.get_prefix("k")
            seen = {entry.key: entry.value for entry in snapshot.entries}
            async with aclosing(store.watch("k", snapshot.revision + 1)) as watch:
                while "k/end" not in seen:
                    (event,) = await read(watch, 1)
                    if event.value is None:
                        del seen[event.key]
                    else:
                        seen[event.key] = event.value
            return seen

        views = []

        async def write(n: int) -> None:
            for i in range(10):
                views.append(asyncio.create_task(view()))
                await store.put(f"k/{n}", str(i).encode())
                if i % 3 == n % 3:
                    views.append(asyncio.create_task(view()))
                    await store.commit(Transaction(deletes=(Delete(key=f"k/{n}"),)))

        await asyncio.gather(*(write(n) for n in range(3)))
        await store.put("k/end", b"")
        final = {e.key: e.value for e in (await store.get_prefix("k")).entries}
        assert [await seen for seen in views] == [final] * len(views)

    async def test_a_revision_too_old_is_compacted(self, backend: Backend, read: Reader) -> None:
        store = backend.store
        old = await store.put("k", b"")
        await backend.forget_history()
        with pytest.raises(Compacted):
            await read(store.watch("k", old), 1)
        newest = await store.put("k", b"new")
        assert [event.value for event in await read(store.watch("k", newest), 1)] == [b"new"]

    async def test_a_busy_neighbour_does_not_compact_a_quiet_watch(
        self, backend: Backend, read: Reader
    ) -> None:
        store = backend.store
        watch = store.watch("quiet", await revision(store) + 1)
        await store.put("quiet", b"1")
        await read(watch, 1)
        await backend.forget_history()
        await store.put("quiet", b"2")
        await backend.forget_history()
        await store.put("quiet", b"3")
        assert [event.value for event in await read(watch, 2)] == [b"2", b"3"]

    async def test_a_cancelled_read_loses_no_event(
        self, store: MetadataStore, read: Reader
    ) -> None:
        watch = store.watch("k", await revision(store) + 1)
        for n in range(5):
            reader = asyncio.create_task(read(watch, 1))
            await asyncio.sleep(0)
            written = asyncio.create_task(store.put("k", str(n).encode()))
            await asyncio.sleep(0)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await written
            if reader.cancelled():
                assert [event.value for event in await read(watch, 1)] == [str(n).encode()]

    async def test_closing_a_watch_ends_its_reader(self, store: MetadataStore) -> None:
        watch = store.watch("k", await revision(store) + 1)

        async def read_all() -> list[str]:
            return [event.key async for event in watch]

        reader = asyncio.create_task(read_all())
        await asyncio.sleep(0)
        await watch.aclose()
        assert await asyncio.wait_for(reader, 20) == []
        await store.put("k", b"")
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    async def test_there_is_no_revision_zero_to_watch_from(self, store: MetadataStore) -> None:
        with pytest.raises(ValueError):
            store.watch("k", 0)


class TestLeases:
    async def test_an_expired_lease_deletes_its_keys_at_one_revision(
        self, backend: Backend, read: Reader
    ) -> None:
        store = backend.store
        lease = await store.lease(1)
        await store.put("brokers/1", b"", lease=lease)
        await store.put("controller", b"", lease=lease)
        last = await store.put("topics/a", b"")
        watch = store.watch("", last + 1)
        await backend.pass_time(1.2)
        events = await read(watch, 2)
        assert {event.key for event in events} == {"brokers/1", "controller"}
        assert all(event.deleted and event.mod_revision == last + 1 for event in events)
        assert await keys(store) == ["topics/a"]

    async def test_a_lease_that_is_kept_alive_lives_on(self, backend: Backend) -> None:
        store = backend.store
        lease = await store.lease(2)
        await store.put("brokers/1", b"", lease=lease)
        for _ in range(3):
            await backend.pass_time(1)
            await lease.keep_alive()
        entry = await store.get("brokers/1")
        assert entry is not None
        assert entry.lease_id == lease.id

    async def test_each_lease_ends_by_its_own_time(self, backend: Backend, read: Reader) -> None:
        store = backend.store
        short, long = await store.lease(1), await store.lease(60)
        assert short.id != long.id
        await store.put("long", b"", lease=long)
        at = await store.put("short", b"", lease=short)
        await backend.pass_time(1.2)
        await read(store.watch("short", at + 1), 1)
        assert await keys(store) == ["long"]

    async def test_a_lost_lease_says_so(self, backend: Backend, read: Reader) -> None:
        store = backend.store
        lease = await store.lease(1)
        at = await store.put("brokers/1", b"", lease=lease)
        await backend.pass_time(1.2)
        await read(store.watch("brokers/1", at + 1), 1)
        with pytest.raises(LeaseLost):
            await lease.keep_alive()
        with pytest.raises(LeaseLost):
            await store.put("brokers/1", b"", lease=lease)
        assert await keys(store) == []

    async def test_a_put_on_a_dead_lease_undoes_its_whole_transaction(
        self, store: MetadataStore
    ) -> None:
        lease = await store.lease(60)
        await lease.revoke()
        at = await revision(store)
        puts = (Put(key="a", value=b""), Put(key="b", value=b"", lease_id=lease.id))
        with pytest.raises(LeaseLost):
            await store.commit(Transaction(puts=puts))
        assert await keys(store) == []
        assert await revision(store) == at

    async def test_revoking_deletes_the_keys_before_it_returns(self, store: MetadataStore) -> None:
        lease = await store.lease(60)
        await store.put("brokers/1", b"", lease=lease)
        await lease.revoke()
        assert await store.get("brokers/1") is None
        await lease.revoke()
        with pytest.raises(LeaseLost):
            await lease.keep_alive()

    async def test_a_plain_put_detaches_a_key_from_its_lease(self, store: MetadataStore) -> None:
        lease = await store.lease(60)
        await store.put("k", b"leased", lease=lease)
        await store.put("k", b"plain")
        await lease.revoke()
        entry = await store.get("k")
        assert entry is not None
        assert (entry.value, entry.lease_id) == (b"plain", None)

    async def test_a_put_moves_a_key_to_another_lease(self, store: MetadataStore) -> None:
        old, new = await store.lease(60), await store.lease(60)
        await store.put("k", b"", lease=old)
        await store.put("k", b"", lease=new)
        await old.revoke()
        assert await keys(store) == ["k"]
        await new.revoke()
        assert await keys(store) == []

    async def test_a_key_deleted_by_hand_and_made_anew_outlives_the_lease(
        self, store: MetadataStore
    ) -> None:
        lease = await store.lease(60)
        await store.put("k", b"", lease=lease)
        await store.commit(Transaction(deletes=(Delete(key="k"),)))
        await store.put("k", b"")
        await lease.revoke()
        assert await keys(store) == ["k"]

    async def test_the_holder_never_believes_in_a_lease_for_longer_than_it_has(
        self, backend: Backend
    ) -> None:
        before = backend.now()
        lease = await backend.store.lease(2)
        assert before < lease.expires_at <= backend.now() + 2
        await backend.pass_time(1)
        await lease.keep_alive()
        assert lease.expires_at <= backend.now() + 2
        await lease.revoke()
        assert lease.expires_at <= backend.now()

    async def test_a_lease_lasts_at_least_a_second(self, store: MetadataStore) -> None:
        with pytest.raises(ValueError):
            await store.lease(0)


class TestClosing:
    async def test_a_closed_store_refuses_everything(self, store: MetadataStore) -> None:
        lease = await store.lease(60)
        await store.close()
        await store.close()
        for refused in (
            store.get("a"),
            store.get_prefix(""),
            store.put("a", b""),
            store.commit(Transaction()),
            store.lease(5),
            lease.keep_alive(),
            lease.revoke(),
        ):
            with pytest.raises(StoreClosed):
                await refused
        with pytest.raises(StoreClosed):
            store.watch("a", 1)

    async def test_closing_ends_the_watches(self, store: MetadataStore, read: Reader) -> None:
        watch = store.watch("", await revision(store) + 1)
        reader = asyncio.create_task(read(watch, 1))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreClosed):
            await reader

    async def test_closing_finishes_the_commits_that_wait(self, store: MetadataStore) -> None:
        commits = [asyncio.create_task(store.put(f"k{n}", b"")) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        revisions = await asyncio.gather(*commits)
        assert len(set(revisions)) == 20

    async def test_every_engine_is_a_metadata_store(self, store: MetadataStore) -> None:
        assert isinstance(store, MetadataStore)


class TestWhatATransactionMayNot:
    """Refused before any engine sees it, so that what works on one node works in a cluster."""

    @pytest.mark.parametrize(
        ("puts", "deletes"),
        [
            ((Put(key="a", value=b""), Put(key="a", value=b"")), ()),
            ((Put(key="a", value=b""),), (Delete(key="a"),)),
            ((Put(key="a/1", value=b""),), (Delete(key="a/", prefix=True),)),
        ],
    )
    def test_write_a_key_twice(self, puts: tuple[Put, ...], deletes: tuple[Delete, ...]) -> None:
        with pytest.raises(ValueError):
            Transaction(puts=puts, deletes=deletes)

    def test_have_empty_or_unspeakable_keys(self) -> None:
        for key in ("", "\ud800"):
            with pytest.raises(ValueError):
                put(key)
            with pytest.raises(ValueError):
                Transaction(compares=(Compare(key=key, mod_revision=0),))
            with pytest.raises(ValueError):
                Transaction(deletes=(Delete(key=key),))

    def test_compare_with_a_negative_revision(self) -> None:
        with pytest.raises(ValueError):
            Transaction(compares=(Compare(key="a", mod_revision=-1),))

    def test_exceed_its_limits(self) -> None:
        many = TRANSACTION_OPERATIONS_MAX + 1
        with pytest.raises(ValueError):
            Transaction(puts=tuple(Put(key=f"k{n}", value=b"") for n in range(many)))
        with pytest.raises(ValueError):
            Transaction(compares=tuple(Compare(key="k", mod_revision=0) for n in range(many)))
        with pytest.raises(ValueError):
            put("k", b"v" * TRANSACTION_BYTES_MAX)
