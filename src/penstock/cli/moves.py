"""Moves of partitions between brokers, over a connection of our own: librdkafka has no requests for them.

The connection speaks plain TCP, as that of `penstock cluster status` does.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.cli.failure import CommandError
from penstock.client.connection import Connection, parse_bootstrap
from penstock.client.errors import ClientError
from penstock.client.wire import Api, Messages
from penstock.errors import ErrorCode
from penstock.model import TopicPartition
from penstock.processes.inquiry import Inquiry, ReplicaKnown, address_of, ask

ALTER: Final = Api("AlterPartitionReassignments", 45, 0, 1, 0)
LIST: Final = Api("ListPartitionReassignments", 46, 0, 0, 0)
TIMEOUT_S: Final = 15.0

_HINTS: Final = {
    ErrorCode.invalid_replica_assignment: "`penstock cluster status` shows the brokers there are.",
    ErrorCode.no_reassignment_in_progress: "There is nothing to cancel.",
    ErrorCode.unknown_topic_or_partition: "`penstock topic describe` shows the partitions.",
}


class Moving(NamedTuple):
    """A partition on its way."""

    replicas: tuple[int, ...]  # those that stay, those that come and those that go
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Copied(NamedTuple):
    """How much of what has to be copied is where it should be."""

    done_bytes: int
    total_bytes: int


class Mover:
    """Asks one broker to move partitions, and how far they are. `CommandError` if it does not do it."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._address = address

    @classmethod
    @contextlib.contextmanager
    def reach(cls, bootstrap: str) -> Iterator[Mover]:
        """Through the first of these brokers that answers."""
        connection, failures = None, []
        for address in parse_bootstrap(bootstrap):
            try:
                connection = Connection(
                    address, client_id="penstock-cli", timeout_ms=int(TIMEOUT_S * 1000)
                )
                break
            except ClientError as error:
                failures.append(str(error))
        if connection is None:
            raise CommandError(f"No broker could be asked ({'; '.join(failures)}).")
        try:
            yield cls(connection, f"{address.host}:{address.port}")
        except ClientError as error:
            raise CommandError(f"The broker did not do it: {error}.") from error
        finally:
            connection.close()

    def begin(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Begin to move each to the brokers of its target; None cancels what is under way."""

        def build(new: Messages) -> Any:
            return new(
                "AlterPartitionReassignmentsRequest",
                timeout=datetime.timedelta(seconds=TIMEOUT_S),
                topics=tuple(
                    new(
                        "ReassignableTopic",
                        name=topic,
                        partitions=tuple(
                            new(
                                "ReassignablePartition",
                                partition_index=where.partition,
                                replicas=_replicas(targets[where]),
                            )
                            for where in places
                        ),
                    )
                    for topic, places in _by_topic(targets).items()
                ),
            )

        answer = self._connection.call(ALTER, build)
        _check(answer.error_code, answer.error_message, "The cluster")
        for topic in answer.responses:
            for item in topic.partitions:
                where = TopicPartition(topic.name, item.partition_index)
                _check(item.error_code, item.error_message, str(where))

    def under_way(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Moving]:
        """Those of the partitions that are being moved."""

        def build(new: Messages) -> Any:
            return new(
                "ListPartitionReassignmentsRequest",
                timeout=datetime.timedelta(seconds=TIMEOUT_S),
                topics=tuple(
                    new(
                        "ListPartitionReassignmentsTopics",
                        name=topic,
                        partition_indexes=tuple(where.partition for where in places),
                    )
                    for topic, places in _by_topic(partitions).items()
                ),
            )

        answer = self._connection.call(LIST, build)
        _check(answer.error_code, answer.error_message, "The cluster")
        return {
            TopicPartition(topic.name, item.partition_index): Moving(
                tuple(item.replicas), tuple(item.adding_replicas), tuple(item.removing_replicas)
            )
            for topic in answer.topics
            for item in topic.partitions
        }

    def copied(self, moves: Mapping[TopicPartition, Moving]) -> Copied:
        """How far the new replicas are, in bytes: those of their leaders are what they will have."""
        known = ask(self._address, timeout_s=TIMEOUT_S)
        involved = {broker for move in moves.values() for broker in move.replicas}
        held: dict[int, Mapping[TopicPartition, ReplicaKnown]] = {}
        for broker in involved & known.brokers.keys():
            with contextlib.suppress(ClientError):  # it is down: it copies nothing now
                address = address_of(known.brokers[broker])
                with Inquiry(address, timeout_s=TIMEOUT_S) as inquiry:
                    held[broker] = inquiry.replicas()

        def size(broker: int, where: TopicPartition) -> int:
            replica = held.get(broker, {}).get(where)
            return 0 if replica is None else replica.size_bytes

        done = total = 0
        for where, move in moves.items():
            partition = known.partition(where.topic, where.partition)
            whole = 0 if partition is None else size(partition.leader, where)
            total += whole * len(move.adding)
            done += sum(min(size(broker, where), whole) for broker in move.adding)
        return Copied(done, total)


def rotated(replicas: Sequence[int], by: int) -> tuple[int, ...]:
    """The same brokers with another one first: it is the one that leads."""
    first = by % len(replicas)
    return (*replicas[first:], *replicas[:first])


def _replicas(target: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if target is None else tuple(target)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for where in partitions:
        topics[where.topic].append(where)
    return topics


def _check(code: ErrorCode, message: str | None, subject: str) -> None:
    if code is not ErrorCode.none:
        reason = message or code.name.replace("_", " ")
        raise CommandError(f"{subject}: {reason.rstrip('.')}.", _HINTS.get(code, ""))
