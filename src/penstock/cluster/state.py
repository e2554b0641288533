"""What the metadata store keeps of a cluster, as JSON.

    brokers/{id}               BrokerRegistration, on the broker's lease
    controller                 ControllerClaim, on the lease of the broker that is it
    topics/{name}              TopicState: what is wanted
    partitions/{topic}/{p}     PartitionState: what is

Two ids say what a broker still is. The *incarnation* names one registration: it changes whenever a
broker registers anew, and a leadership ends with it. The *storage id* names what its disk holds: it
survives a restart and a `kill -9`, and changes when a tail of the log may be gone (a power cut, a new
disk). The ISR names members with their storage ids, so nobody counts as in sync with a disk that has
forgotten.

Decoders keep fields they do not know in `extra`, and encoders write them back: in a rolling upgrade an
older broker does not erase what a newer one wrote. `StoreCorrupt` if a value can not be understood.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from penstock.metadata.errors import StoreCorrupt
from penstock.metadata.store import Entry
from penstock.model import TopicPartition

BROKERS: Final = "brokers/"
CONTROLLER: Final = "controller"
TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"
ERROR_CHARS_MAX: Final = 300  # of the reason a replica did not open

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker that is here. The key goes with its lease, so what is registered is alive or nearly so."""

    id: int
    host: str
    port: int
    incarnation: str  # of this registration, never used again
    storage_id: str  # of what its disk holds
    rack: str | None = None
    is_leaving: bool = False  # wants its leaderships taken over before it stops
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerClaim:
    """Who is the controller. Every transaction of a controller compares with the claim's revision."""

    broker: int
    incarnation: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """What is wanted of a topic. The controller makes the partitions follow."""

    name: str
    id: uuid.UUID
    partition_count: int  # >= 1, only ever grows
    replication_factor: int = 1  # wanted; there may be fewer replicas while brokers are missing
    assignment: tuple[tuple[int, ...], ...] = ()  # replicas by hand; (): the controller places them
    overrides: Mapping[str, str] = field(default_factory=dict)  # settings by Kafka name
    extra: Mapping[str, Any] = field(default_factory=dict)

    def allows_unclean_election(self, *, by_default: bool) -> bool:
        text = self.overrides.get("unclean.leader.election.enable")
        return by_default if text is None else text.lower() == "true"


class Readiness(Enum):
    """Whether a broker has opened its replica."""

    PENDING = "pending"  # it has not said
    READY = "ready"
    ERROR = "error"  # it could not; the reason is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition as the cluster agreed on it.

    Only the leader changes `isr` (but for an unclean election); the controller, and who acts for an
    operator, changes the rest, and raises `leader_epoch` with every change of leader and with every
    replica that is taken away.
    """

    cluster_id: str  # of this partition of this topic; a topic made anew has another
    replicas: tuple[
        int, ...
    ]  # the first is the preferred leader; adding and removing are among them
    leader: int | None = None  # in isr
    leader_incarnation: str | None = (
        None  # the registration that leads; None exactly without a leader
    )
    leader_epoch: int = 0
    isr: Mapping[int, str] = field(default_factory=dict)  # of replicas; member -> storage id
    partition_epoch: int = 0  # counts the changes of this record
    adding: tuple[int, ...] = ()  # become replicas for good once all of them are in sync
    removing: tuple[int, ...] = ()  # go when the leader has taken them out of the ISR
    replica_count: int | None = None  # as a move has set it; None: as many as the topic wants
    is_unclean_wanted: bool = False  # the controller is to elect anybody, once, if it must
    ready: frozenset[int] = frozenset()
    errors: Mapping[int, str] = field(default_factory=dict)  # why a replica did not open
    extra: Mapping[str, Any] = field(default_factory=dict)

    def readiness(self, broker: int) -> Readiness:
        if broker in self.errors:
            return Readiness.ERROR
        return Readiness.READY if broker in self.ready else Readiness.PENDING

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas as they will be when the reassignment, if any, is done."""
        if not self.removing:
            return self.replicas
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)


def partition_cluster_id(topic_id: uuid.UUID, partition: int) -> str:
    """The same for all replicas of a partition, and never for those of another topic of its name."""
    return uuid.uuid5(topic_id, str(partition)).hex


def broker_key(broker: int) -> str:
    return f"{BROKERS}{broker}"


def topic_key(name: str) -> str:
    return f"{TOPICS}{name}"


def partition_key(partition: TopicPartition) -> str:
    return f"{PARTITIONS}{partition.topic}/{partition.partition}"


def partition_of_key(key: str) -> TopicPartition:
    """Raises `ValueError` if it is no partition's key."""
    topic, _, index = key.removeprefix(PARTITIONS).rpartition("/")
    return TopicPartition(topic, int(index))


# Encoding: what is empty is left out.


