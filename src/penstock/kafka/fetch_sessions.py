"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changes."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.broker.fetching import Reader
from penstock.clock import Clock
from penstock.errors import ApiError, ErrorCode

SESSIONLESS: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_SESSION_ID_MAX: Final = 2**31 - 1
_UNUSED_S_MIN: Final = 120.0  # before a session makes room for another, as in Kafka


class FetchSession:
    """A reader that outlives its request. `epoch` is the one the next request must carry."""

    __slots__ = ("epoch", "give_up", "id", "reader", "replica", "used_s", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        reader: Reader,
        uses_topic_ids: bool,
        now_s: float,
        replica: int | None = None,
    ) -> None:
        self.id = session_id
        self.reader = reader
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.used_s = now_s
        self.replica = replica  # the broker that follows by it
        # While a fetch of this session waits: answers it with an error, for it has been overtaken.
        self.give_up: Callable[[ErrorCode], None] | None = None

    def end_wait(self, code: ErrorCode) -> None:
        give_up, self.give_up = self.give_up, None
        if give_up is not None:
            give_up(code)


class FetchSessions:
    """At most `limit` sessions. The longest unused one makes room if it is unused for long enough;
    else there is no session for the newcomer, who asks for everything each time until there is.

    A broker that follows us always gets one, and has one at most: the last it asked for.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # longest unused first
        self._of_replicas: dict[int, int] = {}  # broker -> its session

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, reader: Reader, uses_topic_ids: bool, replica: int | None = None
    ) -> FetchSession | None:
        """Keep this reader, and have it follow its logs; None if there is no room for a session."""
        if replica is not None:
            self.close(self._of_replicas.get(replica, SESSIONLESS))
        if not self._has_room(is_privileged=replica is not None):
            return None
        session_id = random.randint(1, _SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _SESSION_ID_MAX)
        now_s = self._clock.monotonic_s()
        session = FetchSession(session_id, reader, uses_topic_ids, now_s, replica)
        self._sessions[session_id] = session
        if replica is not None:
            self._of_replicas[replica] = session_id
        reader.follow()
        return session

    def _has_room(self, *, is_privileged: bool) -> bool:
        if len(self._sessions) < self._limit:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return is_privileged
        is_unused = self._clock.monotonic_s() - oldest.used_s > _UNUSED_S_MIN
        if not is_unused and not is_privileged:
            return False
        self.close(oldest.id)
        return True

    def find(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession:
        """The session for its next request, or the error that makes the client begin a new one."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.fetch_session_topic_id_error)
        return session

    def advance(self, session: FetchSession) -> None:
        """Expect the next epoch, and take back the answer that an earlier request still waits for."""
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_s = self._clock.monotonic_s()
        self._sessions.move_to_end(session.id)
        session.end_wait(ErrorCode.invalid_fetch_session_epoch)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if session.replica is not None:
                self._of_replicas.pop(session.replica, None)
            session.end_wait(ErrorCode.fetch_session_id_not_found)
            session.reader.close()
