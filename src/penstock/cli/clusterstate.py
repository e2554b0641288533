"""What `penstock cluster status` shows: brokers, partitions, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.cli import output
from penstock.cli.failure import CommandError
from penstock.client.errors import ClientError
from penstock.model import TopicPartition
from penstock.processes.inquiry import (
    NOBODY,
    ClusterKnown,
    Inquiry,
    PartitionKnown,
    ReplicaKnown,
    address_of,
)

if TYPE_CHECKING:
    from penstock.model import BrokerInfo

TIMEOUT_S: Final = 3.0
_ASKED_AT_ONCE: Final = 16
_SHOWN_MAX: Final = 50  # partitions in trouble that a person wants to read at once

_Replicas = Mapping[TopicPartition, ReplicaKnown]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker, and what it has to do with partitions."""

    id: int
    info: BrokerInfo | None  # None: it holds replicas, but is not registered
    state: str  # "up", "silent" (registered, but does not answer) or "gone"
    is_controller: bool
    leads: int
    replicas: int
    out_of_sync: int
    size_bytes: int | None
    lag: int | None  # records, of all its replicas together

    def report(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "address": None if self.info is None else address_of(self.info),
            "rack": None if self.info is None else self.info.rack,
            "state": self.state,
            "controller": self.is_controller,
            "leads": self.leads,
            "replicas": self.replicas,
            "out_of_sync": self.out_of_sync,
            "bytes": self.size_bytes,
            "lag": self.lag,
        }


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition, with how far behind each of its replicas is."""

    known: PartitionKnown
    min_isr: int
    lags: Mapping[int, int | None]  # by broker; None: it did not tell

    @property
    def problems(self) -> list[str]:
        found = []
        if not self.known.is_led:
            found.append("no leader")
        if self.known.is_under_replicated:
            found.append("under-replicated")
        if len(self.known.isr) < self.min_isr:
            found.append("below min ISR")
        return found

    def report(self) -> dict[str, Any]:
        return {
            "topic": self.known.topic,
            "partition": self.known.partition,
            "leader": None if not self.known.is_led else self.known.leader,
            "leader_epoch": self.known.leader_epoch,
            "replicas": list(self.known.replicas),
            "isr": list(self.known.isr),
            "min_isr": self.min_isr,
            "lag": {str(broker): lag for broker, lag in self.lags.items()},
            "problems": self.problems,
        }


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All that was found out, at about one time."""

    cluster_id: str
    controller: int
    brokers: Sequence[BrokerStatus]
    partitions: Sequence[PartitionStatus]

    @classmethod
    def load(cls, bootstrap: str) -> ClusterStatus:
        """Ask the first broker that answers, then every broker for its replicas."""
        known, min_isr = _ask_first(bootstrap)
        with ThreadPoolExecutor(_ASKED_AT_ONCE, "status") as threads:
            told = dict(
                zip(known.brokers, threads.map(_replicas_of, known.brokers.values()), strict=True)
            )
        return cls(
            known.cluster_id,
            known.controller,
            _brokers(known, told),
            [_partition(item, min_isr, told) for item in known.partitions],
        )

    @property
    def in_trouble(self) -> list[PartitionStatus]:
        """The partitions that are not as they should be, the worst first."""
        return sorted(
            (item for item in self.partitions if item.problems),
            key=lambda item: (item.known.is_led, len(item.known.isr) >= item.min_isr),
        )

    @property
    def is_healthy(self) -> bool:
        return (
            self.controller != NOBODY
            and not self.in_trouble
            and all(broker.state == "up" for broker in self.brokers)
        )

    def bootstrap(self, asked: str) -> str:
        """Whom to ask the next time: who was asked, and all brokers that are known by now."""
        there = (address_of(broker.info) for broker in self.brokers if broker.info is not None)
        return ",".join(dict.fromkeys([*asked.split(","), *there]))

    def report(self, *, every_partition: bool) -> dict[str, Any]:
        """As `--json` prints it."""
        shown = self.partitions if every_partition else self.in_trouble
        return {
            "cluster_id": self.cluster_id,
            "healthy": self.is_healthy,
            "controller": None if self.controller == NOBODY else self.controller,
            "brokers": [broker.report() for broker in self.brokers],
            "totals": self._totals(),
            "partitions": [item.report() for item in shown],
        }

    def show(self, *, every_partition: bool) -> None:
        """Print it for people."""
        output.table(
            [
                "broker",
                "address",
                "rack",
                "state",
                "leads",
                "replicas",
                "out of sync",
                "lag",
                "size",
            ],
            (
                [
                    f"{broker.id} (controller)" if broker.is_controller else str(broker.id),
                    None if broker.info is None else address_of(broker.info),
                    None if broker.info is None else broker.info.rack,
                    broker.state,
                    broker.leads,
                    broker.replicas,
                    broker.out_of_sync,
                    broker.lag,
                    None if broker.size_bytes is None else output.size(broker.size_bytes),
                ]
                for broker in self.brokers
            ),
        )
        shown = self.partitions if every_partition else self.in_trouble[:_SHOWN_MAX]
        if shown:
            output.line("")
            output.table(
                ["topic", "partition", "leader", "replicas", "isr", "min isr", "lag", "problem"],
                (_row(item) for item in shown),
            )
        output.line("")
        output.line(self._verdict(len(shown)))

    def _totals(self) -> dict[str, int]:
        return {
            "topics": len({item.known.topic for item in self.partitions}),
            "partitions": len(self.partitions),
            "leaderless": sum(not item.known.is_led for item in self.partitions),
            "under_replicated": sum(item.known.is_under_replicated for item in self.partitions),
            "below_min_isr": sum(len(item.known.isr) < item.min_isr for item in self.partitions),
        }

    def _verdict(self, shown: int) -> str:
        totals = self._totals()
        size = (
            f"{output.count(totals['topics'], 'topic')}, "
            f"{output.count(totals['partitions'], 'partition')}"
        )
        if self.is_healthy:
            return f"Healthy: {size}, everything is in sync."
        wrong = [
            f"broker {broker.id} is {broker.state}"
            for broker in self.brokers
            if broker.state != "up"
        ]
        if self.controller == NOBODY:
            wrong.insert(0, "there is no controller")
        words = {
            "leaderless": "without a leader",
            "below_min_isr": "below min.insync.replicas",
            "under_replicated": "under-replicated",
        }
        wrong += [f"{totals[name]:,} {text}" for name, text in words.items() if totals[name]]
        hidden = len(self.in_trouble) - shown
        more = (
            f" ({hidden:,} more are not shown; --all shows every partition)" if hidden > 0 else ""
        )
        return f"Not healthy: {'; '.join(wrong)}; of {size}.{more}"


