"""One partition's log on local disk, and the store of all of them."""

from penstock.log.files import FileSlice
from penstock.log.partition_log import Appended, PartitionLog
from penstock.log.reading import ColdRead, TimestampOffset
from penstock.log.store import LogStore

__all__ = ["Appended", "ColdRead", "FileSlice", "LogStore", "PartitionLog", "TimestampOffset"]
