"""An operator who moves leaders and replicas about while everything else goes wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from penstock.client.connection import Connection, parse_bootstrap
from penstock.client.errors import ClientError
from penstock.client.wire import Api, Messages
from penstock.errors import ErrorCode
from penstock.testing.clusters import TestCluster

__all__ = ["Operator"]

_REASSIGN: Final = Api("AlterPartitionReassignments", 45, 0, 0, 0)
_ELECT: Final = Api("ElectLeaders", 43, 2, 2, 2)
_PREFERRED: Final = 0
_TIMEOUT: Final = timedelta(seconds=5)


class Operator:
    """Asks for elections and reassignments of one topic's partitions."""

    def __init__(self, cluster: TestCluster, topic: str, partitions: int) -> None:
        self.topic = topic
        self._cluster = cluster
        self._partitions = partitions

    def elect_preferred(self) -> str:
        """Let the first replica of each partition lead it. What came of it, in words."""

        def build(new: Messages) -> Any:
            wanted = new(
                "TopicPartitions", topic=self.topic, partitions=tuple(range(self._partitions))
            )
            return new(
                "ElectLeadersRequest",
                election_type=_PREFERRED,
                topic_partitions=(wanted,),
                timeout=_TIMEOUT,
            )

        answer = self._call(_ELECT, build)
        codes = [
            item.error_code.name
            for topic in answer.replica_election_results
            for item in topic.partition_result
        ]
        said = Counter(codes or [answer.error_code.name])
        return ", ".join(f"{count} × {code}" for code, count in said.items())

    def reassign(self, chance: random.Random) -> str:
        """Give some partitions other replicas: in another order, or one fewer."""
        everybody = [broker.id for broker in self._cluster.brokers]
        targets: dict[int, Sequence[int]] = {}
        for partition in chance.sample(range(self._partitions), max(1, self._partitions // 2)):
            chance.shuffle(everybody)
            targets[partition] = everybody[: chance.choice((2, 3, 3))]
        self._alter(targets)
        return ", ".join(f"{partition} to {list(to)}" for partition, to in targets.items())

    def spread_again(self) -> None:
        """Let every partition have a replica on every broker, and return when it has."""
        count = len(self._cluster.brokers)
        targets = {p: [(p + i) % count for i in range(count)] for p in range(self._partitions)}
        self._cluster.wait_for(lambda: self._try_alter(targets), "a controller that reassigns")
        self._cluster.wait_for(self._is_spread, "every replica where it should be")

    def _is_spread(self) -> bool:
        for partition in range(self._partitions):
            known = self._cluster.partition(self.topic, partition)
            if known is None or known.is_under_replicated:
                return False
            if len(known.replicas) != len(self._cluster.brokers):
                return False
        return True

    def _try_alter(self, targets: Mapping[int, Sequence[int]]) -> bool:
        try:
            self._alter(targets)
        except (ClientError, TimeoutError):
            return False
        return True

    def _alter(self, targets: Mapping[int, Sequence[int]]) -> None:
        def build(new: Messages) -> Any:
            partitions = tuple(
                new("ReassignablePartition", partition_index=partition, replicas=tuple(to))
                for partition, to in targets.items()
            )
            topic = new("ReassignableTopic", name=self.topic, partitions=partitions)
            return new("AlterPartitionReassignmentsRequest", timeout=_TIMEOUT, topics=(topic,))

        answer = self._call(_REASSIGN, build)
        errors = {answer.error_code} | {
            partition.error_code for topic in answer.responses for partition in topic.partitions
        }
        if errors != {ErrorCode.none}:
            raise TimeoutError(f"not all were moved: {errors}")

    def _call(self, api: Api, build: Callable[[Messages], Any]) -> Any:
        """What the controller answers."""
        controller = self._cluster.controller(timeout_s=1.0)
        connection = Connection(
            parse_bootstrap(controller.listens_at)[0],
            client_id="operator",
            timeout_ms=int(_TIMEOUT.total_seconds() * 1000),
        )
        try:
            return connection.call(api, build)
        finally:
            connection.close()
