"""The checker lets every sound history pass, and names each kind of broken promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checker import Kind, around, check
from tests.chaos.history import (
    Batch,
    Committed,
    GroupEvent,
    History,
    Lost,
    Outcome,
    Processed,
    Seen,
    Sent,
    Started,
    Told,
    Value,
)

ACKNOWLEDGED, REFUSED, UNKNOWN = Outcome.ACKNOWLEDGED, Outcome.REFUSED, Outcome.UNKNOWN


def sound(records: int = 6) -> History:
    """Two producers in turn, in one partition, in two epochs; everybody saw everything."""
    values = [Value("ab"[i % 2], i // 2) for i in range(records)]
    final = [Seen(0, i, value, 1 if i < records // 2 else 2) for i, value in enumerate(values)]
    events: list[GroupEvent] = [Started(0, 0, 0), Processed(0, 0, records), Committed(0, records)]
    batches = [Batch(seen.offset, seen.offset + 1, seen.epoch, b"%r" % (seen,)) for seen in final]
    return History(
        sent=[Sent(value, 0, ACKNOWLEDGED, i) for i, value in enumerate(values)],
        seen={"reader": final},
        told=[Told(0, 1, 0), Told(0, 2, 1), Told(0, 2, 1, by=2)],
        group={"member": events},
        group_end={0: records},
        final={0: final},
        disks={0: dict.fromkeys(range(3), batches)},
    )


def kinds(history: History) -> set[Kind]:
    return {violation.kind for violation in check(history)}


def test_a_history_in_which_every_promise_was_kept_passes() -> None:
    assert check(sound()) == []


def test_an_empty_history_passes() -> None:
    assert check(History()) == []


class TestTheLog:
    def test_an_acknowledged_record_must_be_there(self) -> None:
        history = sound()
        extra = Sent(Value("a", 99), 0, ACKNOWLEDGED, 6)
        assert kinds(replace(history, sent=[*history.sent, extra])) == {Kind.LOST}

    def test_it_must_be_where_it_was_acknowledged(self) -> None:
        history = sound()
        moved = history.sent[2]._replace(offset=3)
        assert kinds(replace(history, sent=[*history.sent, moved])) == {Kind.MOVED}

    def test_an_acknowledged_record_whose_offset_the_client_does_not_know_may_be_anywhere(
        self,
    ) -> None:
        history = sound()
        assert check(replace(history, sent=[s._replace(offset=-1) for s in history.sent])) == []

    def test_a_record_may_be_there_once_only_even_one_of_unknown_outcome(self) -> None:
        history = longer(Seen(0, 6, Value("a", 9), 2), Seen(0, 7, Value("a", 9), 2))
        history.sent = [*history.sent, Sent(Value("a", 9), 0, UNKNOWN)]
        assert kinds(history) == {Kind.REPEATED}

    def test_a_record_of_unknown_outcome_may_be_there_or_not(self) -> None:
        unknown = Sent(Value("a", 9), 0, UNKNOWN)
        history = longer(Seen(0, 6, Value("a", 9), 2))
        assert check(replace(history, sent=[*history.sent, unknown])) == []
        assert check(replace(sound(), sent=[*history.sent, unknown])) == []

    def test_nothing_may_be_there_that_nobody_sent(self) -> None:
        assert kinds(longer(Seen(0, 6, Value("nobody", 0), 2))) == {Kind.INVENTED}

    def test_nothing_may_be_there_that_was_sent_elsewhere(self) -> None:
        history = longer(Seen(0, 6, Value("a", 9), 2))
        history.sent = [*history.sent, Sent(Value("a", 9), 1, UNKNOWN)]
        assert kinds(history) == {Kind.INVENTED}

    def test_bytes_that_no_producer_wrote_are_nobody_s(self) -> None:
        assert Value.decode(b"\xff\x00") not in {sent.value for sent in sound().sent}
        assert Value.decode(Value("p:1", 7).encode()) == Value("p:1", 7)

    def test_a_refused_record_must_not_be_there(self) -> None:
        history = longer(Seen(0, 6, Value("a", 9), 2))
        history.sent = [*history.sent, Sent(Value("a", 9), 0, REFUSED)]
        assert kinds(history) == {Kind.REFUSED_BUT_THERE}

    def test_a_producer_s_order_is_kept(self) -> None:
        history = longer(Seen(0, 6, Value("a", 9), 2), Seen(0, 7, Value("a", 8), 2))
        more = [Sent(Value("a", n), 0, UNKNOWN) for n in (8, 9)]
        history.sent = [*history.sent, *more]
        assert kinds(history) == {Kind.REORDERED}
        assert check(replace(history, unordered=frozenset("a"))) == []

    def test_offsets_have_no_gaps(self) -> None:
        history = longer(Seen(0, 7, Value("a", 9), 2))
        history.sent = [*history.sent, Sent(Value("a", 9), 0, ACKNOWLEDGED, 7)]
        assert kinds(history) == {Kind.GAP}


class TestReaders:
    def test_what_was_seen_must_not_vanish(self) -> None:
        history = sound()
        seen = [*history.seen["reader"], Seen(0, 6, Value("a", 9), 2)]
        assert kinds(replace(history, seen={"reader": seen})) == {Kind.VANISHED}

    def test_a_reader_must_not_be_told_that_the_log_ends_before_its_position(self) -> None:
        lost = {"reader": [Lost("offset out of range")]}
        assert kinds(replace(sound(), positions_lost=lost)) == {Kind.VANISHED}

    def test_nor_that_the_epoch_which_it_asked_for_ends_there(self) -> None:
        lost = {"reader": [Lost("truncated", 0, 2)]}
        history = replace(sound(), positions_lost=lost, epochs_asked={"reader": {(0, 2)}})
        assert kinds(history) == {Kind.VANISHED}

    def test_what_it_was_told_of_another_epoch_it_has_misunderstood(self) -> None:
        lost = {"reader": [Lost("truncated", 0, 2)]}
        history = replace(sound(), positions_lost=lost, epochs_asked={"reader": {(0, 1), (1, 2)}})
        assert check(history) == []

    def test_what_was_seen_must_not_become_another_record(self) -> None:
        history = sound()
        seen = [*history.seen["reader"][:5], Seen(0, 5, Value("a", 9), 2)]
        assert kinds(replace(history, seen={"reader": seen})) == {Kind.CHANGED}

    def test_what_was_seen_must_not_be_written_again_by_another_leader(self) -> None:
        history = sound()
        seen = [*history.seen["reader"][:5], history.seen["reader"][5]._replace(epoch=1)]
        assert kinds(replace(history, seen={"reader": seen})) == {Kind.CHANGED}

    def test_a_reader_must_see_every_record_in_turn(self) -> None:
        history = sound()
        seen = [*history.seen["reader"][:2], *history.seen["reader"][3:]]
        assert kinds(replace(history, seen={"reader": seen})) == {Kind.SKIPPED}

    def test_a_reader_may_begin_and_end_anywhere(self) -> None:
        history = sound()
        assert check(replace(history, seen={"reader": history.seen["reader"][2:4]})) == []


class TestEpochs:
    def test_an_epoch_has_one_leader(self) -> None:
        history = sound()
        assert kinds(replace(history, told=[*history.told, Told(0, 1, 2)])) == {Kind.TWO_LEADERS}

    def test_the_same_epoch_of_another_partition_may_have_another_leader(self) -> None:
        history = sound()
        assert check(replace(history, told=[*history.told, Told(1, 1, 2)])) == []

    def test_epochs_do_not_go_back_along_the_log(self) -> None:
        history = sound()
        final = [*history.final[0][:5], history.final[0][5]._replace(epoch=1)]
        assert kinds(replace(history, final={0: final}, seen={})) == {Kind.EPOCH_BACK}


class TestGroups:
    def test_a_member_must_not_start_below_an_answered_commit(self) -> None:
        events: list[GroupEvent] = [
            Started(0, 0, 0),
            Processed(0, 0, 6),
            Committed(0, 6),
            Started(0, 4, 6),
        ]
        assert kinds(replace(sound(), group={"m": events})) == {Kind.COMMIT_BACK}

    def test_the_last_answered_commit_must_be_there_in_the_end(self) -> None:
        assert kinds(replace(sound(), group_end={0: 5})) == {Kind.COMMIT_BACK}

    def test_a_commit_without_an_answer_may_be_there_in_the_end(self) -> None:
        events: list[GroupEvent] = [Started(0, 0, 0), Processed(0, 0, 6)]
        assert check(replace(sound(), group={"m": events})) == []

    def test_nothing_is_skipped_within_an_assignment(self) -> None:
        events: list[GroupEvent] = [Started(0, 0, 0), Processed(0, 0, 2), Processed(0, 3, 6)]
        assert Kind.COMMIT_SKIPPED in kinds(replace(sound(), group={"m": events}))

    def test_nothing_is_skipped_between_members(self) -> None:
        one: list[GroupEvent] = [Started(0, 0, 0), Processed(0, 0, 2)]
        other: list[GroupEvent] = [Started(0, 3, 0), Processed(0, 3, 6)]
        assert kinds(replace(sound(), group={"m": one, "n": other})) == {Kind.COMMIT_SKIPPED}

    def test_members_may_process_records_twice(self) -> None:
        one: list[GroupEvent] = [Started(0, 0, 0), Processed(0, 0, 4)]
        other: list[GroupEvent] = [Started(0, 2, 2), Processed(0, 2, 6), Committed(0, 6)]
        assert check(replace(sound(), group={"m": one, "n": other})) == []


class TestDisks:
    @pytest.mark.parametrize(
        "change",
        [
            lambda batches: batches[:-1],
            lambda batches: [*batches[:-1], batches[-1]._replace(data=b"other")],
            lambda batches: [*batches[:-1], batches[-1]._replace(epoch=7)],
            lambda batches: [*batches, Batch(6, 7, 2, b"more")],
            lambda _: [],
        ],
        ids=["shorter", "other bytes", "other epoch", "longer", "empty"],
    )
    def test_replicas_hold_the_same_bytes(self, change: Any) -> None:
        history = sound()
        batches = history.disks[0][0]
        for broker in range(3):
            disks = {0: {**history.disks[0], broker: change(batches)}}
            assert kinds(replace(history, disks=disks)) == {Kind.DISKS_DIFFER}

    def test_a_replica_may_have_deleted_more_of_its_beginning(self) -> None:
        history = sound()
        batches = history.disks[0][0]
        disks = {0: {0: batches[2:], 1: batches, 2: batches[1:]}}
        assert check(replace(history, disks=disks)) == []


def longer(*records: Seen) -> History:
    """A sound history, but with more in the log."""
    history = sound()
    return replace(history, final={0: [*history.final[0], *records]})


@given(records=st.integers(2, 40), data=st.data())
def test_any_record_taken_out_of_the_log_is_missed(records: int, data: st.DataObject) -> None:
    history = sound(records)
    gone = data.draw(st.integers(0, records - 1))
    final = [record for record in history.final[0] if record.offset != gone]
    assert {Kind.LOST, Kind.VANISHED} <= kinds(replace(history, final={0: final}))


@given(records=st.integers(3, 40), data=st.data())
def test_any_two_records_that_change_places_are_noticed(records: int, data: st.DataObject) -> None:
    history = sound(records)
    one = data.draw(st.integers(0, records - 2))
    other = data.draw(st.integers(one + 1, records - 1))
    final = list(history.final[0])
    final[one] = final[one]._replace(value=history.final[0][other].value)
    final[other] = final[other]._replace(value=history.final[0][one].value)
    assert {Kind.MOVED, Kind.CHANGED} <= kinds(replace(history, final={0: final}))


@given(records=st.integers(2, 40), data=st.data())
def test_any_record_that_is_there_twice_is_noticed(records: int, data: st.DataObject) -> None:
    history = sound(records)
    again = data.draw(st.sampled_from(history.final[0]))
    final = [*history.final[0], again._replace(offset=records, epoch=2)]
    assert kinds(replace(history, final={0: final})) >= {Kind.REPEATED}


@given(records=st.integers(2, 30), lost=st.integers(1, 10))
def test_a_log_that_was_cut_and_written_again_is_noticed(records: int, lost: int) -> None:
    """What a leader that was elected without all that was committed would do."""
    history = sound(records)
    kept = history.final[0][: max(0, records - lost)]
    fresh = [Seen(0, len(kept) + i, Value("c", i), 3) for i in range(lost)]
    again = replace(
        history,
        final={0: [*kept, *fresh]},
        sent=[*history.sent, *(Sent(s.value, 0, ACKNOWLEDGED, s.offset) for s in fresh)],
    )
    assert {Kind.LOST, Kind.CHANGED} <= kinds(again)


def test_a_violation_shows_what_everybody_saw_there() -> None:
    history = sound()
    broken = replace(history, final={0: history.final[0][:5]})
    text = around(broken, check(broken)[0])
    assert "an acknowledged record is not in the log: partition 0, offset 5" in text
    assert "4 a:2 of epoch 2" in text
    assert "reader read:" in text
    assert "epoch 2: broker 1" in text
