"""The history of leader epochs: which epoch wrote which offsets."""

from __future__ import annotations

from penstock.log.epochs import LeaderEpochs


def test_an_epoch_ends_where_the_next_begins_and_the_last_one_at_the_end_of_the_log() -> None:
    epochs = LeaderEpochs()
    epochs.assign(3, 0)
    epochs.assign(5, 70)
    assert epochs.end_offset_for(3, 90) == (3, 70)
    assert epochs.end_offset_for(5, 90) == (5, 90)


def test_an_epoch_without_a_record_is_forgotten_when_an_older_one_writes_there() -> None:
    """Else its leader would tell followers to cut off, again and again, what they just fetched."""
    epochs = LeaderEpochs()
    epochs.assign(5, 0)
    epochs.assign(7, 70)  # led, wrote nothing, and follows a log of epoch 5 from here on
    epochs.assign(5, 70)
    assert epochs.entries == [(5, 0)]
    assert epochs.end_offset_for(5, 72) == (5, 72)


def test_an_epoch_with_records_stays() -> None:
    epochs = LeaderEpochs()
    epochs.assign(5, 0)
    epochs.assign(7, 70)
    epochs.assign(7, 71)
    epochs.assign(5, 72)
    assert epochs.entries == [(5, 0), (7, 70)]
