"""A disk that refuses once keeps nobody waiting for ever, and loses nobody their place."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.state import topic_key
from penstock.errors import StorageError
from penstock.log import PartitionLog
from penstock.log.ownership import forget_storage_id
from penstock.model import TopicPartition
from tests.cluster.wired import TIMEOUT_S, TOPIC, Member, Stage, until
from tests.kafka.batches import make_batch

ORDERS = TopicPartition(TOPIC, 0)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path, replica_fetch_wait_ms_max=20)
    yield stage
    await stage.stop()


async def added(stage: Stage) -> Member:
    """A broker that says what its disk holds, as those of a cluster do."""
    member = await stage.add(1)
    member.term.storage_id = member.logs.storage_id
    member.logs.claim_for("c", member.id)
    return member


class Refusal:
    """A method of one log that fails while `is_on`, as it does on a disk that refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: PartitionLog, method: str) -> None:
        self.is_on = True
        self.count = 0
        original: Callable[..., Any] = getattr(PartitionLog, method)

        def refusing(self_: PartitionLog, *args: Any) -> Any:
            if self_ is log and self.is_on:
                self.count += 1
                raise StorageError("the disk refuses")
            return original(self_, *args)

        monkeypatch.setattr(PartitionLog, method, refusing)


def append_and_wait(member: Member) -> asyncio.Future[None]:
    hosted = member.hosted()
    batch = memoryview(bytearray(make_batch(b"x")))
    appended = member.replicas.append(hosted, batch, -1)
    return member.replicas.until_acknowledged(hosted, appended.end_offset, TIMEOUT_S)


async def test_a_produce_is_answered_though_the_high_watermark_can_not_be_shown_yet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower)
    await stage.until_in_sync(leader, follower)
    refusal = Refusal(monkeypatch, leader.log(), "set_high_watermark")
    async with asyncio.timeout(TIMEOUT_S):
        await append_and_wait(leader)
    assert refusal.count
    assert leader.log().high_watermark == 0
    refusal.is_on = False
    leader.replicas.tick()
    assert leader.log().high_watermark == 1


async def test_a_follower_whose_disk_refused_goes_on_with_the_leader_of_the_moment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, follower = [await stage.add(number) for number in (1, 2, 3)]
    await stage.create(one, two, follower)
    await stage.until_in_sync(one, two, follower)
    refusal = Refusal(monkeypatch, follower.log(), "append_fetched")
    one.append(b"first")
    await until(lambda: refusal.count == 1, "it was refused by the first leader's follower")
    await until(lambda: two.log().log_end_offset == 1, "the next leader has it")
    stage.elect(two)
    await until(lambda: refusal.count == 2, "and by the next one's, before it tries again")
    refusal.is_on = False
    await until(lambda: follower.log().log_end_offset == 1, "it goes on")
    two.append(b"second")
    await until(lambda: follower.contents() == two.contents(), "with the second leader")


async def test_a_log_that_failed_for_good_is_not_fetched_for(stage: Stage) -> None:
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower)
    await stage.until_in_sync(leader, follower)
    follower.log().fail("the disk is gone")
    leader.append(b"x")
    await until(lambda: follower.hosted().followed is None, "it stops")
    before = len(leader.requests)
    await asyncio.sleep(1.2)  # it would have tried again after a second
    assert len(leader.requests) - before <= 1


async def test_a_topic_made_anew_is_told_of_though_the_old_log_can_not_be_moved_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await stage.add(1)
    await stage.create(leader)
    leader.append(b"old")
    rename = os.rename

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", refuse)
    stage.write(topic_key(TOPIC), None)
    stage.topic_id = uuid.uuid4()
    topic_made = asyncio.create_task(stage.create(leader))
    await until(lambda: leader.replicas.opened.get(ORDERS), "the reason is known")
    assert "Input/output error" in str(leader.replicas.opened[ORDERS])
    monkeypatch.setattr(os, "rename", rename)
    topic_made.cancel()
    await asyncio.gather(topic_made, return_exceptions=True)


async def test_a_log_that_somebody_took_away_does_not_begin_anew_while_others_count_on_it(
    stage: Stage,
) -> None:
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower)
    await stage.until_in_sync(leader, follower)
    leader.append(b"x")
    await until(lambda: leader.log().high_watermark == 1, "committed by both")
    await follower.stop()
    shutil.rmtree(follower.log().directory)

    follower = await stage.add(2)  # with the same disk, as far as others know
    await until(lambda: follower.replicas.opened.get(ORDERS), "it has said why not")
    assert "not in the data directory any more" in str(follower.replicas.opened[ORDERS])
    assert follower.replicas.get(ORDERS) is None

    follower.term.begin("2002", asyncio.get_running_loop().time(), 1e6)
    stage.register(follower)
    without = {leader.id: leader.term.storage_id}
    stage.write_partition(ORDERS, replace(stage.state(), isr=without))
    await stage.until_in_sync(leader, follower)
    assert follower.contents() == leader.contents()


async def test_the_last_in_sync_does_not_begin_anew_on_a_new_disk_while_others_hold_a_part(
    stage: Stage,
) -> None:
    """It would be elected with any disk of its own, and the others cut off all that they have."""
    leader, follower = await stage.add(1), await stage.add(2)
    leader.logs.claim_for("c", leader.id)
    await stage.create(leader, follower)
    await stage.until_in_sync(leader, follower)
    leader.append(b"x")
    await until(lambda: follower.log().high_watermark == 1, "committed by both")
    await leader.stop()
    del stage.members[leader.id]
    stage.write_partition(ORDERS, replace(stage.state(), isr={leader.id: leader.term.storage_id}))
    shutil.rmtree(leader.logs.data_dir)

    leader = await stage.add(1)
    leader.term.storage_id = "1.2"
    leader.logs.claim_for("c", leader.id)
    await until(lambda: ORDERS in leader.replicas.opened, "it has said what came of it")
    assert "not in the data directory any more" in str(leader.replicas.opened[ORDERS])

    nobody = replace(stage.state(), isr={}, leader=None, leader_incarnation=None)
    stage.write_partition(ORDERS, nobody)
    stage.elect(follower)  # an operator asked for it
    await stage.until_in_sync(leader, follower)
    assert leader.contents() == follower.contents() != b""


@pytest.mark.parametrize("is_elected", [False, True])
async def test_the_only_replica_begins_anew_on_a_new_disk(stage: Stage, is_elected: bool) -> None:
    leader = await stage.add(1)
    await stage.create(leader)
    await leader.stop()
    shutil.rmtree(leader.logs.data_dir)

    leader = await added(stage)
    if is_elected:  # before it has opened what it has
        stage.elect(leader)
    await until(lambda: ORDERS in leader.replicas.opened, "it has said what came of it")
    assert leader.replicas.opened[ORDERS] is None


@pytest.mark.parametrize("is_elected", [False, True])
async def test_a_new_log_that_went_with_the_power_begins_anew(
    stage: Stage, is_elected: bool
) -> None:
    """It was not on disk yet, so nothing in it was committed while its broker was alone in sync."""
    leader = await added(stage)
    await stage.create(leader)
    directory = leader.log().directory
    await leader.stop()
    shutil.rmtree(directory)
    forget_storage_id(leader.logs.own_directory)

    leader = await added(stage)
    if is_elected:  # before it has opened what it has
        stage.elect(leader)
    await until(lambda: ORDERS in leader.replicas.opened, "it has said what came of it")
    assert leader.replicas.opened[ORDERS] is None
