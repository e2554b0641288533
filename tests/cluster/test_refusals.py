"""Who is behind a batch that was refused for a while is refused like it, not as out of turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.refusals import NEW_S, Refusals
from penstock.broker.topic_records import LocalPartition, Partition
from penstock.clock import ManualClock
from penstock.errors import ApiError, ErrorCode
from penstock.log import Appended, LogStore
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig, TopicConfig
from tests.cluster.wired import Stage
from tests.log.support import from_producer

TOO_FEW = ErrorCode.not_enough_replicas
OUT_OF_TURN = ErrorCode.out_of_order_sequence_number
NOT_HERE = ErrorCode.not_leader_or_follower
TAKEN = ErrorCode.none
NAME = TopicPartition("t", 0)


class Intake(LocalPartition):
    """Where batches are handed in, by their sequence; what is answered is an error code."""

    reason = TAKEN  # or why everything is refused

    def send(self, sequence: int, *, producer: int = 7, epoch: int = 0) -> ErrorCode:
        return answer(self, sequence, producer=producer, epoch=epoch)

    def refuse(self, *sequences: int, producer: int = 7, code: ErrorCode = TOO_FEW) -> None:
        self.reason = code
        for sequence in sequences:
            assert self.send(sequence, producer=producer) is code
        self.reason = TAKEN

    def lead(self) -> None:
        """From now on, after another broker did."""
        new_until_s = self._logs.clock.monotonic_s() + NEW_S
        self._refusals = Refusals(epoch_start=self.log.log_end_offset, new_until_s=new_until_s)

    def _append(self, records: memoryview, acks: int) -> Appended:
        if self.reason is not TAKEN:
            raise ApiError(self.reason, "")
        return super()._append(records, acks)


def answer(
    partition: Partition, sequence: int, acks: int = 1, *, producer: int = 7, epoch: int = 0
) -> ErrorCode:
    try:
        partition.append(from_producer(sequence, producer=producer, epoch=epoch), acks)
    except ApiError as error:
        return error.code
    return TAKEN


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def logs(tmp_path: Path, clock: ManualClock) -> AsyncIterator[LogStore]:
    logs = LogStore(BrokerConfig(data_dir=str(tmp_path)), clock)
    yield logs
    await logs.close()


@pytest.fixture
def new_intake(logs: LogStore) -> Intake:
    return Intake(NAME, 0, logs, log=logs.open(NAME, TopicConfig()))


class TestByTheSameLeader:
    @pytest.fixture
    def intake(self, new_intake: Intake) -> Intake:
        assert new_intake.send(0) is TAKEN
        return new_intake

    @pytest.mark.parametrize(
        "code", [TOO_FEW, NOT_HERE, ErrorCode.leader_not_available, ErrorCode.kafka_storage_error]
    )
    def test_the_next_batch_is_refused_for_the_same_reason(
        self, intake: Intake, code: ErrorCode
    ) -> None:
        intake.refuse(1, 2, code=code)
        assert [intake.send(3), intake.send(2)] == [code, code]

    def test_both_are_taken_when_they_come_in_order(self, intake: Intake) -> None:
        intake.refuse(1)
        assert [intake.send(2), intake.send(1), intake.send(2)] == [TOO_FEW, TAKEN, TAKEN]
        assert intake.send(4) is OUT_OF_TURN, "it is over"

    def test_one_that_is_out_of_turn_by_itself_is_told_so(self, intake: Intake) -> None:
        assert intake.send(2) is OUT_OF_TURN
        intake.refuse(1, producer=8)
        assert intake.send(2) is OUT_OF_TURN

    def test_what_is_wrong_for_ever_explains_nothing(self, intake: Intake) -> None:
        intake.refuse(1, code=ErrorCode.message_too_large)
        assert intake.send(2) is OUT_OF_TURN

    def test_a_batch_that_comes_again_from_before_ends_nothing(self, intake: Intake) -> None:
        intake.refuse(1)
        assert intake.send(0) is TAKEN, "it is there already"
        assert intake.send(2) is TOO_FEW

    def test_the_first_batch_of_all_is_waited_for(self, intake: Intake) -> None:
        intake.refuse(0, producer=8)
        assert intake.send(1, producer=8) is TOO_FEW, "the log would take it for the first"
        assert [intake.send(0, producer=8), intake.send(1, producer=8)] == [TAKEN, TAKEN]

    def test_a_producer_that_does_not_come_back_is_told_in_the_end(
        self, intake: Intake, clock: ManualClock
    ) -> None:
        intake.refuse(1)
        clock.advance(9)
        intake.refuse(2)  # so it is still at it
        for _ in range(9):
            assert intake.send(3) is TOO_FEW
            clock.advance(1)
        clock.advance(2)
        assert intake.send(3) is OUT_OF_TURN

    def test_only_so_many_producers_are_remembered(self, intake: Intake) -> None:
        for producer in range(1_000, 2_001):
            intake.refuse(0, producer=producer)
        assert intake.send(1, producer=1_000) is TAKEN
        assert intake.send(1, producer=2_000) is TOO_FEW

    def test_what_is_no_batch_of_a_producer_is_not_remembered(self, intake: Intake) -> None:
        intake.reason = TOO_FEW
        for records in (memoryview(b"short"), from_producer(-1, producer=-1)):
            with pytest.raises(ApiError):
                intake.append(records, 1)
        intake.reason = TAKEN
        assert intake.send(2) is OUT_OF_TURN


class TestByTheLeaderBefore:
    """It was refused elsewhere, so nobody here knows of it."""

    @pytest.fixture
    def intake(self, new_intake: Intake) -> Intake:
        new_intake.log.append(from_producer(0))
        new_intake.lead()
        return new_intake

    def test_a_producer_that_leaves_one_out_may_bring_it_yet(self, intake: Intake) -> None:
        assert [intake.send(2), intake.send(3)] == [NOT_HERE, NOT_HERE]
        assert [intake.send(1), intake.send(2), intake.send(3)] == [TAKEN, TAKEN, TAKEN]

    def test_from_then_on_it_has_to_keep_its_turn(self, intake: Intake) -> None:
        assert intake.send(1) is TAKEN
        assert intake.send(3) is OUT_OF_TURN

    def test_it_has_its_time(self, intake: Intake, clock: ManualClock) -> None:
        clock.advance(10 * NEW_S)  # it was away for long
        for _ in range(10):
            assert intake.send(2) is NOT_HERE
            clock.advance(1)
        assert intake.send(2) is OUT_OF_TURN

    def test_a_new_epoch_begins_with_its_first_batch(self, intake: Intake) -> None:
        assert intake.send(1, epoch=1) is NOT_HERE
        assert [intake.send(0, epoch=1), intake.send(1, epoch=1)] == [TAKEN, TAKEN]

    def test_a_producer_that_nobody_knows_may_bring_its_first_batch_yet(
        self, intake: Intake
    ) -> None:
        assert intake.send(1, producer=8) is NOT_HERE
        assert [intake.send(0, producer=8), intake.send(1, producer=8)] == [TAKEN, TAKEN]

    def test_one_that_was_forgotten_goes_on_after_a_while(
        self, intake: Intake, clock: ManualClock
    ) -> None:
        for _ in range(10):
            assert intake.send(5, producer=8) is NOT_HERE
            clock.advance(1)
        assert intake.send(5, producer=8) is TAKEN

    def test_long_after_an_election_nobody_is_strange(
        self, intake: Intake, clock: ManualClock
    ) -> None:
        clock.advance(NEW_S)
        assert intake.send(5, producer=8) is TAKEN

    def test_a_batch_from_long_ago_is_not_early(self, intake: Intake) -> None:
        for sequence in range(1, 10):
            intake.log.append(from_producer(sequence))
        intake.lead()
        assert intake.send(0) is OUT_OF_TURN


def test_a_broker_alone_takes_nothing_before_what_it_has_refused(logs: LogStore) -> None:
    log = logs.open(NAME, TopicConfig(min_insync_replicas=2))
    partition = LocalPartition(NAME, 0, logs, log=log)
    for first, second in ((0, 1), (2, 3)):
        assert answer(partition, first, acks=-1) is TOO_FEW
        assert answer(partition, second) is TOO_FEW
        assert [answer(partition, first), answer(partition, second)] == [TAKEN, TAKEN]


async def test_a_new_leader_takes_nothing_before_what_the_old_one_has_refused(stage: Stage) -> None:
    old, new = await stage.add(1), await stage.add(2)
    await stage.create(old, new)
    await stage.until_in_sync(old, new)
    at_old, at_new = old.partition(), new.partition()
    assert [answer(at_old, sequence) for sequence in (0, 1)] == [TAKEN, TAKEN]
    await stage.until_followed(old, new)
    assert answer(at_new, 2) is NOT_HERE
    stage.elect(new)
    assert answer(at_old, 2) is NOT_HERE
    assert answer(at_new, 3) is NOT_HERE, "what was refused has to come first"
    assert [answer(at_new, sequence) for sequence in (2, 3)] == [TAKEN, TAKEN]
    assert answer(at_new, 5) is OUT_OF_TURN
