"""All logs of one broker, and the jobs that look after them.

{data_dir}/{topic}/{partition}/{base offset}.log, .index, .timeindex, checkpoint, replica
{data_dir}/@penstock/lock, metadata.db         `@` cannot stand in a topic's name
{data_dir}/@penstock/storage                   names what the disk holds: see `ownership.py`
{data_dir}/@penstock/cluster, broker           of a broker in a cluster: as well
{data_dir}/@trash/…                            deleted topics and replicas, on their way out
{data_dir}/@orphaned/…                         directories found where a new topic was to go
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.clock import Clock, SystemClock
from penstock.errors import ApiError, ConfigError, CorruptLogError, StorageError
from penstock.log import ownership
from penstock.log.group_commit import GroupCommit
from penstock.log.inspect import find_logs, size_of
from penstock.log.ownership import OWN_DIRECTORY as OWN_DIRECTORY
from penstock.log.partition_log import PartitionLog
from penstock.log.plans import CutPlan
from penstock.log.segment import OpenFiles
from penstock.model import TopicPartition
from penstock.settings import INT64_MAX, BrokerConfig, TopicConfig

logger = logging.getLogger(__name__)

TRASH_DIRECTORY: Final = "@trash"
ORPHAN_DIRECTORY: Final = "@orphaned"

_CHECKPOINT_BYTES: Final = 4 * 1024 * 1024  # a recovery scans about this much of a log
_CHECKPOINT_AGE_S: Final = 10.0
_SYNC_THREADS: Final = 4
_FILE_NAME_BYTES_MAX: Final = 255  # of every file system in use; a topic's name may have 249


class LogStore:
    """Opens, keeps and removes logs. Lives on one event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        """Take the data directory; `ConfigError` if that is impossible or another broker has it."""
        self.data_dir = os.path.abspath(config.data_dir)
        self._config = config
        self.clock = clock or SystemClock()
        self._lock_fd = lock_directory(self.data_dir)
        self._open_files = OpenFiles(config.open_segments_max)
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._dirty: dict[PartitionLog, None] = {}
        self._dirty_since_s: dict[PartitionLog, float] = {}  # without a recovery point
        self._unsynced_since_s: dict[PartitionLog, float] = {}  # for `flush.ms`
        self._syncing = ThreadPoolExecutor(_SYNC_THREADS, "penstock-sync")
        self._housekeeping = ThreadPoolExecutor(1, "penstock-files")  # one: in order
        self._tasks: list[asyncio.Task[None]] = []
        self._storage_id: ownership.StorageId | None = None
        self.had_no_cluster = False  # whether no cluster had the data directory before this start
        self.group_commit = GroupCommit(self._syncing)

    @property
    def own_directory(self) -> str:
        return os.path.join(self.data_dir, OWN_DIRECTORY)

    # Whose the logs are

    @property
    def storage_id(self) -> str:
        """Names what this disk holds: see `ownership.py`. Blocks for a moment the first time."""
        return self._storage().value

    @property
    def is_storage_new(self) -> bool:
        """Whether the storage id was made at this start: the disk is new, or may have lost something."""
        return self._storage_id is not None and self._storage_id.is_new

    def _storage(self) -> ownership.StorageId:
        if self._storage_id is None:
            try:
                self._storage_id = ownership.StorageId(self.own_directory)
            except OSError as error:
                raise StorageError(
                    f"cannot write to {self.own_directory}: {error.strerror}"
                ) from error
        return self._storage_id

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the data directory belongs to; None if it never was in one."""
        return ownership.cluster_of(self.own_directory)

    def claim_for(self, cluster_id: str, broker_id: int) -> None:
        """The data directory is this broker's of this cluster, for good; `ConfigError` if another's."""
        try:
            self.had_no_cluster = self.cluster_id is None
            ownership.claim(self.own_directory, self.data_dir, cluster_id, broker_id)
        except OSError as error:
            raise ConfigError(f"cannot write to {self.own_directory}: {error.strerror}") from error

    def found_on_disk(self) -> list[tuple[TopicPartition, str | None]]:
        """Every partition that has a directory, and what it is a replica of; None: a single node's."""
        return [
            (partition, ownership.replica_of(directory))
            for partition, directory in find_logs(self.data_dir)
        ]

    def has_replica(self, partition: TopicPartition, cluster_id: str) -> bool:
        """Whether the partition's directory is here, as the replica of the partition of that id."""
        return ownership.replica_of(self._directory(partition)) == cluster_id

    def _disk_failed(self) -> None:
        if self._storage_id is not None:
            with contextlib.suppress(RuntimeError):  # the broker has stopped: not cleanly, then
                self._housekeeping.submit(self._storage_id.disk_failed)

    def _make_way(self, partition: TopicPartition, directory: str, cluster_id: str) -> None:
        """Move away what lies in the partition's place and is no replica of it."""
        if not os.path.lexists(directory):
            return
        owner = ownership.replica_of(directory)
        if owner == cluster_id:
            return
        if owner is None and size_of(directory):
            moved = self._move(directory, ORPHAN_DIRECTORY, str(partition))
            logger.warning("a log of no cluster was set aside from=%s to=%s", directory, moved)
        else:
            logger.info("dropping what was another partition's partition=%s", partition)
            self._trash(directory, str(partition))

    def remove(self, partition: TopicPartition) -> None:
        """Take the partition's log out of service, if it is open, and delete it in the background."""
        log = self._logs.pop(partition, None)
        if log is not None:
            self._forget(log)
            log.mark_deleted()
        directory = self._directory(partition)
        if os.path.lexists(directory):
            self._trash(directory, str(partition))
            with contextlib.suppress(OSError):  # other partitions are in it
                os.rmdir(os.path.dirname(directory))

    def settle(self, cut: CutPlan | None) -> None:
        """Bring a cut to the disk, in the background, so that the next append need not wait for it."""
        if cut is not None:
            self._syncing.submit(cut.run)  # a failure is the next append's

    # Logs

    def _directory(self, partition: TopicPartition) -> str:
        return os.path.join(self.data_dir, partition.topic, str(partition.partition))

    def open(
        self, partition: TopicPartition, config: TopicConfig, cluster_id: str | None = None
    ) -> PartitionLog:
        """Open the partition's log, creating it if it is not there. Blocks: scans what a crash left.

        With a `cluster_id` it is the replica of the partition of that id: what is there and is not
        gives way.
        """
        log = self._load(partition, config, cluster_id)
        self.admit(partition, log)
        return log

    async def load(
        self, partition: TopicPartition, config: TopicConfig, cluster_id: str
    ) -> PartitionLog:
        """The same; in a thread if that may take long. It is not looked after before it is admitted."""
        if not (self.is_storage_new and os.path.isdir(self._directory(partition))):
            return self._load(partition, config, cluster_id)
        # After a power cut all that came behind the last sync is scanned.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._syncing, self._load, partition, config, cluster_id)

    def admit(self, partition: TopicPartition, log: PartitionLog) -> None:
        self._logs[partition] = log
        log.report_to(self._dirty)

    def _load(
        self, partition: TopicPartition, config: TopicConfig, cluster_id: str | None
    ) -> PartitionLog:
        directory = self._directory(partition)
        try:
            if cluster_id is not None:
                self._make_way(partition, directory, cluster_id)
            log = PartitionLog(directory, config, clock=self.clock, open_files=self._open_files)
            log.on_sync_failed = self._disk_failed
            if cluster_id is not None:
                log.sync_with(ownership.note_replica(directory, cluster_id))
        except CorruptLogError as error:
            raise StorageError(f"{error}; run `penstock log verify` and `repair`") from error
        except OSError as error:
            raise StorageError(f"cannot open {directory}: {error.strerror}") from error
        return log

    def disk_usage(self) -> tuple[int, int]:
        """Total and usable bytes of the file system that holds the logs."""
        usage = os.statvfs(self.data_dir)
        return usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize

    # Topics

    def set_aside(self, topic: str) -> None:
        """Move away whatever lies where a new topic's logs will go, so that it stays what it is."""
        path = os.path.join(self.data_dir, topic)
        if os.path.lexists(path):
            moved = self._move(path, ORPHAN_DIRECTORY, topic)
            logger.warning("a directory without a topic was set aside from=%s to=%s", path, moved)

    def remove_topic(self, topic: str) -> None:
        """Take the topic's logs out of service and delete them, in the background."""
        for partition in [key for key in self._logs if key.topic == topic]:
            log = self._logs.pop(partition)
            self._forget(log)
            log.mark_deleted()
        path = os.path.join(self.data_dir, topic)
        if os.path.lexists(path):
            self._trash(path, topic)

    def _trash(self, path: str, name: str) -> None:
        moved = self._move(path, TRASH_DIRECTORY, name)
        self._housekeeping.submit(shutil.rmtree, moved, True)

    def _move(self, path: str, directory: str, name: str) -> str:
        suffix = f".{uuid.uuid4().hex}"
        kept = name[: _FILE_NAME_BYTES_MAX - len(suffix)]
        target = os.path.join(self.data_dir, directory, kept + suffix)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(path, target)
        return target

    async def delete_records_before(self, log: PartitionLog, offset: int) -> int:
        """Move the log's start; durable on return."""
        start = log.delete_records_before(offset)
        try:
            await self._checkpoint(log, durable=True)
        except OSError as error:
            raise StorageError(f"cannot write to {log.directory}: {error.strerror}") from error
        return start

    # Jobs

    def start(self) -> None:
        """Begin to write recovery points and to apply retention."""
        trash = os.path.join(self.data_dir, TRASH_DIRECTORY)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(trash):
                self._housekeeping.submit(shutil.rmtree, os.path.join(trash, name), True)
        self._tasks = [
            asyncio.create_task(self._every(self._config.checkpoint_interval_ms, self.tend)),
            asyncio.create_task(
                self._every(self._config.retention_check_interval_ms, self.apply_retention)
            ),
        ]

    async def _every(self, interval_ms: int, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await job()
            except Exception:
                logger.exception("a background job failed and will be tried again")

    async def tend(self) -> None:
        """Write the recovery points that are due, and sync what should not wait."""
        now = self.clock.monotonic_s()
        for log in list(self._dirty):
            if log.failure is not None:
                self._forget(log)
                log.wake_subscribers()
                continue
            if log.has_unsynced_segments or self._is_flush_due(log, now):
                syncing = self.group_commit.until_durable(log, log.log_end_offset)
                syncing.add_done_callback(lambda done: done.cancelled() or done.exception())
            waited_s = now - self._dirty_since_s.setdefault(log, now)
            if log.bytes_since_checkpoint >= _CHECKPOINT_BYTES or waited_s >= _CHECKPOINT_AGE_S:
                try:
                    await self._checkpoint(log)
                except OSError as error:
                    logger.warning("no recovery point directory=%s error=%s", log.directory, error)

    def _is_flush_due(self, log: PartitionLog, now: float) -> bool:
        """Whether `flush.ms` or `flush.messages` asks for a sync."""
        if not log.has_unsynced_records:
            self._unsynced_since_s.pop(log, None)
            return False
        waited_s = now - self._unsynced_since_s.setdefault(log, now)
        return waited_s * 1000 >= log.config.flush_ms or log.needs_sync_before_answer

    async def _checkpoint(self, log: PartitionLog, *, durable: bool = False) -> None:
        """Write the log's recovery point. `OSError` leaves the one before in force."""
        if log.failure is not None:
            raise log.failure_again()
        plan = log.begin_checkpoint(durable=durable)
        await asyncio.get_running_loop().run_in_executor(self._housekeeping, plan.run)
        log.finish_checkpoint(plan)
        self._dirty_since_s.pop(log, None)
        waits_for_sync = log.config.flush_ms != INT64_MAX and log.has_unsynced_records
        if log.is_checkpointed and not log.has_unsynced_segments and not waits_for_sync:
            self._forget(log)

    def _forget(self, log: PartitionLog) -> None:
        self._dirty.pop(log, None)
        self._dirty_since_s.pop(log, None)
        self._unsynced_since_s.pop(log, None)

    async def apply_retention(self) -> None:
        """Remove the segments that no topic setting keeps, and forget idle producers."""
        for log in list(self._logs.values()):
            if log.failure is not None:
                continue
            log.expire_producers(self._config.producer_expiry_ms)
            try:
                await self._remove_expired(log)
            except (OSError, ApiError) as error:
                logger.warning("retention failed directory=%s error=%s", log.directory, error)
            await asyncio.sleep(0)

    async def _remove_expired(self, log: PartitionLog) -> None:
        removal = log.expire_segments()
        if removal is None:
            return
        logger.info("retention directory=%s start=%d", log.directory, log.log_start_offset)
        try:
            # On disk first: a new segment may be all that is left to tell how far the offsets went.
            await self._checkpoint(log, durable=True)
        except OSError as error:  # a full disk, perhaps: all the more reason to go on
            logger.warning("no recovery point directory=%s error=%s", log.directory, error)
        await asyncio.get_running_loop().run_in_executor(self._housekeeping, removal.run)

    async def close(self) -> None:
        """A clean stop: everything synced, every recovery point at its log's end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.group_commit.drained()
        loop = asyncio.get_running_loop()
        # What the jobs began goes on in its thread: an older recovery point must not come last.
        await loop.run_in_executor(self._housekeeping, lambda: None)
        closing = [loop.run_in_executor(self._syncing, log.close) for log in self._logs.values()]
        results = await asyncio.gather(*closing, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            logger.error("a log was not closed cleanly error=%s", failure)
        if self._storage_id is not None and not failures and self._are_all_synced():
            await loop.run_in_executor(self._housekeeping, self._storage_id.stopped_cleanly)
        self._syncing.shutdown()
        self._housekeeping.shutdown()
        os.close(self._lock_fd)

    def _are_all_synced(self) -> bool:
        """Not so if one failed, which is left as it is, or was not opened since another process wrote it."""
        if any(log.failure is not None and not log.is_synced for log in self._logs.values()):
            return False
        return all(partition in self._logs for partition, _ in find_logs(self.data_dir))


def lock_directory(data_dir: str) -> int:
    own = os.path.join(data_dir, OWN_DIRECTORY)
    try:
        os.makedirs(own, exist_ok=True)
        fd = os.open(os.path.join(own, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"cannot use the data directory {data_dir}: {error.strerror}; choose one with --data-dir"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"the data directory {data_dir} is in use by another broker; "
            "stop that one or choose another with --data-dir"
        ) from error
    return fd
