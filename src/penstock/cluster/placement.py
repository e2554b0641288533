"""Where replicas go: the least loaded broker leads, the others spread over racks and brokers.

Ties go to the smallest id, so the same cluster always gives the same answer. A broker's load as a leader
is the number of partitions that *prefer* it, not those it leads at the moment: a broker that has just
come back leads nothing for a while and would be given every new partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from penstock.cluster.state import BrokerRegistration
from penstock.cluster.view import ClusterView

__all__ = ["Placement"]


class Placement:
    """Places one replica after the other and counts what it has placed."""

    def __init__(
        self,
        brokers: Mapping[int, BrokerRegistration],
        preferred: Mapping[int, int],
        replicas: Mapping[int, int],
    ) -> None:
        self._brokers = {id_: b for id_, b in sorted(brokers.items()) if not b.is_leaving}
        self._preferred = Counter(preferred)
        self._replicas = Counter(replicas)

    @classmethod
    def of(cls, view: ClusterView) -> Placement:
        held = {broker: len(partitions) for broker, partitions in view.partitions_of_broker.items()}
        return cls(view.brokers, view.preferred_count, held)

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """The replicas of a new partition, its leader first; fewer if there are not enough brokers."""
        if not self._brokers:
            return ()
        leader = min(self._brokers, key=lambda broker: (self._preferred[broker], broker))
        chosen = [leader]
        while len(chosen) < replication_factor:
            broker = self._next(chosen)
            if broker is None:
                break
            chosen.append(broker)
        self._preferred[leader] += 1
        self._replicas.update(chosen)
        return tuple(chosen)

    def add(self, replicas: Sequence[int]) -> int | None:
        """One more broker for a partition that is on `replicas`; None if there is none."""
        broker = self._next(replicas)
        if broker is not None:
            self._replicas[broker] += 1
        return broker

    def _next(self, taken: Collection[int]) -> int | None:
        """In the rack that has fewest of them, then the one that holds least, then the smallest id."""
        racks = Counter(self._rack(broker) for broker in taken)
        free = [broker for broker in self._brokers if broker not in taken]
        return min(
            free,
            key=lambda broker: (racks[self._rack(broker)], self._replicas[broker], broker),
            default=None,
        )

    def _rack(self, broker: int) -> str | int:
        """A broker without a rack stands in one of its own."""
        registered = self._brokers.get(broker)
        rack = None if registered is None else registered.rack
        return broker if rack is None else rack
