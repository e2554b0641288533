"""One file for each API. What is not in this list is neither served nor advertised.

A handler is loaded when it is first asked for: loading all of them would take a third of a start.
"""

import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping

from penstock.kafka.api import API_KEYS, ApiBase, known_versions
from penstock.wire import BROKER_REPORT


class HandlerRegistry(Mapping[int, ApiBase]):
    """Handlers by API key. Private ones are found, but are not in the list that clients are told."""

    def __init__(self, names: Iterable[str], private: Mapping[int, str] | None = None) -> None:
        self._names = {API_KEYS[name]: name for name in names}
        self._private = private or {}

    def __getitem__(self, key: int) -> ApiBase:
        return _load(self._private.get(key) or self._names[key])

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def versions(self, key: int) -> range:
        """What `self[key].versions` is, without loading the handler."""
        return known_versions(self._names[key])


@functools.cache
def _load(name: str) -> ApiBase:
    api: ApiBase = importlib.import_module(f"{__name__}.{name}").API
    return api


REGISTRY = HandlerRegistry(
    (
        "alter_configs",
        "alter_partition_reassignments",
        "api_versions",
        "create_partitions",
        "create_topics",
        "delete_groups",
        "delete_records",
        "delete_topics",
        "describe_cluster",
        "describe_configs",
        "describe_groups",
        "describe_log_dirs",
        "describe_producers",
        "describe_topic_partitions",
        "elect_leaders",
        "fetch",
        "find_coordinator",
        "heartbeat",
        "incremental_alter_configs",
        "init_producer_id",
        "join_group",
        "leave_group",
        "list_groups",
        "list_offsets",
        "list_partition_reassignments",
        "metadata",
        "offset_commit",
        "offset_delete",
        "offset_fetch",
        "offset_for_leader_epoch",
        "produce",
        "sync_group",
    ),
    private={BROKER_REPORT: "broker_report"},
)
