"""The etcd store in a world that breaks: cut connections, killed and hanging members, compaction.

Random choices are seeded. The rules are those of `test_contract.py`; nothing here may bend them.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.metadata import etcd_endpoint
from penstock.metadata.errors import Compacted, StoreUnavailable
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.store import Delete, Event, Put, Transaction, Watch
from penstock.testing.etcd import KILL_REST_S, EtcdCluster, etcd
from penstock.testing.proxy import Proxy, proxy
from tests.metadata.support import compact

if TYPE_CHECKING:
    from tests.metadata.conftest import Reader, SharedEtcd


@pytest.fixture
async def direct(shared_etcd: SharedEtcd) -> AsyncIterator[EtcdMetadataStore]:
    """A store with an undisturbed connection."""
    async with await EtcdMetadataStore.open(shared_etcd.fresh_config()) as store:
        yield store
    await shared_etcd.end_leases()


@pytest.fixture
async def line(shared_etcd: SharedEtcd) -> AsyncIterator[Proxy]:
    async with proxy(shared_etcd.cluster.endpoints[0]) as line:
        yield line


@pytest.fixture
async def hurt(direct: EtcdMetadataStore, line: Proxy) -> AsyncIterator[EtcdMetadataStore]:
    """A store on the same keys whose connection, `line`, the test breaks."""
    config = replace(direct._client.config, endpoints=(line.address,), request_timeout_s=0.7)
    async with await EtcdMetadataStore.open(config) as store:
        yield store


async def write_seeded(store: EtcdMetadataStore, seed: int, count: int) -> list[list[Event]]:
    """Random transactions; returns the events they must make, by revision, sorted by key."""
    chances = random.Random(seed)
    alive: set[str] = set()
    told = []
    for n in range(count):
        keys = [f"k/{chances.randrange(40)}" for _ in range(chances.choice((1, 1, 1, 3, 8)))]
        deleted = {key for key in keys if key in alive and chances.random() < 0.3}
        written = set(keys) - deleted
        value = b"%d " % n + b"x" * chances.randrange(200)
        result = await store.commit(
            Transaction(
                puts=tuple(Put(key=key, value=value) for key in sorted(written)),
                deletes=tuple(Delete(key=key) for key in sorted(deleted)),
            )
        )
        alive = (alive | written) - deleted
        told.append(
            [
                Event(
                    key=key,
                    value=value if key in written else None,
                    mod_revision=result.revision,
                    last_in_revision=False,
                )
                for key in sorted(written | deleted)
            ]
        )
    return told


async def read_revisions(watch: Watch, count: int) -> list[list[Event]]:
    """The next `count` revisions, as `write_seeded` gives them."""
    revisions: list[list[Event]] = []
    events: list[Event] = []
    async with asyncio.timeout(30):
        while len(revisions) < count:
            event = await anext(watch)
            events.append(replace(event, last_in_revision=False))
            if event.last_in_revision:
                revisions.append(sorted(events, key=lambda event: event.key))
                events = []
    return revisions


class TestCutConnections:
    async def test_a_watch_has_no_gap_and_no_duplicate_over_any_number_of_cuts(
        self, direct: EtcdMetadataStore, hurt: EtcdMetadataStore, line: Proxy
    ) -> None:
        """It begins with a past of more revisions than etcd sends at once, and goes on live."""
        seed = 1
        chances = random.Random(seed)
        start = (await direct.get_prefix("")).revision + 1
        expected = await write_seeded(direct, seed, 1200)

        async def cut_often() -> None:
            while True:
                await asyncio.sleep(chances.uniform(0.001, 0.06))
                line.cut()

        cutting = asyncio.create_task(cut_often())
        async with aclosing(hurt.watch("k/", start)) as watch:
            reading = asyncio.create_task(read_revisions(watch, 2000))
            expected += await write_seeded(direct, seed + 100, 700)
            async with asyncio.timeout(30):
                while line.connections <= 10:  # noqa: ASYNC110 - nobody announces them
                    await asyncio.sleep(0.01)
            expected += await write_seeded(direct, seed + 200, 100)
            cutting.cancel()
            assert await reading == expected

    async def test_a_commit_is_applied_at_most_once_and_always_if_it_said_so(
        self, direct: EtcdMetadataStore, hurt: EtcdMetadataStore, line: Proxy
    ) -> None:
        chances = random.Random(1)
        start = (await direct.get_prefix("")).revision + 1

        async def commit(n: int) -> int | None:
            await asyncio.sleep(chances.uniform(0, 1))
            try:
                return await hurt.put(f"k/{n}", b"")
            except StoreUnavailable:
                return None

        async def cut_often() -> None:
            while True:
                await asyncio.sleep(chances.uniform(0.01, 0.1))
                if chances.random() < 0.5:
                    line.swallow_answers = True
                    await asyncio.sleep(chances.uniform(0, 0.01))
                    line.swallow_answers = False
                else:
                    line.cut()

        cutting = asyncio.create_task(cut_often())
        results = await asyncio.gather(*(commit(n) for n in range(1000)))
        cutting.cancel()
        end = await direct.put("k/end", b"")
        writes: Counter[str] = Counter()
        told: dict[str, int] = {}
        async with aclosing(direct.watch("k/", start)) as watch:
            while "k/end" not in told:
                event = await asyncio.wait_for(anext(watch), 20)
                writes[event.key] += 1
                told[event.key] = event.mod_revision
        assert end == told["k/end"]
        assert set(writes.values()) == {1}
        for n, revision in enumerate(results):
            if revision is not None:
                assert told[f"k/{n}"] == revision
        unknown = [n for n, revision in enumerate(results) if revision is None]
        assert unknown, "nothing was disturbed"
        assert any(f"k/{n}" in told for n in unknown), "no answer was lost"

    async def test_a_commit_whose_answer_is_lost_says_that_its_outcome_is_unknown(
        self, direct: EtcdMetadataStore, hurt: EtcdMetadataStore, line: Proxy, read: Reader
    ) -> None:
        before = await direct.put("k", b"before")
        line.answer_delay_s = 60
        commit = asyncio.create_task(hurt.put("k", b"after", expected_revision=before))
        async with aclosing(direct.watch("k", before + 1)) as watch:
            await read(watch, 1)  # it is applied, but the answer is still on its way
        line.cut()
        with pytest.raises(StoreUnavailable, match="not known"):
            await commit
        line.answer_delay_s = 0
        entry = await hurt.get("k")
        assert entry is not None
        assert (entry.value, entry.mod_revision) == (b"after", before + 1)

    async def test_reads_and_keep_alives_ride_through_a_cut(
        self, direct: EtcdMetadataStore, hurt: EtcdMetadataStore, line: Proxy
    ) -> None:
        await direct.put("k", b"v")
        lease = await hurt.lease(5)
        for _ in range(5):
            line.cut()
            entry = await hurt.get("k")
            assert entry is not None
            line.cut()
            believed = lease.expires_at
            await lease.keep_alive()
            assert lease.expires_at > believed
            line.cut()
            assert len((await hurt.get_prefix("k")).entries) == 1

    async def test_compaction_while_the_watch_is_away_is_told(
        self,
        direct: EtcdMetadataStore,
        hurt: EtcdMetadataStore,
        line: Proxy,
        shared_etcd: SharedEtcd,
        read: Reader,
    ) -> None:
        at = await direct.put("k", b"seen")
        watch = hurt.watch("k", at)
        await read(watch, 1)
        await line.stop()
        await direct.put("k", b"missed")
        newest = await direct.put("k", b"kept")
        await shared_etcd.compact()
        await line.start()
        with pytest.raises(Compacted) as caught:
            await read(watch, 1)
        assert caught.value.oldest_revision == newest + 1
        snapshot = await hurt.get_prefix("k")
        assert [entry.value for entry in snapshot.entries] == [b"kept"]
        watch = hurt.watch("k", snapshot.revision + 1)
        await direct.put("k", b"next")
        assert [event.value for event in await read(watch, 1)] == [b"next"]

    async def test_a_watch_notices_a_network_that_loses_everything(
        self,
        direct: EtcdMetadataStore,
        line: Proxy,
        read: Reader,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Nothing tells it so: it sends pings, here more often than an etcd would bear for long."""
        monkeypatch.setattr(etcd_endpoint, "_PING_AFTER_MS", 200)
        monkeypatch.setattr(etcd_endpoint, "_PING_TIMEOUT_MS", 200)
        config = replace(direct._client.config, endpoints=(line.address,), connect_timeout_s=0.3)
        async with await EtcdMetadataStore.open(config) as hurt:
            at = await direct.put("k", b"before")
            watch = hurt.watch("k", at)
            await read(watch, 1)
            connections = line.connections
            line.silent = True
            await direct.put("k", b"meanwhile")
            async with asyncio.timeout(5):
                while line.connections == connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            line.silent = False
            assert [event.value for event in await read(watch, 1)] == [b"meanwhile"]

    async def test_a_quiet_watch_survives_compaction_and_a_cut_by_etcds_notice_of_progress(
        self, read: Reader
    ) -> None:
        async with AsyncExitStack() as stack:
            flags = {"experimental-watch-progress-notify-interval": "50ms"}
            cluster = stack.enter_context(etcd(flags=flags))
            line = await stack.enter_async_context(proxy(cluster.endpoints[0]))
            config = EtcdConfig(endpoints=cluster.endpoints)
            direct = await stack.enter_async_context(EtcdMetadataStore(config))
            config = replace(config, endpoints=(line.address,))
            hurt = await stack.enter_async_context(EtcdMetadataStore(config))
            at = await direct.put("quiet", b"1")
            watch = hurt.watch("quiet", at)
            await read(watch, 1)
            for _ in range(10):
                await direct.put("busy", b"")
            await asyncio.sleep(0.4)
            await compact(cluster.endpoints)
            line.cut()
            await direct.put("quiet", b"2")
            assert [event.value for event in await read(watch, 1)] == [b"2"]


