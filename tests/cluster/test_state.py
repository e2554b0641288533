"""What the metadata store keeps: it comes back as it went in, and nothing a newer broker wrote is lost."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.state import (
    BrokerRegistration,
    ControllerClaim,
    PartitionState,
    Readiness,
    TopicState,
    broker_key,
    decode_broker,
    decode_controller,
    decode_partition,
    decode_topic,
    encode_broker,
    encode_controller,
    encode_partition,
    encode_topic,
    partition_cluster_id,
    partition_key,
    partition_of_key,
    topic_key,
)
from penstock.metadata.errors import StoreCorrupt
from penstock.metadata.store import Entry
from penstock.model import TopicPartition

BROKER_IDS = st.integers(min_value=0, max_value=2**31 - 1)
EXTRA = st.dictionaries(st.sampled_from(["zone", "shape"]), st.integers())


def entry(key: str, value: bytes) -> Entry:
    return Entry(key=key, value=value, create_revision=1, mod_revision=1)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionState:
    replicas = tuple(draw(st.lists(BROKER_IDS, min_size=1, unique=True, max_size=5)))
    members = draw(st.sets(st.sampled_from(replicas)))
    leader = draw(st.sampled_from(sorted(members))) if members else None
    return PartitionState(
        cluster_id=draw(st.text()),
        replicas=replicas,
        leader=leader,
        leader_incarnation=None if leader is None else draw(st.text()),
        leader_epoch=draw(st.integers(min_value=0)),
        isr={member: draw(st.text()) for member in members},
        partition_epoch=draw(st.integers(min_value=0)),
        adding=tuple(draw(st.sets(st.sampled_from(replicas)))),
        removing=tuple(draw(st.sets(st.sampled_from(replicas)))),
        ready=frozenset(draw(st.sets(st.sampled_from(replicas)))),
        errors=draw(st.dictionaries(st.sampled_from(replicas), st.text())),
        replica_count=draw(st.none() | st.integers(min_value=1)),
        is_unclean_wanted=draw(st.booleans()),
        extra=draw(EXTRA),
    )


@given(partitions())
def test_a_partition_comes_back_as_it_was(state: PartitionState) -> None:
    key = partition_key(TopicPartition("a-topic", 7))
    assert decode_partition(entry(key, encode_partition(state))) == state


@given(BROKER_IDS, st.text(), st.none() | st.text(), st.booleans(), EXTRA)
def test_a_registration_comes_back_as_it_was(
    broker: int, text: str, rack: str | None, leaving: bool, extra: dict[str, int]
) -> None:
    written = BrokerRegistration(
        id=broker, host=text, port=1, incarnation=text, storage_id=text, rack=rack,
        is_leaving=leaving, extra=extra,
    )  # fmt: skip
    assert decode_broker(entry(broker_key(broker), encode_broker(written))) == written


def test_a_topic_and_the_controllers_claim_come_back_as_they_were() -> None:
    topic = TopicState(
        name="t", id=uuid.uuid4(), partition_count=3, replication_factor=2,
        assignment=((1, 2), (2, 3)), overrides={"retention.ms": "5"}, extra={"x": 1},
    )  # fmt: skip
    assert decode_topic(entry(topic_key("t"), encode_topic(topic))) == topic
    claim = ControllerClaim(broker=3, incarnation="i")
    assert decode_controller(entry("controller", encode_controller(claim))) == claim


def test_what_a_newer_broker_wrote_survives_a_change_by_an_older_one() -> None:
    newer = json.loads(encode_partition(PartitionState(cluster_id="c", replicas=(1,))))
    newer["eligible"] = [4]
    state = decode_partition(entry("partitions/t/0", json.dumps(newer).encode()))
    changed = json.loads(encode_partition(replace(state, partition_epoch=9)))
    assert (changed["eligible"], changed["partition_epoch"]) == ([4], 9)


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b"null", b"\xff",
        encode_partition(PartitionState(cluster_id="c", replicas=(1,), leader=1)),
        encode_partition(PartitionState(cluster_id="c", replicas=(1,), isr={2: "s"})),
    ],
)  # fmt: skip
def test_what_is_no_partition_is_refused_and_not_guessed(value: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="partitions/t/0"):
        decode_partition(entry("partitions/t/0", value))


def test_a_topic_made_anew_has_other_cluster_ids() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    ids = {partition_cluster_id(topic, p) for topic in (first, second) for p in range(3)}
    assert len(ids) == 6
    assert partition_cluster_id(first, 0) == partition_cluster_id(first, 0)


def test_a_replica_is_pending_until_its_broker_says_otherwise() -> None:
    state = PartitionState(
        cluster_id="c", replicas=(1, 2, 3), ready=frozenset((1, 3)), errors={3: "disk full"}
    )
    assert [state.readiness(broker) for broker in (1, 2, 3)] == [
        Readiness.READY,
        Readiness.PENDING,
        Readiness.ERROR,
    ]


def test_a_partitions_key_may_hold_a_topic_with_dashes_and_dots() -> None:
    name = TopicPartition("a-b.c_d", 12)
    assert partition_of_key(partition_key(name)) == name
