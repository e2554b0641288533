"""Whose the data is: small files beside the logs that outlive what the broker knows.

    @penstock/storage       names what this disk holds, and says whether it may have lost something
    @penstock/cluster       the cluster that the data directory belongs to
    @penstock/broker        the id that its broker has there
    {topic}/{p}/replica     the partition that the log is a replica of: a topic made anew is another one

In a cluster, others count on what a broker has told them that it holds. A broker that is killed holds
it still, for the system does. A machine that went down without a clean stop may have lost the end of
any log: it comes back with another storage id, and nobody counts on it before it has caught up.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from typing import Final

from penstock.errors import ConfigError
from penstock.log.files import Directory, replace_file
from penstock.machine import boot_id

logger = logging.getLogger(__name__)

OWN_DIRECTORY: Final = "@penstock"
STORAGE_FILE: Final = "storage"
CLUSTER_FILE: Final = "cluster"
BROKER_FILE: Final = "broker"
REPLICA_FILE: Final = "replica"
_DOUBTFUL: Final = ""  # the boot id that no boot has


class StorageId:
    """Names what a disk holds. Kept when the process stops or dies, and when the machine stops cleanly."""

    def __init__(self, own_directory: str) -> None:
        """Find it in `own_directory`, or make a new one if there is none that still holds. Blocks."""
        self._directory = Directory(own_directory)
        self._is_doubtful = False
        kept = self._load(os.path.join(own_directory, STORAGE_FILE))
        self.is_new = kept is None
        if kept is None:
            self.value = uuid.uuid4().hex
            logger.debug("new storage id=%s directory=%s", self.value, own_directory)
        else:
            self.value = kept
        self._save(boot_id(), is_clean=False)

    @staticmethod
    def _load(path: str) -> str | None:
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
            if values["is_clean"] is True or values["boot"] == boot_id():
                return str(values["id"])
            logger.warning(
                "the machine went down, or a disk failed: what was not synced may be lost path=%s",
                path,
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            logger.warning("the storage id is damaged path=%s", path)
        return None

    def _save(self, boot: str, *, is_clean: bool) -> None:
        values = {"id": self.value, "boot": boot, "is_clean": is_clean}
        replace_file(self._directory, STORAGE_FILE, json.dumps(values).encode(), durable=True)

    def stopped_cleanly(self) -> None:
        """All logs are synced and closed: even if the machine goes down now, nothing is lost. Blocks."""
        if not self._is_doubtful:
            self._save(boot_id(), is_clean=True)

    def disk_failed(self) -> None:
        """What the disk holds may not be what was written: the next start must say so. Blocks."""
        self._is_doubtful = True
        self._save(_DOUBTFUL, is_clean=False)


def forget_storage_id(own_directory: str) -> None:
    """Records were taken out of a log: at the next start the disk holds something else."""
    path = os.path.join(own_directory, STORAGE_FILE)
    if os.path.exists(path):
        os.unlink(path)
        Directory(own_directory).sync()


def cluster_of(own_directory: str) -> str | None:
    """The cluster that a data directory belongs to; None if it never was in one."""
    return _read(os.path.join(own_directory, CLUSTER_FILE))


def claim(own_directory: str, data_dir: str, cluster_id: str, broker_id: int) -> None:
    """Make the data directory this broker's; `ConfigError` if it is another's already.

    A broker drops what the cluster does not keep on it: with the id of another one that would be all.
    """
    owner = cluster_of(own_directory)
    if owner is None:
        replace_file(Directory(own_directory), CLUSTER_FILE, cluster_id.encode(), durable=True)
    elif owner != cluster_id:
        raise ConfigError(
            f"the data directory {data_dir} belongs to cluster {owner}, but etcd holds cluster "
            f"{cluster_id}; if etcd lost its data, restore it from a backup; if this broker is to "
            "join another cluster, give it another --data-dir"
        )
    of_broker = _read(os.path.join(own_directory, BROKER_FILE))
    if of_broker is None:
        replace_file(Directory(own_directory), BROKER_FILE, b"%d" % broker_id, durable=True)
    elif of_broker != str(broker_id):
        raise ConfigError(
            f"the data directory {data_dir} belongs to broker {of_broker}, but this is broker "
            f"{broker_id}; start it with --broker-id {of_broker}, or with another --data-dir"
        )


def replica_of(directory: str) -> str | None:
    """The id of the partition that a log is a replica of; None for a single node's."""
    return _read(os.path.join(directory, REPLICA_FILE))


def note_replica(directory: str, cluster_id: str) -> str:
    """Say which partition the log in this directory is a replica of; the file that says so.

    It has to be on disk before anything in the log counts as being there. If it was there already,
    the process that wrote it may have died before that.
    """
    if replica_of(directory) != cluster_id:
        replace_file(Directory(directory), REPLICA_FILE, cluster_id.encode(), durable=False)
    return os.path.join(directory, REPLICA_FILE)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip() or None
    except FileNotFoundError:
        return None