def _row(item: PartitionStatus) -> list[output.Cell]:
    known = item.known
    lags = (
        f"{broker}: {output.shown(lag)}"
        for broker, lag in item.lags.items()
        if broker != known.leader
    )
    return [
        known.topic,
        known.partition,
        known.leader if known.is_led else None,
        ", ".join(map(str, known.replicas)),
        ", ".join(map(str, known.isr)),
        item.min_isr,
        ", ".join(lags),
        ", ".join(item.problems),
    ]


def _ask_first(bootstrap: str) -> tuple[ClusterKnown, dict[str, int]]:
    failures = []
    for address in filter(None, (part.strip() for part in bootstrap.split(","))):
        try:
            with Inquiry(address, timeout_s=TIMEOUT_S) as inquiry:
                known = inquiry.cluster()
                return known, inquiry.min_isr({item.topic for item in known.partitions})
        except ClientError as error:
            failures.append(str(error))
    raise CommandError(
        f"No broker told the state of the cluster ({'; '.join(failures)}).",
        "See the brokers' logs, or name others with --bootstrap host:port.",
    )


def _replicas_of(broker: BrokerInfo) -> _Replicas | None:
    """None if the broker does not answer."""
    try:
        with Inquiry(address_of(broker), timeout_s=TIMEOUT_S) as inquiry:
            return inquiry.replicas()
    except ClientError:
        return None


def _brokers(known: ClusterKnown, told: Mapping[int, _Replicas | None]) -> list[BrokerStatus]:
    leads = Counter(item.leader for item in known.partitions)
    holds: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    for item in known.partitions:
        holds.update(item.replicas)
        out_of_sync.update(set(item.replicas) - set(item.isr))
    brokers = []
    for broker in sorted({*known.brokers, *holds}):
        replicas = told.get(broker)
        state = "gone" if broker not in known.brokers else "silent" if replicas is None else "up"
        brokers.append(
            BrokerStatus(
                broker,
                known.brokers.get(broker),
                state,
                broker == known.controller,
                leads[broker],
                holds[broker],
                out_of_sync[broker],
                None if replicas is None else sum(item.size_bytes for item in replicas.values()),
                None if replicas is None else sum(item.lag for item in replicas.values()),
            )
        )
    return brokers


def _partition(
    known: PartitionKnown, min_isr: Mapping[str, int], told: Mapping[int, _Replicas | None]
) -> PartitionStatus:
    place = TopicPartition(known.topic, known.partition)
    lags: dict[int, int | None] = {}
    for broker in known.replicas:
        replica = (told.get(broker) or {}).get(place)
        lags[broker] = None if replica is None else replica.lag
    return PartitionStatus(known, min_isr.get(known.topic, 1), lags)