class TestUnreachable:
    async def test_the_error_names_every_endpoint_and_what_is_wrong_with_it(
        self, shared_etcd: SharedEtcd
    ) -> None:
        async with proxy("127.0.0.1:1") as closed, proxy(shared_etcd.cluster.endpoints[0]) as mute:
            refused = closed.address
            await closed.stop()
            mute.silent = True
            config = EtcdConfig(
                endpoints=(refused, mute.address), connect_timeout_s=0.3, request_timeout_s=1
            )
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                await EtcdMetadataStore.open(config)
            assert time.monotonic() - began < 1.5
            text = str(caught.value)
            assert f"{refused}: " in text
            assert "refused" in text
            assert f"{mute.address}: " in text
            assert "timed out" in text or "no connection within" in text

    async def test_a_commit_that_found_no_connection_was_not_applied(
        self, direct: EtcdMetadataStore, hurt: EtcdMetadataStore, line: Proxy
    ) -> None:
        await line.stop()
        with pytest.raises(StoreUnavailable):
            await hurt.get("k")  # now the loss is known
        with pytest.raises(StoreUnavailable, match="no etcd endpoint answered"):
            await hurt.put("k", b"")
        assert await direct.get("k") is None

    async def test_a_commit_waits_for_a_connection_since_nothing_was_sent_yet(
        self, direct: EtcdMetadataStore, line: Proxy
    ) -> None:
        await line.stop()
        config = replace(direct._client.config, endpoints=(line.address,))
        async with EtcdMetadataStore(config) as store:
            commit = asyncio.create_task(store.put("k", b""))
            await asyncio.sleep(0.2)
            assert not commit.done()
            await line.start()
            at = await commit
        entry = await direct.get("k")
        assert entry is not None
        assert entry.mod_revision == at

    async def test_a_member_that_hangs_costs_no_more_than_the_timeout(
        self, shared_etcd: SharedEtcd
    ) -> None:
        (member,) = shared_etcd.cluster.members
        config = replace(shared_etcd.fresh_config(), request_timeout_s=0.5)
        async with await EtcdMetadataStore.open(config) as store:
            await store.put("k", b"1")
            member.pause()
            try:
                operations = (store.get("k"), store.get_prefix(""), store.put("k", b"2"))
                began = time.monotonic()
                results = await asyncio.gather(*operations, store.lease(5), return_exceptions=True)
                assert time.monotonic() - began < 1
            finally:
                member.resume()
            assert all(isinstance(result, StoreUnavailable) for result in results)
            assert all(member.endpoint in str(result) for result in results)
            assert await store.get("k") is not None

    async def test_closing_while_nothing_answers_ends_within_the_timeout(
        self, hurt: EtcdMetadataStore, line: Proxy
    ) -> None:
        watch = hurt.watch("k", 1)
        line.silent = True
        writing = asyncio.create_task(hurt.put("k", b""))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(4):
            await hurt.close()
        with pytest.raises(StoreUnavailable):
            await writing
        await watch.aclose()


