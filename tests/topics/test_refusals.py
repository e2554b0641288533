"""Who is behind a batch that was refused for a while is refused like it, not as out of turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.broker.refusals import NEW_S, Refusals
from penstock.broker.topics import Partition
from penstock.errors import ApiError, ErrorCode
from penstock.log import PartitionLog
from tests.cluster.wired import Stage
from tests.log.support import Disk, from_producer

if TYPE_CHECKING:
    from tests.topics.conftest import World

TOO_FEW = ErrorCode.not_enough_replicas
OUT_OF_TURN = ErrorCode.out_of_order_sequence_number
NOT_HERE = ErrorCode.not_leader_or_follower
TAKEN = ErrorCode.none


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return Disk(tmp_path / "t" / "0").log


class Desk:
    """Where batches are handed in, by their sequence; what is answered is an error code."""

    def __init__(self, log: PartitionLog, refusals: Refusals) -> None:
        self.log = log
        self.refusals = refusals
        self.now = 0.0

    def send(self, sequence: int, *, producer: int = 7, epoch: int = 0) -> ErrorCode:
        records = from_producer(sequence, producer=producer, epoch=epoch)
        try:
            self.refusals.check(records, self.log, self.now)
            self.log.append(records)
        except ApiError as error:
            instead = self.refusals.instead_of(error, records, self.log, self.now)
            return (instead or error).code
        self.refusals.taken(records)
        return TAKEN

    def refuse(self, *sequences: int, producer: int = 7, code: ErrorCode = TOO_FEW) -> None:
        for sequence in sequences:
            records = from_producer(sequence, producer=producer)
            assert not self.refusals.instead_of(ApiError(code, ""), records, self.log, self.now)


class TestByTheSameLeader:
    @pytest.fixture
    def desk(self, log: PartitionLog) -> Desk:
        desk = Desk(log, Refusals())
        assert desk.send(0) is TAKEN
        return desk

    @pytest.mark.parametrize(
        "code", [TOO_FEW, NOT_HERE, ErrorCode.leader_not_available, ErrorCode.kafka_storage_error]
    )
    def test_the_next_batch_is_refused_for_the_same_reason(
        self, desk: Desk, code: ErrorCode
    ) -> None:
        desk.refuse(1, 2, code=code)
        assert [desk.send(3), desk.send(2)] == [code, code]

    def test_both_are_taken_when_they_come_in_order(self, desk: Desk) -> None:
        desk.refuse(1)
        assert [desk.send(2), desk.send(1), desk.send(2)] == [TOO_FEW, TAKEN, TAKEN]
        assert desk.send(4) is OUT_OF_TURN, "it is over"

    def test_one_that_is_out_of_turn_by_itself_is_told_so(self, desk: Desk) -> None:
        assert desk.send(2) is OUT_OF_TURN
        desk.refuse(1, producer=8)
        assert desk.send(2) is OUT_OF_TURN

    def test_what_is_wrong_for_ever_explains_nothing(self, desk: Desk) -> None:
        desk.refuse(1, code=ErrorCode.message_too_large)
        assert desk.send(2) is OUT_OF_TURN

    def test_a_batch_that_comes_again_from_before_ends_nothing(self, desk: Desk) -> None:
        desk.refuse(1)
        assert desk.send(0) is TAKEN, "it is there already"
        assert desk.send(2) is TOO_FEW

    def test_the_first_batch_of_all_is_waited_for(self, desk: Desk) -> None:
        desk.refuse(0, producer=8)
        assert desk.send(1, producer=8) is TOO_FEW, "the log would take it for the first"
        assert [desk.send(0, producer=8), desk.send(1, producer=8)] == [TAKEN, TAKEN]

    def test_a_producer_that_does_not_come_back_is_told_in_the_end(self, desk: Desk) -> None:
        desk.refuse(1)
        desk.now = 9.0
        desk.refuse(2)  # so it is still at it
        desk.now = 18.0
        assert desk.send(3) is TOO_FEW
        desk.now = 19.1
        assert desk.send(3) is OUT_OF_TURN

    def test_only_so_many_producers_are_remembered(self, desk: Desk) -> None:
        for producer in range(1_000, 2_001):
            desk.refuse(0, producer=producer)
        assert desk.send(1, producer=1_000) is TAKEN
        assert desk.send(1, producer=2_000) is TOO_FEW

    def test_what_is_no_batch_of_a_producer_is_not_remembered(self, desk: Desk) -> None:
        for records in (memoryview(b"short"), from_producer(-1, producer=-1)):
            error = ApiError(TOO_FEW, "")
            assert desk.refusals.instead_of(error, records, desk.log, 0) is None
        assert desk.send(2) is OUT_OF_TURN


class TestByTheLeaderBefore:
    """It was refused elsewhere, so nobody here knows of it."""

    @pytest.fixture
    def desk(self, log: PartitionLog) -> Desk:
        log.append(from_producer(0))
        return Desk(log, Refusals(epoch_start=log.log_end_offset, new_until_s=NEW_S))

    def test_a_producer_that_leaves_one_out_may_bring_it_yet(self, desk: Desk) -> None:
        assert [desk.send(2), desk.send(3)] == [NOT_HERE, NOT_HERE]
        assert [desk.send(1), desk.send(2), desk.send(3)] == [TAKEN, TAKEN, TAKEN]

    def test_from_then_on_it_has_to_keep_its_turn(self, desk: Desk) -> None:
        assert desk.send(1) is TAKEN
        assert desk.send(3) is OUT_OF_TURN

    def test_it_has_its_time(self, desk: Desk) -> None:
        desk.now = 10 * NEW_S  # it was away for long
        assert desk.send(2) is NOT_HERE
        desk.now += 10.1
        assert desk.send(2) is OUT_OF_TURN

    def test_a_new_epoch_begins_with_its_first_batch(self, desk: Desk) -> None:
        assert desk.send(1, epoch=1) is NOT_HERE
        assert [desk.send(0, epoch=1), desk.send(1, epoch=1)] == [TAKEN, TAKEN]

    def test_a_producer_that_nobody_knows_may_bring_its_first_batch_yet(self, desk: Desk) -> None:
        assert desk.send(1, producer=8) is NOT_HERE
        assert [desk.send(0, producer=8), desk.send(1, producer=8)] == [TAKEN, TAKEN]

    def test_one_that_was_forgotten_goes_on_after_a_while(self, desk: Desk) -> None:
        assert desk.send(5, producer=8) is NOT_HERE
        desk.now = 10.1
        assert desk.send(5, producer=8) is TAKEN

    def test_long_after_an_election_nobody_is_strange(self, desk: Desk) -> None:
        desk.now = NEW_S
        assert desk.send(5, producer=8) is TAKEN

    def test_a_batch_from_long_ago_is_not_early(self, desk: Desk) -> None:
        for sequence in range(1, 10):
            desk.log.append(from_producer(sequence))
        desk.refusals = Refusals(epoch_start=desk.log.log_end_offset, new_until_s=NEW_S)
        assert desk.send(0) is OUT_OF_TURN


def answer(partition: Partition, sequence: int, acks: int = -1) -> ErrorCode:
    try:
        partition.append(from_producer(sequence), acks)
    except ApiError as error:
        return error.code
    return TAKEN


async def test_a_broker_alone_takes_nothing_before_what_it_has_refused(world: World) -> None:
    topic = await world.catalog.create("t", 1, {"min.insync.replicas": "2"})
    (partition,) = topic.partitions
    assert answer(partition, 0) is TOO_FEW
    assert answer(partition, 1, acks=1) is TOO_FEW
    assert [answer(partition, sequence, acks=1) for sequence in (0, 1)] == [TAKEN, TAKEN]
    assert answer(partition, 2) is TOO_FEW
    assert answer(partition, 3, acks=1) is TOO_FEW
    assert [answer(partition, sequence, acks=1) for sequence in (2, 3)] == [TAKEN, TAKEN]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path, replica_fetch_wait_ms_max=20)
    yield stage
    await stage.stop()


async def test_a_new_leader_takes_nothing_before_what_the_old_one_has_refused(stage: Stage) -> None:
    old, new = await stage.add(1), await stage.add(2)
    await stage.create(old, new)
    await stage.until_in_sync(old, new)
    at_old, at_new = old.partition(), new.partition()
    assert [answer(at_old, sequence, acks=1) for sequence in (0, 1)] == [TAKEN, TAKEN]
    await stage.until_followed(old, new)
    assert answer(at_new, 2) is NOT_HERE
    stage.elect(new)
    assert answer(at_old, 2) is NOT_HERE
    assert answer(at_new, 3) is NOT_HERE, "what was refused has to come first"
    assert [answer(at_new, sequence) for sequence in (2, 3)] == [TAKEN, TAKEN]
    assert answer(at_new, 5) is OUT_OF_TURN
