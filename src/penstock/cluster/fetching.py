"""A follower's side of replication: for each leader, one conversation over one connection.

All partitions that follow one leader are asked for in one incremental fetch session: a request names
only those whose position has changed, and an answer only those with news, so a thousand idle partitions
cost two small messages a second. What is not named goes on being asked for at its old position.

One request is under way, held by the leader until there is something to say. Whoever is new, or may ask
again, does not wait for that: a second request is sent, at which the leader answers the first at once.

    follow ──> due ──> asked for, in the session ──> answered ──> due
                ^            │ an error                 │ an error: backs off
                │            v                          v
                └──── out of the session, for a while ──┘   (or held, while catching up is throttled)

An answer counts for a partition only if the request it answers, or one before, named the position that
is asked for now. Everything runs on one event loop, and the host performs effects before it returns.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.cluster import fetch_codec
from penstock.cluster.fetch_codec import Answered, Asked
from penstock.cluster.local import BrokerTerm
from penstock.cluster.messages import ReplicaFetch, ReplicaFetched
from penstock.cluster.peers import ANSWER_TIMEOUT_S, Peer, PeerError, Peers
from penstock.cluster.replica import Replica
from penstock.cluster.throttle import Throttle
from penstock.errors import ErrorCode
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig

__all__ = ["FetchSettings", "Fetchers", "FollowerHost", "LeaderFetcher"]

logger = logging.getLogger(__name__)

_BACKOFF_S_MIN: Final = 0.1
_BACKOFF_S_MAX: Final = 1.0
_NEWER_BACKOFF_S_MIN: Final = 0.02  # the leader is about to hear that it is one
_THROTTLED_BYTES_MIN: Final = 64 * 1024  # asked for at once, however little is left
_SESSION_EPOCH_MAX: Final = 2**31 - 1
_UNDER_WAY_MAX: Final = 2
_STALE: Final = Asked(-1, -1, -1, -1, -1, -1)  # equals no position that is asked for


class FollowerHost(Protocol):
    """Who holds the replicas."""

    def fetched(self, replica: Replica, fetch: ReplicaFetch, answer: ReplicaFetched) -> None:
        """Perform what the answer brings about. Its records are valid until this returns."""

    def fetch_lost(self, replica: Replica, fetch: ReplicaFetch) -> None:
        """No answer will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    wait_ms_max: int = 500
    bytes_max: int = 16 * 1024 * 1024
    catch_up_bytes_per_s_max: int = 0  # 0: no bound


class _Followed:
    """A partition that is to be fetched."""

    __slots__ = ("backoff_s", "fetch", "index", "named", "named_in", "replica", "retry", "topic_id")

    def __init__(self, replica: Replica, topic_id: bytes) -> None:
        self.replica = replica
        self.topic_id = topic_id
        self.index = replica.local.partition.partition
        self.fetch: ReplicaFetch | None = None  # an answer to it is awaited
        self.named = _STALE  # as the leader's session has it, if it has it
        self.named_in = 0  # the request that did
        self.backoff_s = 0.0
        self.retry: asyncio.TimerHandle | None = None  # while it backs off


