"""One partition's batches on their way: what waits, what is in flight, and what may go next.

Order and exactly-once rest on the broker's check of sequence numbers, with two rules of ours. A batch is
sent again with the number it had, before anything behind it. And one batch travels alone until the first
of the partition is acknowledged, and after a failure until all that it held up are: a broker that knows
nothing of a producer takes any number, and would take the second batch without the first.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.client.connection import Address
from penstock.client.errors import ClientError
from penstock.client.produce_link import IN_FLIGHT_MAX, Batch
from penstock.model import TopicPartition

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Lane:
    """Decides only; the sender does. `waiting` and `in_flight` are in the order of their numbers."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.leader: Address | None = None
        self.last_error: ClientError | None = None  # since the last acknowledgement
        self.not_before = 0.0  # no batch is sent earlier
        self.failing_since = 0.0  # 0: it is not
        self._pause_s = _FIRST_PAUSE_S
        self._acknowledged = 0  # batches with a number below this one are
        self._careful_below = 1  # one at a time until this number is acknowledged

    def next(self, now: float) -> Batch | None:
        """The batch to send now, which is in flight then."""
        window = 1 if self._acknowledged < self._careful_below else IN_FLIGHT_MAX
        if not self.waiting or len(self.in_flight) >= window or now < self.not_before:
            return None
        batch = self.waiting.popleft()
        self.in_flight.append(batch)
        return batch

    def acknowledged(self, batch: Batch) -> None:
        self.in_flight.remove(batch)
        self._acknowledged = max(self._acknowledged, batch.number + 1)
        self._pause_s = _FIRST_PAUSE_S
        self.failing_since = 0.0
        self.last_error = None

    def is_oldest(self, batch: Batch) -> bool:
        """Whether every batch before this one has been acknowledged."""
        return batch.number == self._acknowledged

    def failed(self, batch: Batch, error: ClientError, now: float) -> None:
        """The batch goes back to be sent again, after a pause that grows."""
        self.in_flight.remove(batch)
        highest = max(batch.number, self.in_flight[-1].number if self.in_flight else 0)
        self._careful_below = max(self._careful_below, highest + 1)
        place = 0
        while place < len(self.waiting) and self.waiting[place].number < batch.number:
            place += 1
        self.waiting.insert(place, batch)
        self.delay(error, now)

    def delay(self, error: ClientError, now: float) -> None:
        """Something is not as it should be: pause, and look up the leader again."""
        self.leader = None
        self.last_error = error
        if not self.failing_since:
            self.failing_since = now
        if now >= self.not_before:  # batches that fail together wait once
            self.not_before = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    @property
    def deadline(self) -> float | None:
        """When the oldest batch counts as not delivered."""
        oldest = self.in_flight[0] if self.in_flight else None
        if self.waiting and (oldest is None or self.waiting[0].number < oldest.number):
            oldest = self.waiting[0]
        return None if oldest is None else oldest.deadline
