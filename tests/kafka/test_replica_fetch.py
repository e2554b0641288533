"""Fetch as a leader serves it to followers, and what it keeps from everybody else."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.testing import ThreadBroker
from tests.cluster.wired import Member, Stage, until
from tests.kafka.batches import records_in
from tests.kafka.wire import Topic, Wire, fetch, only_partition, produce, request, topic_id

VERSION = 17
EPOCH = 1002  # the registration of broker 2
WAIT_MS = 30_000


def replica_fetch(
    topic: Topic,
    offsets: Mapping[int, int],
    *,
    version: int = VERSION,
    replica: int = 2,
    replica_epoch: int = EPOCH,
    leader_epoch: int = 1,
    last_epoch: int = -1,
    session: tuple[int, int] = (0, 0),
    max_wait_ms: int = 0,
    bytes_max: int = 1 << 20,
    answer_bytes_max: int = 50 << 20,
) -> Any:
    partitions = [
        {"partition": index, "fetch_offset": offset, "current_leader_epoch": leader_epoch,
         "last_fetched_epoch": last_epoch, "log_start_offset": 0, "partition_max_bytes": bytes_max}
        for index, offset in offsets.items()
    ]  # fmt: skip
    return request(
        "fetch",
        version,
        replica_id=replica,
        replica_state={"replica_id": replica, "replica_epoch": replica_epoch},
        max_wait=max_wait_ms,
        min_bytes=1,
        max_bytes=answer_bytes_max,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic": topic, "topic_id": topic, "partitions": partitions}] if offsets else [],
    )


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[Member]:
    """Leads one partition for itself and broker 2, which is not there: the test speaks for it."""
    stage = Stage(tmp_path)
    member = await stage.add(1)
    absent = await stage.add(2)
    await absent.fetchers.close()
    await stage.create(member, absent)
    yield member
    await stage.stop()


async def asked(member: Member, message: Any) -> Any:
    """Ask on a connection of its own, in a thread: the broker is on our event loop."""

    def ask() -> Any:
        with Wire("{}:{}".format(*member.server.address)) as wire:
            return wire.ask(message)

    return await asyncio.to_thread(ask)


def test_a_broker_that_is_alone_has_no_followers(wire: Wire, topic: str) -> None:
    wire.ask(produce(9, topic, {0: None}))
    for version in (12, VERSION):
        name: Topic = topic if version < 13 else topic_id(wire, topic)
        answer = wire.ask(replica_fetch(name, {0: 0}, version=version, leader_epoch=-1))
        assert only_partition(answer).error_code is ErrorCode.not_leader_or_follower
        assert not only_partition(answer).records


async def test_followers_read_what_is_not_committed_and_consumers_do_not(leader: Member) -> None:
    topic = leader.stage.topic_id
    await in_sync(leader)
    leader.append(b"a", b"b")
    assert leader.log().high_watermark == 0
    followed = only_partition(await asked(leader, replica_fetch(topic, {0: 0})))
    assert [value for _, value in records_in(followed.records)] == [b"a", b"b"]
    assert followed.high_watermark == 0
    consumed = only_partition(await asked(leader, fetch(VERSION, {topic: {0: 0}})))
    assert not consumed.records
    assert consumed.error_code is ErrorCode.none
    told = only_partition(await asked(leader, replica_fetch(topic, {0: 2}, last_epoch=1)))
    assert told.high_watermark == leader.log().high_watermark == 2
    consumed = only_partition(await asked(leader, fetch(VERSION, {topic: {0: 0}})))
    assert [value for _, value in records_in(consumed.records)] == [b"a", b"b"]


async def test_a_follower_reads_beyond_the_high_watermark_also_without_a_session(
    leader: Member,
) -> None:
    topic = leader.stage.topic_id
    await in_sync(leader)
    leader.append(b"a")
    await asked(leader, replica_fetch(topic, {0: 1}, last_epoch=1))
    leader.append(b"b")
    assert leader.log().high_watermark == 1
    followed = only_partition(await asked(leader, replica_fetch(topic, {0: 0}, session=(0, -1))))
    assert [value for _, value in records_in(followed.records)] == [b"a", b"b"]


async def in_sync(leader: Member) -> None:
    """Broker 2 has all there is, and is in the ISR."""
    await asked(leader, replica_fetch(leader.stage.topic_id, {0: 0}, session=(0, -1)))
    await until(lambda: 2 in leader.stage.state().isr, "in sync")


async def test_a_consumer_that_waits_is_answered_when_its_record_is_committed(
    leader: Member,
) -> None:
    topic = leader.stage.topic_id
    await in_sync(leader)
    waiting = asyncio.create_task(
        asked(leader, fetch(VERSION, {topic: {0: 0}}, max_wait_ms=WAIT_MS))
    )
    await until(lambda: leader.server._door.waiting_fetches, "it waits")
    leader.append(b"a")
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await asked(leader, replica_fetch(topic, {0: 1}, last_epoch=1))
    async with asyncio.timeout(5):
        assert records_in(only_partition(await waiting).records) == [(0, b"a")]


@pytest.mark.parametrize("is_follower", [True, False])
async def test_who_waits_is_told_at_once_that_another_leads(
    leader: Member, is_follower: bool
) -> None:
    topic = leader.stage.topic_id
    message = (
        replica_fetch(topic, {0: 0}, session=(0, -1), max_wait_ms=WAIT_MS)
        if is_follower
        else fetch(VERSION, {topic: {0: 0}}, max_wait_ms=WAIT_MS)
    )
    waiting = asyncio.create_task(asked(leader, message))
    await until(lambda: leader.server._door.waiting_fetches, "it waits")
    leader.stage.elect(leader.stage.members[2])
    async with asyncio.timeout(5):
        code = only_partition(await waiting).error_code
    assert code in {ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch}


async def test_a_follower_that_waits_in_an_older_epoch_is_fenced(leader: Member) -> None:
    """Its leader goes on leading, in another epoch: it must ask anew before it is given records."""
    topic = leader.stage.topic_id
    message = replica_fetch(topic, {0: 0}, session=(0, -1), max_wait_ms=WAIT_MS)
    waiting = asyncio.create_task(asked(leader, message))
    await until(lambda: leader.server._door.waiting_fetches, "it waits")
    leader.stage.elect(leader)
    async with asyncio.timeout(5):
        assert only_partition(await waiting).error_code is ErrorCode.fenced_leader_epoch


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leader_epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 2}, ErrorCode.unknown_leader_epoch),
        ({"replica_epoch": 1}, ErrorCode.stale_broker_epoch),
        ({"replica_epoch": -1}, ErrorCode.stale_broker_epoch),
        ({"replica": 3}, ErrorCode.not_leader_or_follower),
    ],
)
async def test_who_is_no_follower_of_this_epoch_is_refused(
    leader: Member, changes: dict[str, int], code: ErrorCode
) -> None:
    leader.append(b"a")
    answer = await asked(leader, replica_fetch(leader.stage.topic_id, {0: 0}, **changes))  # type: ignore[arg-type]
    assert only_partition(answer).error_code is code
    assert not only_partition(answer).records
    assert leader.stage.state().isr.keys() == {1}


async def test_an_unknown_topic_id_is_said_to_be_one(leader: Member) -> None:
    answer = await asked(leader, replica_fetch(uuid.uuid4(), {0: 0}))
    assert only_partition(answer).error_code is ErrorCode.unknown_topic_id


async def test_a_follower_that_hears_of_a_partition_first_is_told_to_ask_again(
    tmp_path: Path,
) -> None:
    """Where it stands was not noted then. If it did not say it again, it would never be in sync."""
    stage = Stage(tmp_path)
    member, absent = await stage.add(1), await stage.add(2)
    await absent.fetchers.close()
    await stage.create(member, absent, partitions=2)
    topic, door = stage.topic_id, cast("Any", member.server._door)
    begun = await asked(member, replica_fetch(topic, {0: 0}))
    known, door.resolve = door.resolve, lambda _: ApiError(ErrorCode.unknown_topic_id)
    session = (begun.session_id, 1)
    message = replica_fetch(topic, {1: 0}, session=session, max_wait_ms=WAIT_MS)
    waiting = asyncio.create_task(asked(member, message))
    await until(lambda: door.waiting_fetches, "it waits")
    door.resolve = known
    member.append(b"a", index=0)
    answer = await waiting
    codes = {one.partition_index: one.error_code for one in answer.responses[0].partitions}
    assert codes == {0: ErrorCode.none, 1: ErrorCode.unknown_topic_id}
    await asked(member, replica_fetch(topic, {1: 0}, session=(begun.session_id, 2)))
    await until(lambda: 2 in stage.state(1).isr, "in sync")
    await stage.stop()


async def test_a_follower_is_told_where_its_epoch_ended_and_where_the_log_begins(
    leader: Member,
) -> None:
    topic = leader.stage.topic_id
    for _ in range(4):
        leader.append(b"x")
    leader.stage.elect(leader)
    leader.append(b"y")
    parted = only_partition(
        await asked(leader, replica_fetch(topic, {0: 6}, leader_epoch=2, last_epoch=1))
    )
    assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (1, 4)
    assert not parted.records
    await until(lambda: leader.log().high_watermark == 5, "alone, on disk")
    leader.log().delete_records_before(3)
    below = only_partition(await asked(leader, replica_fetch(topic, {0: 2}, leader_epoch=2)))
    assert below.error_code is ErrorCode.offset_out_of_range
    assert below.log_start_offset == 3


async def test_a_followers_session_is_its_own(leader: Member) -> None:
    """Who is not the follower could read by it what is not committed."""
    topic = leader.stage.topic_id
    begun = await asked(leader, replica_fetch(topic, {0: 0}))
    assert begun.session_id > 0
    session = (begun.session_id, 1)
    for message in (
        fetch(VERSION, {}, session=session),
        replica_fetch(topic, {}, session=session, replica=3),
        replica_fetch(topic, {}, session=session, replica_epoch=7),
    ):
        answer = await asked(leader, message)
        assert answer.error_code is ErrorCode.fetch_session_id_not_found
    answer = await asked(leader, replica_fetch(topic, {}, session=session))
    assert answer.error_code is ErrorCode.none


async def test_a_consumers_session_is_not_for_followers(leader: Member) -> None:
    topic = leader.stage.topic_id
    begun = await asked(leader, fetch(VERSION, {topic: {0: 0}}, session=(0, 0)))
    answer = await asked(leader, replica_fetch(topic, {}, session=(begun.session_id, 1)))
    assert answer.error_code is ErrorCode.fetch_session_id_not_found


async def test_a_follower_always_gets_a_session_and_only_one(leader: Member) -> None:
    topic = leader.stage.topic_id
    sessions = leader.server._door.fetch_sessions
    sessions._limit = 2
    for _ in range(2):
        begun = await asked(leader, fetch(VERSION, {topic: {0: 0}}, session=(0, 0)))
        assert begun.session_id > 0
    none = await asked(leader, fetch(VERSION, {topic: {0: 0}}, session=(0, 0)))
    assert none.session_id == 0
    ids = {(await asked(leader, replica_fetch(topic, {0: 0}))).session_id for _ in range(5)}
    assert 0 not in ids
    assert len(ids) == 5
    assert len(sessions) == 2


async def test_a_waiting_follower_is_answered_when_its_next_request_comes(leader: Member) -> None:
    topic = leader.stage.topic_id
    begun = await asked(leader, replica_fetch(topic, {0: 0}))

    def ask_twice() -> tuple[Any, Any]:
        with Wire("{}:{}".format(*leader.server.address)) as wire:
            wire.send(replica_fetch(topic, {}, session=(begun.session_id, 1), max_wait_ms=WAIT_MS))
            assert wire.is_silent(0.05)
            wire.send(replica_fetch(topic, {0: 0}, session=(begun.session_id, 2)))
            return wire.receive(), wire.receive()

    async with asyncio.timeout(5):
        first, second = await asyncio.to_thread(ask_twice)
    assert first.error_code is second.error_code is ErrorCode.none
    assert first.session_id == second.session_id == begun.session_id


async def test_a_quiet_session_costs_what_has_news(tmp_path: Path) -> None:
    """Of 100 partitions, only the one that grew is looked at, and only named ones are noted."""
    stage = Stage(tmp_path)
    member, absent = await stage.add(1), await stage.add(2)
    await absent.fetchers.close()
    await stage.create(member, absent, partitions=100)
    topic = stage.topic_id
    begun = await asked(member, replica_fetch(topic, dict.fromkeys(range(100), 0)))
    session = member.server._door.fetch_sessions._sessions[begun.session_id]
    await asked(member, replica_fetch(topic, {}, session=(begun.session_id, 1)))
    await until(lambda: all(2 in stage.state(index).isr for index in range(100)), "in sync")
    await asked(member, replica_fetch(topic, {}, session=(begun.session_id, 2)))
    assert not session.reader._ready
    member.append(b"x", index=7)
    assert [position.key for position in session.reader._ready] == [(topic, 7)]
    answer = await asked(member, replica_fetch(topic, {}, session=(begun.session_id, 3)))
    assert only_partition(answer).partition_index == 7
    await stage.stop()


async def test_a_partition_that_does_not_fit_is_not_forgotten(tmp_path: Path) -> None:
    """It is behind the high watermark's place, where a consumer would have nothing to read."""
    stage = Stage(tmp_path)
    member, absent = await stage.add(1), await stage.add(2)
    await absent.fetchers.close()
    await stage.create(member, absent, partitions=2)
    topic = stage.topic_id
    begun = await asked(member, replica_fetch(topic, {0: 0, 1: 0}))
    await until(lambda: all(2 in stage.state(index).isr for index in range(2)), "in sync")
    for index in range(2):
        member.append(b"x" * 1000, index=index)
    found = set()
    for epoch in (1, 2):
        message = replica_fetch(
            topic, {}, session=(begun.session_id, epoch), answer_bytes_max=1_100
        )
        found.add(only_partition(await asked(member, message)).partition_index)
    assert found == {0, 1}
    await stage.stop()


def test_nothing_of_ours_is_advertised(shared: ThreadBroker) -> None:
    with Wire(shared.bootstrap) as wire:
        answer = wire.ask(request("api_versions", 0))
    assert max(item.api_key for item in answer.api_keys) < 1_000
