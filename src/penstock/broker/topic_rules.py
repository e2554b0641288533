"""What a topic may be: Kafka's rules, as pure functions that raise the `ApiError` of the broken one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.cluster.state import TopicState
from penstock.errors import ApiError, ConfigError, ErrorCode
from penstock.model import is_legal_topic_name
from penstock.settings import TopicConfig

logger = logging.getLogger(__name__)

# As high as the broker's own `default_partitions` may be set.
PARTITIONS_PER_TOPIC_MAX: Final = 100_000
# Kafka's bound on the partitions that one request may add, over all its topics.
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
TOPIC_NAME_LENGTH_MAX: Final = 249

DEFAULT: Final = -1  # "as the broker is set", for partition counts and replication factors


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, saying which rule, unless `name` is legal."""
    if is_legal_topic_name(name):
        return
    if not name:
        reason = "a topic name must not be empty"
    elif name in {".", ".."}:
        reason = "a topic name must not be '.' or '..'"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        reason = f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, not {len(name)}"
    else:
        reason = f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    raise ApiError(ErrorCode.invalid_topic_exception, reason)


def collision_key(name: str) -> str:
    """Names with the same key may not both exist: metric names turn `.` into `_`."""
    return name.replace(".", "_")


def check_partition_count(count: int) -> None:
    if count < 1:
        raise ApiError(
            ErrorCode.invalid_partitions,
            "the number of partitions must be 1 or more, or -1 for the broker's default",
        )
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise ApiError(
            ErrorCode.invalid_partitions,
            f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}",
        )


def check_replication_factor(factor: int) -> None:
    """One broker holds one replica of each partition, so 1 (or the default) is all there is."""
    if factor in {1, DEFAULT}:
        return
    reason = (
        "the replication factor must be 1 or more, or -1 for the default"
        if factor < 1
        else f"replication factor {factor} is more than the 1 broker there is"
    )
    raise ApiError(ErrorCode.invalid_replication_factor, reason)


def check_replicas(replicas: Sequence[int], broker_id: int) -> None:
    """A hand-made replica list must name this broker, once, and no other."""
    if not replicas:
        reason = "the manual partition assignment includes an empty replica list"
    elif any(replica != broker_id for replica in replicas):
        stranger = next(replica for replica in replicas if replica != broker_id)
        reason = f"the manual partition assignment includes broker {stranger}, which is not there"
    elif len(replicas) > 1:
        reason = f"the manual partition assignment includes broker {broker_id} more than once"
    else:
        return
    raise ApiError(ErrorCode.invalid_replica_assignment, reason)


def partition_count_of(assignments: Mapping[int, Sequence[int]], broker_id: int) -> int:
    """How many partitions a manual assignment `{0: [broker], 1: [broker], …}` makes."""
    for replicas in assignments.values():
        check_replicas(replicas, broker_id)
    check_consecutive(assignments)
    return len(assignments)


def check_consecutive(assignments: Mapping[int, Sequence[int]]) -> None:
    if sorted(assignments) != list(range(len(assignments))):
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            "partitions must be a consecutive sequence of whole numbers from 0",
        )


def check_added_replicas(
    assignments: Sequence[Sequence[int]], added_count: int, broker_id: int
) -> None:
    """A hand-made placement of added partitions must place each of them, here."""
    if len(assignments) != added_count:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"{added_count} partition(s) are added, but {len(assignments)} assignment(s) given",
        )
    for replicas in assignments:
        check_replicas(replicas, broker_id)


def check_growth(name: str, current: int, wanted: int) -> None:
    """A topic's partition count only ever grows."""
    if wanted == current:
        reason = f"topic '{name}' already has {current} partition(s)"
    elif wanted < current:
        reason = f"topic '{name}' has {current} partition(s); {wanted} would not be an increase"
    else:
        return check_partition_count(wanted)
    raise ApiError(ErrorCode.invalid_partitions, reason)


def check_request_size(partition_counts: Iterable[int]) -> None:
    """Refuse, whole, a request that would add more partitions than Kafka lets one request add."""
    total = sum(partition_counts)
    if total > PARTITIONS_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.policy_violation,
            f"a request may add at most {PARTITIONS_PER_REQUEST_MAX} partitions, not {total}",
        )


def topic_config(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> TopicConfig:
    """The settings in force, or INVALID_CONFIG with what is wrong."""
    try:
        return TopicConfig.from_settings(defaults, overrides)
    except ConfigError as error:
        raise ApiError(ErrorCode.invalid_config, str(error)) from error


def lenient_topic_config(defaults: Mapping[str, str], record: TopicState) -> TopicConfig:
    """The settings of a topic that exists: one that is no longer legal falls to its default."""
    overrides = {}
    for name, text in record.overrides.items():
        try:
            topic_config({}, {name: text})
            overrides[name] = text
        except ApiError as error:
            logger.error("a topic setting is ignored topic=%s error=%s", record.name, error.message)
    return topic_config(defaults, overrides)