class TestRestarts:
    async def test_watches_leases_and_commits_outlive_a_killed_etcd(
        self, shared_etcd: SharedEtcd
    ) -> None:
        (member,) = shared_etcd.cluster.members
        async with await EtcdMetadataStore.open(shared_etcd.fresh_config()) as store:
            start = (await store.get_prefix("")).revision + 1
            lease = await store.lease(30)
            await store.put("brokers/1", b"", lease=lease)
            async with aclosing(store.watch("k/", start)) as watch:
                for seed in range(2):
                    expected = await write_seeded(store, seed, 100)
                    await asyncio.sleep(KILL_REST_S)
                    member.kill()
                    waiting = asyncio.create_task(store.put("other", b""))
                    await asyncio.sleep(0.02)
                    member.start()
                    with suppress(StoreUnavailable):  # it may have been sent as etcd died
                        await waiting
                    expected += await write_seeded(store, seed, 100)
                    assert await read_revisions(watch, 200) == expected
            await lease.keep_alive()
            entry = await store.get("brokers/1")
            assert entry is not None
            assert entry.lease_id == lease.id
        await shared_etcd.end_leases()


class TestThreeMembers:
    @pytest.fixture
    def config(self, trio: EtcdCluster) -> Iterator[EtcdConfig]:
        yield EtcdConfig(
            endpoints=trio.endpoints, key_prefix=f"{uuid.uuid4().hex}/", request_timeout_s=2
        )
        trio.heal()

    @pytest.mark.parametrize("fault", ["kill", "pause"])
    async def test_losing_the_leader_loses_no_lease_no_event_and_no_commit(
        self, trio: EtcdCluster, config: EtcdConfig, fault: str
    ) -> None:
        leader = trio.leader()
        async with await EtcdMetadataStore.open(config) as store:
            client = store._client
            client._current = trio.members.index(leader)  # the worst place to be
            start = (await store.get_prefix("")).revision + 1
            lease = await store.lease(4)
            await store.put("brokers/1", b"", lease=lease)
            watch = store.watch("k/", start)
            for n in range(20):
                await store.put(f"k/{n}", b"")

            async def keep() -> None:
                while True:
                    await asyncio.sleep(0.5)
                    with suppress(StoreUnavailable):
                        await lease.keep_alive()
                    assert time.monotonic() < lease.expires_at, "the lease was not kept in time"

            await asyncio.sleep(KILL_REST_S)
            keeping = asyncio.create_task(keep())
            getattr(leader, fault)()
            n, done, unknown = 20, 0, set()
            async with asyncio.timeout(20):
                while done < 50:
                    try:
                        await store.put(f"k/{n}", b"")
                        done += 1
                    except StoreUnavailable:
                        unknown.add(n)
                    n += 1
            assert client.current.address != leader.endpoint
            seen: list[int] = []
            while not seen or seen[-1] != n - 1:
                event = await asyncio.wait_for(anext(watch), 10)
                seen.append(int(event.key.removeprefix("k/")))
            assert len(seen) == len(set(seen))
            assert set(range(n)) - unknown <= set(seen)
            keeping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await keeping
            assert await store.get("brokers/1") is not None
            await lease.revoke()

    async def test_a_member_that_lost_the_others_serves_nothing(
        self, trio: EtcdCluster, config: EtcdConfig
    ) -> None:
        alone, *others = trio.members
        config = replace(config, endpoints=(alone.endpoint,), request_timeout_s=0.6)
        async with EtcdMetadataStore(config) as store:
            await store.put("k", b"old")
            for other in others:
                other.pause()
            with pytest.raises(StoreUnavailable, match=alone.endpoint):
                await store.get("k")
            with pytest.raises(StoreUnavailable, match=alone.endpoint):
                await store.put("k", b"new")
            for other in others:
                other.resume()
            trio.wait_ready()
            assert await store.get("k") is not None