class LeaderFetcher:
    """Fetches what one leader leads. Follows nothing at first."""

    def __init__(
        self,
        peer: Peer,
        term: BrokerTerm,
        host: FollowerHost,
        settings: FetchSettings,
        throttle: Throttle | None = None,
    ) -> None:
        self._peer = peer
        self._term = term
        self._host = host
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._throttle = throttle or Throttle(settings.catch_up_bytes_per_s_max, self._loop.time())
        self._followed: dict[TopicPartition, _Followed] = {}
        self._topics: dict[bytes, dict[int, _Followed]] = {}  # the same as the wire names them
        # Each that is followed is in `_due`, in `_held`, backing off, or awaits an answer.
        self._due: dict[_Followed, None] = {}  # may ask for what comes next
        self._held: dict[_Followed, None] = {}  # until catching up is within its bound
        self._in_session: dict[_Followed, None] = {}  # the leader's session has these …
        self._to_forget: dict[tuple[bytes, int], None] = {}  # … and these, which are not wanted
        self._session_id = fetch_codec.NO_SESSION
        self._session_epoch = fetch_codec.INITIAL_EPOCH
        self._incarnation = ""  # the registration that the session was begun in
        self._is_refused_sessions = False
        self._conversation = 0  # counts sessions: answers of an earlier one are void
        self._numbers = 0  # of requests
        self._under_way = 0  # requests of this conversation
        self._failures = 0  # of whole requests, in a row
        self._is_urgent = False  # somebody must not wait for the answer to come
        self._waking: asyncio.Handle | None = None
        self._releasing: asyncio.TimerHandle | None = None  # those held
        self._pausing: asyncio.TimerHandle | None = None  # after failures
        self._wants_connection = asyncio.Event()
        self._connecting = self._loop.create_task(self._keep_connected())
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._followed)

    # -- what to follow -------------------------------------------------------------------------

    def follow(self, replica: Replica, topic_id: uuid.UUID) -> None:
        """Fetch for this replica, whose state says that it follows this leader."""
        partition = replica.local.partition
        self._drop(partition)
        followed = _Followed(replica, topic_id.bytes)
        self._followed[partition] = followed
        self._topics.setdefault(followed.topic_id, {})[followed.index] = followed
        self._due[followed] = None
        self._is_urgent = True
        self._wake()

    def unfollow(self, partition: TopicPartition) -> None:
        """Fetch for it no longer. What still comes for it is ignored."""
        self._drop(partition)
        if not self._followed:
            self._wake()

    def _drop(self, partition: TopicPartition) -> None:
        followed = self._followed.pop(partition, None)
        if followed is None:
            return
        indexes = self._topics[followed.topic_id]
        del indexes[followed.index]
        if not indexes:
            del self._topics[followed.topic_id]
        self._leave_session(followed)
        self._due.pop(followed, None)
        self._held.pop(followed, None)
        if followed.retry is not None:
            followed.retry.cancel()
        self._lose_fetch(followed)

    def _leave_session(self, followed: _Followed) -> None:
        if followed in self._in_session:
            del self._in_session[followed]
            self._to_forget[followed.topic_id, followed.index] = None
            followed.named = _STALE

    def _lose_fetch(self, followed: _Followed) -> None:
        fetch, followed.fetch = followed.fetch, None
        if fetch is not None:
            self._host.fetch_lost(followed.replica, fetch)

    async def close(self) -> None:
        """Ask nothing more. Fetches under way are lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self._connecting.cancel()
        await asyncio.gather(self._connecting, return_exceptions=True)
        for timer in (self._waking, self._releasing, self._pausing):
            if timer is not None:
                timer.cancel()
        for partition in tuple(self._followed):
            self._drop(partition)
        if self._peer.is_connected and self._session_id:
            self._end_session()

    # -- asking ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Ask soon, once for all who have become due by then."""
        if self._waking is None and not self.is_closed:
            self._waking = self._loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._waking = None
        self._ask()

    async def _keep_connected(self) -> None:
        while True:
            await self._wants_connection.wait()
            self._wants_connection.clear()
            while self._followed and not self._peer.is_connected:
                try:
                    await self._peer.connect()
                except PeerError as error:
                    if self._peer.is_closed:
                        return
                    logger.debug("not fetching for now: %s", error)
            self._ask()

    def _ask(self) -> None:
        """Send what there is to ask, if it is our turn."""
        if self.is_closed or self._pausing is not None:
            return
        if not self._peer.is_connected:
            if self._followed:
                self._wants_connection.set()
            return
        if self._under_way and not (self._is_urgent and self._session_id):
            return
        if self._under_way >= _UNDER_WAY_MAX:
            return
        if not self._check_incarnation():
            return
        self._is_urgent = False
        topics = self._name_due()
        if not topics and (self._under_way or not self._in_session):
            if not self._under_way and self._session_id:
                self._end_session()
            return
        self._send(topics)

    def _check_incarnation(self) -> bool:
        """Whether we are registered. What an earlier registration said is to be said anew."""
        incarnation = self._term.incarnation
        if not incarnation:
            return False
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._forget_session()
        return True

    def _name_due(self) -> dict[bytes, list[Asked]]:
        """What has to be named: the positions of those who are due that the session does not have."""
        topics: dict[bytes, list[Asked]] = {}
        due, self._due = self._due, {}
        number = self._numbers + 1
        throttled = self._share_bound(due)
        for followed in due:
            bytes_max = throttled.get(followed, self._settings.bytes_max)
            if not bytes_max:
                self._hold(followed)
                continue
            fetch = followed.replica.next_fetch()
            if fetch is None:
                # It does not follow; whoever decided that will say so.
                self._leave_session(followed)
                continue
            followed.fetch = fetch
            asked = Asked(
                followed.index,
                fetch.leader_epoch,
                fetch.offset,
                fetch.last_epoch,
                followed.replica.local.log.log_start_offset,
                bytes_max,
            )
            if asked != followed.named:
                followed.named, followed.named_in = asked, number
                self._in_session[followed] = None
                self._to_forget.pop((followed.topic_id, followed.index), None)
                topics.setdefault(followed.topic_id, []).append(asked)
        return topics

    def _send(self, topics: dict[bytes, list[Asked]]) -> None:
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in self._to_forget:
            forgotten.setdefault(topic_id, []).append(index)
        self._to_forget.clear()
        # A session is known only by its first answer, so that one is not to be waited for.
        is_first = not self._session_id and not self._is_refused_sessions
        self._numbers += 1
        self._under_way += 1
        conversation = self._conversation
        body = self._encode(topics, forgotten, 0 if is_first else self._settings.wait_ms_max)
        if self._session_id:
            self._session_epoch = self._session_epoch % _SESSION_EPOCH_MAX + 1
        try:
            self._peer.send(
                fetch_codec.KEY,
                fetch_codec.VERSION,
                body,
                functools.partial(self._answered, conversation, self._numbers),
                functools.partial(self._lost, conversation),
                timeout_s=self._settings.wait_ms_max / 1000 + ANSWER_TIMEOUT_S,
            )
        except PeerError as error:
            self._lost(conversation, error)

    def _encode(
        self, topics: dict[bytes, list[Asked]], forgotten: dict[bytes, list[int]], wait_ms: int
    ) -> bytes:
        return fetch_codec.encode_request(
            replica=self._term.id,
            replica_epoch=int(self._incarnation),
            wait_ms_max=wait_ms,
            bytes_max=self._settings.bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=topics,
            forgotten=forgotten,
        )

    def _end_session(self) -> None:
        """Nothing is followed any more: the leader may forget us."""
        self._session_epoch = fetch_codec.FINAL_EPOCH
        body = self._encode({}, {}, 0)
        self._forget_session()
        self._peer.send(fetch_codec.KEY, fetch_codec.VERSION, body, lambda _: None, lambda _: None)

    # -- answers --------------------------------------------------------------------------------

    def _answered(self, conversation: int, number: int, body: memoryview) -> None:
        """Raises what `decode_answer` does if it is none: then nothing has been done with it."""
        answer = fetch_codec.decode_answer(body)
        if conversation != self._conversation or self.is_closed:
            return
        self._under_way -= 1
        is_begun = self._session_id != fetch_codec.NO_SESSION
        if answer.error_code or (is_begun and answer.session_id != self._session_id):
            self._refused(answer.error_code)
            return
        self._failures = 0
        if not is_begun and answer.session_id:
            self._session_id, self._session_epoch = answer.session_id, 1
        for item in answer.partitions:
            self._take(number, item)
        if not answer.session_id:
            self._is_refused_sessions = True
            self._forget_session()
        self._ask()

    def _refused(self, error_code: int) -> None:
        """The session is lost, or none of it was answered: begin anew, at once for the first time."""
        logger.debug("%s ended the fetch session: error %d", self._peer, error_code)
        self._forget_session()
        self._failures += 1
        if self._failures == 1:
            self._ask()
        else:
            delay_s = min(_BACKOFF_S_MIN * 2 ** (self._failures - 2), _BACKOFF_S_MAX)
            self._pausing = self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._pausing = None
        self._ask()

    def _take(self, number: int, item: Answered) -> None:
        followed = self._topics.get(item.topic_id, {}).get(item.partition)
        if (
            followed is None
            or followed.fetch is None
            or followed not in self._in_session
            or followed.named_in > number
        ):
            return  # of a position that is not asked for any more
        fetch, followed.fetch = followed.fetch, None
        answer = _fetched(fetch, item)
        if item.records and self._throttle and self._is_catching_up(followed):
            self._throttle.take(len(item.records), self._loop.time())
        try:
            self._host.fetched(followed.replica, fetch, answer)
        except Exception:
            logger.exception(
                "fetched records were lost partition=%s", followed.replica.local.partition
            )
            self._host.fetch_lost(followed.replica, fetch)
            answer = ReplicaFetched(error=ErrorCode.unknown_server_error)
        if self._followed.get(followed.replica.local.partition) is not followed:
            return
        if answer.error is not None:
            self._back_off(followed, answer.error)
            return
        followed.backoff_s = 0.0
        if answer.diverging is not None or answer.log_start is not None:
            followed.named = _STALE  # the leader is to look again, whatever comes of it here
        self._due[followed] = None

    def _back_off(self, followed: _Followed, error: ErrorCode) -> None:
        """Ask for it again in a while, and keep the leader from repeating its error until then."""
        self._leave_session(followed)
        is_early = error is ErrorCode.unknown_leader_epoch
        shortest_s = _NEWER_BACKOFF_S_MIN if is_early else _BACKOFF_S_MIN
        followed.backoff_s = min(max(shortest_s, 2 * followed.backoff_s), _BACKOFF_S_MAX)
        followed.retry = self._loop.call_later(followed.backoff_s, self._retry, followed)

    def _retry(self, followed: _Followed) -> None:
        followed.retry = None
        self._due[followed] = None
        self._is_urgent = True
        self._wake()

    def _lost(self, conversation: int, error: PeerError) -> None:
        if conversation != self._conversation or self.is_closed:
            return
        logger.debug("fetches are lost: %s", error)
        self._forget_session()
        if self._followed:
            self._wants_connection.set()

    def _forget_session(self) -> None:
        """Whatever is under way is not waited for; all that may ask, ask anew."""
        self._conversation += 1
        self._under_way = 0
        self._session_id = fetch_codec.NO_SESSION
        self._session_epoch = fetch_codec.INITIAL_EPOCH
        asked, self._in_session = self._in_session, {}
        self._to_forget.clear()
        for followed in asked:
            followed.named = _STALE
            self._lose_fetch(followed)
            self._due[followed] = None

    # -- catching up within a bound ---------------------------------------------------------------

    def _is_catching_up(self, followed: _Followed) -> bool:
        state = followed.replica.state
        return state is not None and self._term.id not in state.isr

    def _share_bound(self, due: dict[_Followed, None]) -> dict[_Followed, int]:
        """What each that is not in sync may ask for now; 0: nothing. First come, first served."""
        if not self._throttle:
            return {}
        behind = [followed for followed in due if self._is_catching_up(followed)]
        if not behind:
            return {}
        left = self._throttle.left(self._loop.time())
        share = max(left // len(behind), _THROTTLED_BYTES_MIN)
        shares = {}
        for followed in behind:
            shares[followed] = min(share, self._settings.bytes_max) if left > 0 else 0
            left -= share
        return shares

    def _hold(self, followed: _Followed) -> None:
        self._leave_session(followed)
        self._held[followed] = None
        if self._releasing is None:
            delay_s = max(self._throttle.wait_s(), 0.001)
            self._releasing = self._loop.call_later(delay_s, self._release)

    def _release(self) -> None:
        self._releasing = None
        held, self._held = self._held, {}
        self._due |= held
        self._is_urgent = True
        self._wake()


def _fetched(fetch: ReplicaFetch, item: Answered) -> ReplicaFetched:
    """The answer as the replica understands it."""
    log_start = None
    if item.error_code == ErrorCode.offset_out_of_range and item.log_start not in (
        -1,
        fetch.offset,
    ):
        log_start = item.log_start
    elif item.error_code:
        try:
            return ReplicaFetched(error=ErrorCode(item.error_code))
        except ValueError:
            return ReplicaFetched(error=ErrorCode.unknown_server_error)
    return ReplicaFetched(
        high_watermark=item.high_watermark,
        diverging=item.diverging,
        log_start=log_start,
        leader_log_start=max(item.log_start, 0),
        records=item.records,
    )


class Fetchers:
    """A `LeaderFetcher` for every broker that leads something we follow."""

    def __init__(
        self, peers: Peers, term: BrokerTerm, host: FollowerHost, config: BrokerConfig
    ) -> None:
        self._peers = peers
        self._term = term
        self._host = host
        self._settings = FetchSettings(
            wait_ms_max=config.replica_fetch_wait_ms_max,
            bytes_max=config.replica_fetch_bytes_max,
            catch_up_bytes_per_s_max=config.catch_up_bytes_per_s_max,
        )
        self._throttle = Throttle(config.catch_up_bytes_per_s_max, 0.0)  # one for all leaders
        self._leaders: dict[int, LeaderFetcher] = {}
        self._is_closed = False

    def follow(self, leader: int, replica: Replica, topic_id: uuid.UUID) -> None:
        if self._is_closed:
            return
        fetcher = self._leaders.get(leader)
        if fetcher is None:
            fetcher = self._leaders[leader] = LeaderFetcher(
                self._peers.get(leader), self._term, self._host, self._settings, self._throttle
            )
        fetcher.follow(replica, topic_id)

    def unfollow(self, leader: int, partition: TopicPartition) -> None:
        fetcher = self._leaders.get(leader)
        if fetcher is not None:
            fetcher.unfollow(partition)

    async def close(self) -> None:
        """Ask nobody any more, whatever is followed from here on."""
        self._is_closed = True
        for fetcher in self._leaders.values():
            await fetcher.close()