def encode_broker(broker: BrokerRegistration) -> bytes:
    value: dict[str, Any] = {
        **broker.extra,
        "host": broker.host,
        "port": broker.port,
        "incarnation": broker.incarnation,
        "storage_id": broker.storage_id,
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    if broker.is_leaving:
        value["leaving"] = True
    return _dump(value)


def encode_controller(claim: ControllerClaim) -> bytes:
    return _dump({**claim.extra, "broker": claim.broker, "incarnation": claim.incarnation})


def encode_topic(topic: TopicState) -> bytes:
    value: dict[str, Any] = {
        **topic.extra,
        "id": str(topic.id),
        "partitions": topic.partition_count,
        "replication_factor": topic.replication_factor,
        "overrides": dict(topic.overrides),
    }
    if topic.assignment:
        value["assignment"] = topic.assignment
    return _dump(value)


def encode_partition(state: PartitionState) -> bytes:
    value: dict[str, Any] = {
        **state.extra,
        "cluster_id": state.cluster_id,
        "replicas": state.replicas,
        "leader": state.leader,
        "leader_incarnation": state.leader_incarnation,
        "leader_epoch": state.leader_epoch,
        "isr": {str(broker): state.isr[broker] for broker in sorted(state.isr)},
        "partition_epoch": state.partition_epoch,
        "ready": sorted(state.ready),
    }
    if state.adding:
        value["adding"] = state.adding
    if state.removing:
        value["removing"] = state.removing
    if state.replica_count is not None:
        value["replica_count"] = state.replica_count
    if state.is_unclean_wanted:
        value["unclean_wanted"] = True
    if state.errors:
        value["errors"] = {str(broker): text for broker, text in sorted(state.errors.items())}
    return _dump(value)


# Decoding: takes what it knows out of the JSON object; what is left is `extra`.


def decode_broker(entry: Entry) -> BrokerRegistration:
    return _decode(entry, _broker)


def decode_controller(entry: Entry) -> ControllerClaim:
    return _decode(entry, _controller)


def decode_topic(entry: Entry) -> TopicState:
    return _decode(entry, _topic)


def decode_partition(entry: Entry) -> PartitionState:
    return _decode(entry, _partition)


def _broker(key: str, value: dict[str, Any]) -> BrokerRegistration:
    rack = value.pop("rack", None)
    return BrokerRegistration(
        id=int(key.removeprefix(BROKERS)),
        host=str(value.pop("host")),
        port=int(value.pop("port")),
        incarnation=str(value.pop("incarnation")),
        storage_id=str(value.pop("storage_id")),
        rack=None if rack is None else str(rack),
        is_leaving=bool(value.pop("leaving", False)),
        extra=value,
    )


def _controller(_key: str, value: dict[str, Any]) -> ControllerClaim:
    return ControllerClaim(
        broker=int(value.pop("broker")),
        incarnation=str(value.pop("incarnation")),
        extra=value,
    )


def _topic(key: str, value: dict[str, Any]) -> TopicState:
    return TopicState(
        name=key.removeprefix(TOPICS),
        id=uuid.UUID(value.pop("id")),
        partition_count=int(value.pop("partitions")),
        replication_factor=int(value.pop("replication_factor", 1)),
        assignment=tuple(_ids(replicas) for replicas in value.pop("assignment", ())),
        overrides={str(name): str(text) for name, text in value.pop("overrides", {}).items()},
        extra=value,
    )


def _partition(_key: str, value: dict[str, Any]) -> PartitionState:
    leader = value.pop("leader")
    incarnation = value.pop("leader_incarnation")
    count = value.pop("replica_count", None)
    state = PartitionState(
        cluster_id=str(value.pop("cluster_id")),
        replicas=_ids(value.pop("replicas")),
        leader=None if leader is None else int(leader),
        leader_incarnation=None if incarnation is None else str(incarnation),
        leader_epoch=int(value.pop("leader_epoch")),
        isr={int(broker): str(storage) for broker, storage in value.pop("isr").items()},
        partition_epoch=int(value.pop("partition_epoch")),
        adding=_ids(value.pop("adding", ())),
        removing=_ids(value.pop("removing", ())),
        replica_count=None if count is None else int(count),
        is_unclean_wanted=bool(value.pop("unclean_wanted", False)),
        ready=frozenset(_ids(value.pop("ready", ()))),
        errors={int(broker): str(text) for broker, text in value.pop("errors", {}).items()},
        extra=value,
    )
    if state.leader is not None and state.leader not in state.isr:
        raise ValueError(f"leader {state.leader} is not in the ISR")
    if not state.isr.keys() <= set(state.replicas):
        raise ValueError("the ISR has members that are no replicas")
    return state


def _ids(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(entry: Entry, build: Callable[[str, dict[str, Any]], T]) -> T:
    try:
        return build(entry.key, dict(json.loads(entry.value)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(
            f"{entry.key} in the metadata store can not be read: {error!r}"
        ) from error
