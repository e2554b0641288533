"""What a broker in a cluster keeps beside its logs: whose they are, and whether to count on them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.broker import Broker
from penstock.errors import ApiError, ConfigError, ErrorCode
from penstock.log import LogStore, PartitionLog
from penstock.log.inspect import find_logs, repair, verify
from penstock.log.ownership import OWN_DIRECTORY, StorageId
from penstock.model import BrokerInfo, TopicPartition
from penstock.settings import BrokerConfig, TopicConfig
from tests.log.support import another_boot, batch, damage, offsets

P0 = TopicPartition("orders", 0)
P1 = TopicPartition("orders", 1)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], LogStore]]:
    """Open the store of one data directory; what the test leaves open is closed."""
    opened: list[LogStore] = []

    def open_store() -> LogStore:
        opened.append(LogStore(BrokerConfig(data_dir=str(tmp_path))))
        return opened[-1]

    yield open_store
    for store in opened:
        with contextlib.suppress(OSError, RuntimeError):  # closed by the test
            await store.close()


class TestStorageId:
    def test_it_is_kept_when_the_process_dies(self, tmp_path: Path) -> None:
        first = StorageId(str(tmp_path)).value
        assert StorageId(str(tmp_path)).value == first

    def test_it_is_kept_when_the_machine_stops_cleanly(self, tmp_path: Path) -> None:
        storage = StorageId(str(tmp_path / "."))
        storage.stopped_cleanly()
        another_boot(tmp_path)
        assert StorageId(str(tmp_path)).value == storage.value

    def test_it_changes_when_the_machine_goes_down_without(self, tmp_path: Path) -> None:
        first = StorageId(str(tmp_path)).value
        another_boot(tmp_path)
        second = StorageId(str(tmp_path)).value
        assert second != first
        assert StorageId(str(tmp_path)).value == second

    def test_a_clean_stop_counts_only_once(self, tmp_path: Path) -> None:
        StorageId(str(tmp_path)).stopped_cleanly()
        second = StorageId(str(tmp_path)).value
        another_boot(tmp_path)
        assert StorageId(str(tmp_path)).value != second

    def test_it_changes_when_a_disk_has_failed(self, tmp_path: Path) -> None:
        storage = StorageId(str(tmp_path))
        storage.disk_failed()
        storage.stopped_cleanly()
        assert StorageId(str(tmp_path)).value != storage.value

    @pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"id": "x", "boot'])
    def test_a_damaged_one_is_made_anew(self, tmp_path: Path, data: bytes) -> None:
        first = StorageId(str(tmp_path)).value
        (tmp_path / "storage").write_bytes(data)
        second = StorageId(str(tmp_path)).value
        assert second
        assert second != first

    async def test_a_stores_close_is_a_clean_stop(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        first = store.storage_id
        await store.close()
        another_boot(tmp_path / OWN_DIRECTORY)
        assert start().storage_id == first

    async def test_a_log_that_is_out_of_service_and_not_synced_makes_it_no_clean_stop(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        first = store.storage_id
        log = store.open(P0, TopicConfig())
        log.append(batch())
        log.fail("damage was found")
        await store.close()
        another_boot(tmp_path / OWN_DIRECTORY)
        assert start().storage_id != first

    async def test_nor_does_one_that_was_not_opened_since_another_process_wrote_it(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        """It may be in the page cache only."""
        first = start()
        first.open(P0, TopicConfig(), "one")
        storage_id = first.storage_id
        await first.close()
        second = start()
        assert second.storage_id == storage_id
        await second.close()
        another_boot(tmp_path / OWN_DIRECTORY)
        assert start().storage_id != storage_id

    async def test_a_failed_sync_changes_it(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        first = store.storage_id
        log = store.open(P0, TopicConfig(), "one")
        log.append(batch())
        log.sync_failed(OSError(5, "Input/output error"))
        await store.close()
        assert start().storage_id != first

    async def test_a_single_nodes_log_is_no_replica(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        store.open(P0, TopicConfig()).append(batch())
        await store.close()
        assert not (tmp_path / "orders" / "0" / "replica").exists()

    async def test_a_repair_that_takes_records_out_changes_it(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        first = store.storage_id
        log = store.open(P0, TopicConfig(), "one")
        for _ in range(3):
            log.append(batch())
        await store.close()
        directory = tmp_path / "orders" / "0"
        damage(directory / f"{0:020d}.log", 70)
        assert not repair(str(directory)).is_sound
        assert verify(str(directory)).is_sound
        store = start()
        assert store.storage_id != first
        assert offsets(store.open(P0, TopicConfig(), "one")) == [1, 2]


class TestClusterId:
    async def test_a_data_directory_belongs_to_one_cluster_for_good(
        self, start: Callable[[], LogStore]
    ) -> None:
        store = start()
        assert store.cluster_id is None
        store.claim_for("mine", 1)
        store.claim_for("mine", 1)
        await store.close()
        store = start()
        assert store.cluster_id == "mine"
        with pytest.raises(
            ConfigError, match="belongs to cluster mine, but etcd holds cluster new"
        ):
            store.claim_for("new", 1)
        assert store.cluster_id == "mine"

    async def test_and_to_one_broker_which_would_drop_what_another_one_keeps(
        self, start: Callable[[], LogStore]
    ) -> None:
        store = start()
        store.claim_for("mine", 1)
        await store.close()
        store = start()
        with pytest.raises(ConfigError, match="belongs to broker 1, but this is broker 2"):
            store.claim_for("mine", 2)
        store.claim_for("mine", 1)

    async def test_and_not_to_a_broker_that_is_alone_which_would_begin_its_topics_anew(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        store.claim_for("mine", 1)
        await store.close()
        config = BrokerConfig(data_dir=str(tmp_path), broker_id=1)
        info = BrokerInfo(id=1, host="here", port=9092)
        with pytest.raises(ConfigError, match="belongs to cluster mine; start it with --etcd"):
            await Broker.start(config, info)
        assert start().cluster_id == "mine"


class TestReplicas:
    async def test_a_replica_is_found_again(self, start: Callable[[], LogStore]) -> None:
        store = start()
        store.open(P0, TopicConfig(), "one").append(batch())
        store.open(P1, TopicConfig(), "two")
        await store.close()
        store = start()
        assert store.found_on_disk() == [(P0, "one"), (P1, "two")]
        assert store.open(P0, TopicConfig(), "one").log_end_offset == 1

    async def test_what_is_a_replica_of_another_partition_goes(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        store.open(P0, TopicConfig(), "one").append(batch())
        await store.close()
        store = start()
        assert store.open(P0, TopicConfig(), "another").log_end_offset == 0
        assert store.found_on_disk() == [(P0, "another")]
        await store.close()
        assert list((tmp_path / "@trash").iterdir()) == []
        assert not (tmp_path / "@orphaned").exists()

    async def test_a_single_nodes_data_is_set_aside(
        self,
        start: Callable[[], LogStore],
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        store = start()
        store.open(P0, TopicConfig()).append(batch())
        await store.close()
        store = start()
        assert store.found_on_disk() == [(P0, None)]
        with caplog.at_level(logging.WARNING):
            assert store.open(P0, TopicConfig(), "one").log_end_offset == 0
        assert "set aside" in caplog.text
        (aside,) = (tmp_path / "@orphaned").iterdir()
        assert verify(str(aside)).records == 1

    async def test_a_directory_that_was_only_just_made_is_no_single_nodes_data(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        """The process died before it had said what the log is a replica of."""
        store = start()
        store.open(P0, TopicConfig(), "one")
        (tmp_path / "orders" / "0" / "replica").unlink()
        await store.close()
        store = start()
        store.open(P0, TopicConfig(), "one")
        assert store.found_on_disk() == [(P0, "one")]
        assert not (tmp_path / "@orphaned").exists()

    async def test_a_removed_replica_is_gone_and_says_so(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        logs: list[PartitionLog] = [store.open(p, TopicConfig(), "x") for p in (P0, P1)]
        logs[0].append(batch())
        store.remove(P0)
        with pytest.raises(ApiError) as error:
            logs[0].append(batch())
        assert error.value.code is ErrorCode.unknown_topic_or_partition
        assert logs[1].append(batch()).base_offset == 0
        assert store.found_on_disk() == [(P1, "x")]
        store.remove(P1)
        assert not (tmp_path / "orders").exists()
        await store.close()
        assert list((tmp_path / "@trash").iterdir()) == []

    async def test_one_that_was_never_opened_is_removed_too(
        self, start: Callable[[], LogStore]
    ) -> None:
        store = start()
        store.open(P0, TopicConfig(), "one").append(batch())
        await store.close()
        store = start()
        store.remove(P0)
        store.remove(P1)
        assert store.found_on_disk() == []

    async def test_a_cut_is_brought_to_the_disk_in_the_background(
        self, start: Callable[[], LogStore]
    ) -> None:
        store = start()
        log = store.open(P0, TopicConfig(), "one")
        for _ in range(5):
            log.append(batch())
        store.settle(log.truncate(9))
        store.settle(log.truncate(3))
        assert log.append(batch()).base_offset == 3

    async def test_logs_can_be_looked_into_as_any_other(
        self, start: Callable[[], LogStore], tmp_path: Path
    ) -> None:
        store = start()
        log = store.open(P0, TopicConfig(), "one")
        for _ in range(5):
            log.append(batch())
        log.truncate(3)
        log.append(batch())
        await store.close()
        assert find_logs(str(tmp_path)) == [(P0, str(tmp_path / "orders" / "0"))]
        report = verify(str(tmp_path / "orders" / "0"))
        assert report.is_sound
        assert (report.records, report.end_offset, report.segments) == (4, 4, 2)
