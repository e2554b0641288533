"""Followers fetch from their leaders over the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.model import TopicPartition
from tests.cluster.wired import TOPIC, Member, Stage, until

LONG_MS = 60_000  # a poll that nobody waits for in a test


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Stage]:
    """Leaders hold fetches for a minute: what does not wait for that was told at once."""
    stage = Stage(tmp_path, replica_fetch_wait_ms_max=LONG_MS)
    yield stage
    await stage.stop()


def named(member: Member) -> list[list[int]]:
    """The partitions that each request to this member named."""
    return [
        sorted(item.partition for _, partitions in request.topics for item in partitions)
        for request in member.requests
    ]


async def test_a_follower_gets_what_its_leader_has_byte_for_byte(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    for number in range(20):
        leader.append(b"%d" % number, b"x" * 100)
    await until(lambda: follower.log().log_end_offset == 40, "the follower has it")
    assert follower.contents() == leader.contents()
    await patient.until_in_sync(leader, follower)
    leader.append(b"more")
    await until(lambda: leader.log().high_watermark == 41, "committed by both")
    assert follower.contents() == leader.contents()


async def test_the_follower_learns_the_high_watermark_though_nothing_more_is_written(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, replica_fetch_wait_ms_max=20)
    leader, one, two = [await stage.add(number) for number in (1, 2, 3)]
    await stage.create(leader, one, two)
    await stage.until_in_sync(leader, one, two)
    leader.append(b"x")
    await until(lambda: one.log().high_watermark == 1, "one knows")
    await until(lambda: two.log().high_watermark == 1, "two knows")
    await stage.stop()


async def test_a_session_names_only_what_has_changed(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower, partitions=100)
    await until(lambda: sum(map(len, named(leader))) >= 100, "all are asked for")
    await patient.until_in_sync(leader, follower, partitions=100)
    before = len(leader.requests)
    for _ in range(5):
        end = leader.log(7).log_end_offset
        leader.append(b"x", index=7)
        await until(lambda: leader.log(7).high_watermark == end + 1, "committed")  # noqa: B023
    assert set(itertools.chain.from_iterable(named(leader)[before:])) <= {7}
    assert len(leader.requests) - before <= 6


async def test_an_idle_session_is_asked_for_without_naming_anything(tmp_path: Path) -> None:
    stage = Stage(tmp_path, replica_fetch_wait_ms_max=5)
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower, partitions=50)
    await stage.until_in_sync(leader, follower, partitions=50)
    await asyncio.sleep(0)
    count = len(leader.requests)
    await until(lambda: len(leader.requests) >= count + 10, "polls go on")
    assert not any(named(leader)[count + 3 :])
    assert len(follower.host.lost) == 0
    await stage.stop()


async def test_who_is_added_does_not_wait_for_the_poll_under_way(patient: Stage) -> None:
    leader, other, follower = [await patient.add(number) for number in (1, 2, 3)]
    await patient.create(leader, other, follower, partitions=3)
    await patient.until_in_sync(leader, other, follower, partitions=3)
    patient.elect(other, 1)
    other.append(b"x", index=1)
    await until(lambda: follower.log(1).log_end_offset == 1, "the third follows the new leader")
    patient.elect(leader, 1)
    leader.append(b"y", index=1)
    await until(lambda: follower.log(1).log_end_offset == 2, "and the old one again")
    await until(
        lambda: other.log(1).high_watermark == 2 or leader.log(1).high_watermark == 2, "all"
    )
    assert follower.contents(1) == leader.contents(1) == other.contents(1)


async def test_an_answer_to_an_earlier_question_is_not_taken_for_the_next(patient: Stage) -> None:
    """The poll under way is answered with an error, for its epoch is over; the new fetch is sound."""
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    await until(lambda: leader.server._door.waiting_fetches, "a poll is under way")
    patient.elect(leader)
    leader.append(b"x")
    await until(lambda: leader.log().high_watermark == 1, "committed")
    assert not follower.host.errors()
    assert len(follower.host.lost) == 1  # what was asked in the old epoch
    assert follower.contents() == leader.contents()


async def test_a_new_leader_is_fetched_from_within_a_moment(patient: Stage) -> None:
    leader, follower, third = [await patient.add(number) for number in (1, 2, 3)]
    await patient.create(leader, follower, third, partitions=20)
    await patient.until_in_sync(leader, follower, third, partitions=20)
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    for index in range(20):
        patient.elect(follower, index)
        follower.append(b"x", index=index)
    await until(
        lambda: all(follower.log(index).high_watermark == 1 for index in range(20)), "committed"
    )
    assert loop.time() - begin_s < 5.0  # a poll is a minute; on an idle machine it takes some 20 ms


async def test_records_that_the_leader_does_not_have_are_cut_off(patient: Stage) -> None:
    one, two = await patient.add(1), await patient.add(2)
    await patient.create(one, two)
    await patient.until_in_sync(one, two)
    one.append(b"kept")
    await until(lambda: two.log().log_end_offset == 1, "both have it")
    await two.fetchers.close()
    one.append(b"lost")
    patient.elect(two)
    two.append(b"instead")
    two.append(b"of it")
    await until(lambda: one.log().log_end_offset == 3, "the old leader follows")
    await until(lambda: two.log().high_watermark == 3, "committed")
    assert one.contents() == two.contents()


async def test_a_follower_below_the_leaders_start_begins_there(stage: Stage) -> None:
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader)
    for _ in range(10):
        leader.append(b"x")
    await until(lambda: leader.log().high_watermark == 10, "durable")
    leader.log().delete_records_before(7)
    state = replace(stage.state(), replicas=(1, 2))
    stage.write_partition(TopicPartition(TOPIC, 0), state)
    await stage.until_in_sync(leader, follower)
    assert follower.log().log_start_offset == 7
    assert follower.log().log_end_offset == 10


async def test_what_the_leader_deletes_goes_at_the_follower_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, replica_fetch_wait_ms_max=20)
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower)
    for _ in range(10):
        leader.append(b"x")
    await until(lambda: follower.log().high_watermark == 10, "committed, and known to be")
    leader.log().delete_records_before(4)
    leader.append(b"y")
    await until(lambda: follower.log().log_start_offset == 4, "the start follows")
    await stage.stop()


async def test_a_lost_connection_is_told_and_fetching_goes_on(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower, partitions=5)
    await patient.until_in_sync(leader, follower, partitions=5)
    assert not follower.host.lost
    for connection in tuple(leader.server._connections):
        connection.close("the test says so")
    await until(lambda: len(follower.host.lost) == 5, "each is told")
    leader.append(b"x", index=3)
    await until(lambda: leader.log(3).high_watermark == 1, "committed")
    assert len(follower.host.lost) == 5


async def test_a_session_that_the_leader_forgot_is_begun_anew(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower, partitions=5)
    await patient.until_in_sync(leader, follower, partitions=5)
    sessions = leader.server._door.fetch_sessions
    for session_id in tuple(sessions._sessions):
        sessions.close(session_id)
    leader.append(b"x", index=3)
    await until(lambda: leader.log(3).high_watermark == 1, "committed")
    assert sorted(follower.host.lost) == [TopicPartition(TOPIC, index) for index in range(5)]
    assert len(sessions) == 1


async def test_a_follower_that_registers_anew_says_everything_again(stage: Stage) -> None:
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower, partitions=3)
    await stage.until_in_sync(leader, follower, partitions=3)
    count = len(leader.requests)
    follower.term.begin("4711", asyncio.get_running_loop().time(), 1e6)
    stage.register(follower)
    await until(lambda: [0, 1, 2] in named(leader)[count:], "all are named again")
    assert leader.requests[-1].replica_epoch == 4711
    leader.append(b"x", index=2)
    await until(lambda: leader.log(2).high_watermark == 1, "committed")
    assert len(leader.server._door.fetch_sessions) == 1


async def test_one_in_error_backs_off_and_the_others_go_on(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower, partitions=2)
    await patient.until_in_sync(leader, follower, partitions=2)
    hosted = leader.hosted(0)
    hosted.replica.leadership = (
        None  # it does not lead any more, and has told nobody but its readers
    )
    hosted.log.wake_subscribers()
    await until(follower.host.errors, "the follower is told at once")
    begin_s = asyncio.get_running_loop().time()
    count = len(leader.requests)
    for end in range(1, 21):
        leader.append(b"x", index=1)
        await until(lambda: leader.log(1).high_watermark == end, "the other goes on")  # noqa: B023
    await until(lambda: len(follower.host.errors()) >= 3, "it is tried again")
    waited_s = asyncio.get_running_loop().time() - begin_s
    assert waited_s > 0.25  # 100 ms, then 200 ms
    assert set(follower.host.errors()) == {ErrorCode.not_leader_or_follower}
    assert sum(0 in names for names in named(leader)[count:]) <= 1 + waited_s / 0.1
    assert len(leader.requests) - count <= 2 * 20 + 10  # the error is not repeated until then


async def test_a_fetch_of_a_newer_epoch_is_tried_again_soon(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    state = replace(patient.state(), leader_epoch=2)
    key = TopicPartition(TOPIC, 0)
    del patient.members[1]  # hears of it later
    patient.write_partition(key, state)
    await until(follower.host.errors, "the leader does not know the epoch")
    assert follower.host.errors()[0] is ErrorCode.unknown_leader_epoch
    patient.members[1] = leader
    patient.write_partition(key, state)
    leader.append(b"x")
    await until(lambda: leader.log().high_watermark == 1, "committed")


async def test_a_stranger_is_refused(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    follower.term.begin("4711", asyncio.get_running_loop().time(), 1e6)  # not what it registered as
    await patient.create(leader, follower)
    await until(lambda: len(follower.host.errors()) >= 2, "refused")
    assert set(follower.host.errors()) == {ErrorCode.stale_broker_epoch}
    leader.append(b"x")
    assert follower.log().log_end_offset == 0


async def test_what_is_asked_of_a_topic_made_anew_is_refused(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    hosted = leader.hosted()
    assert hosted.replica.leadership is not None
    leadership = hosted.replica.leadership
    leadership.state = replace(leadership.state, cluster_id="of another topic")
    for connection in tuple(leader.server._connections):
        connection.close("so that everything is asked anew")
    await until(follower.host.errors, "refused")
    assert follower.host.errors()[0] is ErrorCode.unknown_topic_id


async def test_a_log_far_behind_comes_in_large_answers(tmp_path: Path) -> None:
    stage = Stage(tmp_path, replica_fetch_bytes_max=4 << 20, replica_fetch_wait_ms_max=LONG_MS)
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader)
    for _ in range(80):
        leader.append(b"x" * 500_000)
    leader.append(b"x" * 1_000_000)
    state = replace(stage.state(), replicas=(1, 2))
    stage.write_partition(TopicPartition(TOPIC, 0), state)
    partition = TopicPartition(TOPIC, 0)
    await until(lambda: follower.replicas.get(partition), "it is opened")
    await until(lambda: follower.log().log_end_offset == 81, "the follower has it")
    assert follower.contents() == leader.contents()
    sizes = [answer.records for _, _, answer in follower.host.answers if answer.records]
    assert max(sizes) > 3 << 20
    assert len(sizes) < 20
    await stage.stop()


async def test_catching_up_is_throttled_and_those_in_sync_are_not(tmp_path: Path) -> None:
    rate = 2 << 20
    stage = Stage(tmp_path, catch_up_bytes_per_s_max=rate, replica_fetch_wait_ms_max=LONG_MS)
    leader, follower = await stage.add(1), await stage.add(2)
    await stage.create(leader, follower, partitions=2)
    await stage.until_in_sync(leader, follower, partitions=2)
    behind = TopicPartition(TOPIC, 1)
    state = replace(stage.state(1), replicas=(1,), isr={1: leader.term.storage_id}, leader_epoch=2)
    stage.write_partition(behind, state)
    for _ in range(24):
        leader.append(b"x" * 100_000, index=1)
    await until(lambda: leader.log(1).high_watermark == 24, "alone, it has it on disk")
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    stage.write_partition(behind, replace(state, replicas=(1, 2)))
    waits_s = []
    while follower.replicas.get(behind) is None or 2 not in stage.state(1).isr:
        sent_s = loop.time()
        leader.append(b"y" * 20_000, index=0)
        end = leader.log(0).log_end_offset
        await until(lambda: leader.log(0).high_watermark == end, "in sync, not held up")  # noqa: B023
        waits_s.append(loop.time() - sent_s)
        await asyncio.sleep(0.01)
    took_s = loop.time() - begin_s
    fetched = follower.host.bytes_of(behind)
    assert fetched >= 2_400_000
    assert took_s > (fetched - rate) / rate
    assert took_s > 0.5
    assert sorted(waits_s)[len(waits_s) // 2] < 0.1
    await stage.stop()


async def test_a_fetcher_that_follows_nothing_ends_its_session(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    assert len(leader.server._door.fetch_sessions) == 1
    follower.fetchers.unfollow(1, TopicPartition(TOPIC, 0))
    assert follower.host.lost == [TopicPartition(TOPIC, 0)]
    leader.append(b"x")  # ends the poll
    await until(lambda: not len(leader.server._door.fetch_sessions), "the session is closed")
    assert follower.log().log_end_offset == 0


async def test_a_leader_that_restarts_elsewhere_is_found(patient: Stage, tmp_path: Path) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    proxy = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    patient.register(leader, proxy.sockets[0].getsockname())
    await until(lambda: follower.host.lost, "the old address is not used any more")
    patient.register(leader)
    leader.append(b"x")
    await until(lambda: leader.log().high_watermark == 1, "committed")
    proxy.close()


async def test_who_stops_following_an_unreachable_leader_leaves_it_alone(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    follower.peers.update(1, None)
    await until(lambda: follower.host.lost, "lost")
    patient.elect(follower)
    follower.append(b"x")
    await asyncio.sleep(0.2)  # for tries that must not come
    assert follower.log().log_end_offset == 1
    assert not follower.peers.get(1).is_connected


async def test_followers_connect_from_the_address_they_listen_on(patient: Stage) -> None:
    leader, follower = await patient.add(1), await patient.add(2)
    await patient.create(leader, follower)
    await patient.until_in_sync(leader, follower)
    assert {connection.caller.host for connection in leader.server._connections} == {"127.0.0.2"}
