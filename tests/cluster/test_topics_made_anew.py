"""A topic is deleted and made anew under its name: topics and partitions are watched apart."""

from __future__ import annotations

import uuid

import pytest

from penstock.cluster import requests
from penstock.cluster.state import TopicState, encode_topic, topic_key
from penstock.errors import ApiError, ErrorCode, StorageError
from penstock.model import TopicPartition
from tests.cluster.desk import Desk
from tests.cluster.wired import TOPIC, Stage, led_by, until
from tests.kafka.batches import make_batch

ORDERS = TopicPartition(TOPIC, 0)


async def test_the_log_of_the_old_topic_takes_and_shows_nothing_for_the_new_one(
    stage: Stage,
) -> None:
    leader = await stage.add(1)
    await stage.create(leader)
    leader.append(b"old")
    assert leader.partition().leader == leader.id

    stage.topic_id = uuid.uuid4()
    topic = TopicState(name=TOPIC, id=stage.topic_id, partition_count=1)
    stage.write(topic_key(TOPIC), encode_topic(topic))  # the partitions are heard of later
    made_anew = leader.partition()
    assert made_anew.leader == -1
    assert made_anew.local_log is None
    for use in (
        lambda: made_anew.append(memoryview(bytearray(make_batch(b"new"))), 1),
        lambda: made_anew.log,
        made_anew.latest_offset,
    ):
        with pytest.raises(ApiError) as refused:
            use()
        assert refused.value.code is ErrorCode.leader_not_available

    await stage.create(leader)
    await until(lambda: leader.partition().local_log is not None, "it is there")
    assert leader.partition().log.log_end_offset == 0


async def test_it_is_opened_though_the_old_one_could_not_be(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the old one is gone may not be heard of: a watch that fell behind reads what is there."""
    leader = await stage.add(1)
    with monkeypatch.context() as patch:
        patch.setattr(leader.logs, "load", refuse)
        topic = TopicState(name=TOPIC, id=stage.topic_id, partition_count=1)
        stage.write(topic_key(TOPIC), encode_topic(topic))
        stage.write_partition(ORDERS, led_by(leader, stage.topic_id))
        await until(lambda: ORDERS in leader.replicas.opened, "it has said why not")
        assert leader.replicas.opened[ORDERS] == "the disk refuses"

    stage.topic_id = uuid.uuid4()
    await stage.create(leader)
    assert leader.replicas.opened[ORDERS] is None


def refuse(*_: object, **__: object) -> None:
    raise StorageError("the disk refuses")


def test_it_is_not_open_because_the_partitions_of_the_old_one_were() -> None:
    desk = Desk()
    desk.create(TOPIC)
    desk.open_all()
    assert requests.opening(desk.view, TOPIC).pending == 0
    topic = TopicState(name=TOPIC, id=uuid.uuid4(), partition_count=1, replication_factor=3)
    desk.view.apply(topic_key(TOPIC), encode_topic(topic), desk.space.revision + 1)
    assert requests.opening(desk.view, TOPIC).pending == 1
