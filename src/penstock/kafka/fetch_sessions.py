"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changes."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Final

from penstock.broker.fetching import Reader
from penstock.errors import ApiError, ErrorCode

SESSIONLESS: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_SESSION_ID_MAX: Final = 2**31 - 1


class FetchSession:
    """A reader that outlives its request. `epoch` is the one the next request must carry."""

    __slots__ = ("epoch", "id", "reader", "uses_topic_ids")

    def __init__(self, session_id: int, reader: Reader, uses_topic_ids: bool) -> None:
        self.id = session_id
        self.reader = reader
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids


class FetchSessions:
    """At most `limit` sessions; the longest unused one makes room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, reader: Reader, uses_topic_ids: bool) -> int:
        """Keep this reader; its session's id, or 0 if sessions are switched off."""
        if self._limit == 0:
            return SESSIONLESS
        while len(self._sessions) >= self._limit:
            _, oldest = self._sessions.popitem(last=False)
            oldest.reader.close()
        session_id = random.randint(1, _SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = random.randint(1, _SESSION_ID_MAX)
        self._sessions[session_id] = FetchSession(session_id, reader, uses_topic_ids)
        return session_id

    def advance(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession:
        """The session for its next request, or the error that makes the client begin a new one."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = 1 if epoch == _SESSION_ID_MAX else epoch + 1
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.reader.close()
