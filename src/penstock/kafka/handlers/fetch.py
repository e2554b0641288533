"""Fetch: records out, by long poll. Records leave as file ranges; only cold ones visit a thread.

A fetch is answered at once if it has found `min_bytes`, has something to report that cannot wait, or
does not want to wait; else when the rest has come, when its time is up, or when the broker stops.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.fetching import Found, Position, Reader, warm
from penstock.broker.follower_reading import FollowerReader
from penstock.errors import ApiError, CorruptLogError, ErrorCode
from penstock.kafka.api import Answer, Caller, RawApi, Unhurried
from penstock.kafka.fetch_codec import (
    FetchRequest,
    Part,
    PartitionData,
    decode_request,
    encode_quiet,
    encode_response,
)
from penstock.kafka.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, SESSIONLESS, FetchSession
from penstock.kafka.primitives import Topic as TopicKey
from penstock.kafka.standing_reader import StandingPosition, StandingReader
from penstock.log import ColdRead, FileSlice
from penstock.wire import FileReference

if TYPE_CHECKING:
    from penstock.kafka.router import KafkaDoor

ToldTopics = list[tuple[TopicKey, list[PartitionData | bytes]]]

_TOPIC_IDS_FROM: Final = 13
_INLINE_BYTES: Final = 64 * 1024  # less than this is copied into the answer: one call sends it all
_INLINE_BYTES_IN_ALL: Final = 512 * 1024  # but a slow reader must not hold more memory than this


def answer(door: KafkaDoor, version: int, request: FetchRequest, caller: Caller) -> Answer:
    pace = caller.pace
    at_once = _answer_at_once(door, version, request)
    if at_once is not None:
        if pace is None:
            return at_once
        topic, [asked] = request.topics[0]
        return pace.rested(door.short_timer, topic, asked, at_once)
    if pace is not None:
        request = pace.bounded(request)
    try:
        fetch = _begin(door, version, request, caller)
    except ApiError as error:
        return encode_response(version, int(error.code), SESSIONLESS, [])
    found = fetch.collect()
    if pace is not None:
        pace.learn_from(found)
    if request.max_wait_ms <= 0 or fetch.is_enough(found):
        return fetch.finish(found)
    return fetch.wait(request.max_wait_ms / 1000)


def _answer_at_once(door: KafkaDoor, version: int, request: FetchRequest) -> list[Part] | None:
    """The records for a client that reads one partition, without a session, and finds what it wants.

    It waits for every answer before it asks again, so it gets this one without a reader of its own, which
    takes twice as long. None: there are no such records, or something else is to be said; a reader will.
    """
    if request.session_epoch != FINAL_EPOCH or request.session_id != SESSIONLESS:
        return None
    if request.replica_id >= 0 or len(request.topics) != 1 or len(request.topics[0][1]) != 1:
        return None
    topic, [asked] = request.topics[0]
    partition = door.resolve((topic, asked.partition))
    if isinstance(partition, ApiError) or asked.last_fetched_epoch >= 0:
        return None
    bytes_max = min(asked.bytes_max, request.max_bytes, door.broker.config.fetch_bytes_max)
    try:
        log = partition.log
        partition.check_leader_epoch(asked.leader_epoch)
        found = log.read(asked.offset, bytes_max)
        if not isinstance(found, FileSlice) or found.size < request.min_bytes:
            return None
        records = _as_sent(found, _INLINE_BYTES, by_reference=request.by_reference)
    except (ApiError, CorruptLogError, OSError):
        return None
    hw = log.high_watermark
    data = PartitionData(asked.partition, 0, hw, hw, log.log_start_offset, records)
    return encode_response(
        version, 0, SESSIONLESS, [(topic, [data])], is_committed=request.is_committed
    )


def _begin(door: KafkaDoor, version: int, request: FetchRequest, caller: Caller) -> Fetch:
    """The reader that this request is for: its session's, its connection's, or one of its own."""
    by_id = version >= _TOPIC_IDS_FROM
    sessions = door.fetch_sessions
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != SESSIONLESS:
            sessions.close(request.session_id)
        reader = _standing_reader(door, version, request, caller)
        if reader is None:
            reader = _new_reader(door, request)
            _update(reader, request)
        return Fetch(door, version, request, reader, None)
    session = sessions.find(request.session_id, request.session_epoch, by_id)
    if not _is_the_same(session.reader, request):
        raise ApiError(ErrorCode.fetch_session_id_not_found)
    _update(session.reader, request)
    for topic, indexes in request.forgotten:
        for index in indexes:
            session.reader.remove((topic, index))
    if not len(session.reader):
        sessions.close(session.id)
        return Fetch(door, version, request, session.reader, None)
    sessions.advance(session)
    return Fetch(door, version, request, session.reader, session)


def _standing_reader(
    door: KafkaDoor, version: int, request: FetchRequest, caller: Caller
) -> Reader | None:
    """The connection's reader, with the positions of this request; None if it is not for that."""
    if request.session_epoch != FINAL_EPOCH or request.replica_id >= 0:
        return None
    form = (version, request.is_committed)
    if caller.standing is not None and caller.standing.form != form:
        caller.close()
    if caller.standing is None:
        caller.standing = StandingReader(door, form, door.standing_positions)
    if not caller.standing.ask(request.topics):
        caller.close()
    return caller.standing


def _new_reader(door: KafkaDoor, request: FetchRequest) -> Reader:
    """A broker that follows says which it is; clients are below zero."""
    if request.replica_id >= 0:
        return FollowerReader(door, request.replica_id, str(request.replica_epoch))
    return Reader(door)


def _is_the_same(reader: Reader, request: FetchRequest) -> bool:
    """Whether who asks is who began the session: a follower reads what others must not."""
    if not isinstance(reader, FollowerReader):
        return request.replica_id < 0
    asks = (request.replica_id, str(request.replica_epoch))
    return asks == (reader.replica, reader.incarnation)


def _update(reader: Reader, request: FetchRequest) -> None:
    follower = reader if isinstance(reader, FollowerReader) else None
    for topic, partitions in request.topics:
        for index, leader_epoch, offset, last_fetched_epoch, log_start, bytes_max in partitions:
            position = reader.position((topic, index))
            position.stand(offset, bytes_max, leader_epoch, last_fetched_epoch)
            if follower is not None:
                follower.asked(position, log_start)


class Fetch:
    """One fetch under way; `session` is the one it belongs to, if it is not the first of a session.

    A reader of its own ends with it.
    """

    __slots__ = (
        "_answered",
        "_bytes_max",
        "_door",
        "_is_waiting",
        "_min_bytes",
        "_missing",
        "_reader",
        "_request",
        "_session",
        "_timer",
        "_version",
    )

    def __init__(
        self,
        door: KafkaDoor,
        version: int,
        request: FetchRequest,
        reader: Reader,
        session: FetchSession | None,
    ) -> None:
        self._door = door
        self._version = version
        self._request = request
        self._reader = reader
        self._session = session
        self._bytes_max = min(request.max_bytes, door.broker.config.fetch_bytes_max)
        self._min_bytes = min(request.min_bytes, self._bytes_max)
        self._missing = 0
        self._is_waiting = False
        self._answered: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def collect(self) -> list[Found]:
        return self._reader.collect(self._bytes_max, everything=self._owns_reader())

    def _owns_reader(self) -> bool:
        return self._session is None and not isinstance(self._reader, StandingReader)

    def is_enough(self, found: list[Found]) -> bool:
        """Whether to answer now. That a topic is not there is no reason, unless none is."""
        size, absent = self._reader.left_out_bytes, 0
        for item in found:
            if isinstance(item.records, ColdRead) or item.diverging:
                return True
            if item.error is None:
                size += item.available
            elif not isinstance(item.position.partition, ApiError):
                return True
            else:
                absent += 1
        self._missing = self._min_bytes - size
        return self._missing <= 0 or absent == len(self._reader)

    # Waiting

    def wait(self, seconds: float) -> asyncio.Future[Any]:
        """A promise of the answer: when enough bytes have come, or when the time is up."""
        loop = asyncio.get_running_loop()
        is_follower = isinstance(self._reader, FollowerReader)
        self._answered = Unhurried(self.complete) if is_follower else loop.create_future()
        self._answered.add_done_callback(self._clean_up)
        self._is_waiting = True
        self._timer = loop.call_later(seconds, self.complete)
        self._door.waiting_fetches.add(self.complete)
        if self._session is not None:
            self._session.give_up = self._give_up
        self._reader.when_grown(self._missing, self._on_growth)
        return self._answered

    def _on_growth(self) -> None:
        """Called from within an append, which should not wait for us to look."""
        asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._answer_with(when_enough=True)

    def complete(self) -> None:
        """Answer with what there is now."""
        self._answer_with(when_enough=False)

    def _answer_with(self, *, when_enough: bool) -> None:
        if self._answered is None or self._answered.done() or not self._is_waiting:
            return
        try:
            found = self.collect()
            if when_enough and not self.is_enough(found):
                self._reader.when_grown(self._missing, self._on_growth)
                return
            self._stop_waiting()
            result = self.finish(found)
        except Exception as error:  # ours, not the event loop's
            self._answered.set_exception(error)
            return
        if isinstance(result, asyncio.Future):
            result.add_done_callback(self._deliver)
        else:
            self._answered.set_result(result)

    def _deliver(self, done: asyncio.Future[Any]) -> None:
        assert self._answered is not None
        error = None if done.cancelled() else done.exception()
        if self._answered.done():
            return
        if done.cancelled():
            self._answered.cancel()
        elif error is not None:
            self._answered.set_exception(error)
        else:
            self._answered.set_result(done.result())

    def _give_up(self, code: ErrorCode) -> None:
        """The session has been closed, or used by another request, under this one."""
        if self._answered is not None and not self._answered.done():
            self._stop_waiting()
            self._answered.set_result(encode_response(self._version, int(code), SESSIONLESS, []))

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            assert self._timer is not None
            self._is_waiting = False
            self._timer.cancel()
            self._door.waiting_fetches.discard(self.complete)
            self._reader.stop_waiting()
            if self._session is not None:
                self._session.give_up = None

    def _clean_up(self, _: asyncio.Future[Any]) -> None:
        self._stop_waiting()
        if self._owns_reader():
            self._reader.close()

    # Answering

    def finish(self, found: list[Found]) -> list[Part] | asyncio.Future[Any]:
        for item in found:
            if isinstance(item.records, ColdRead):
                if self._request.session_epoch == INITIAL_EPOCH:
                    self._reader.follow()  # what comes until the session begins is news for it
                return asyncio.ensure_future(self._finish_cold(found))
        return self._encode(found)

    async def _finish_cold(self, found: list[Found]) -> list[Part]:
        try:
            return self._encode(await warm(found, self._bytes_max))
        finally:
            if self._owns_reader():
                self._reader.close()

    def _encode(self, found: list[Found]) -> list[Part]:
        told: dict[Position, PartitionData] = {}
        inline_left = _INLINE_BYTES_IN_ALL
        for item in found:
            inline_bytes = min(inline_left, _INLINE_BYTES)
            data = _data(item, inline_bytes, by_reference=self._request.by_reference)
            if isinstance(data.records, bytes):
                inline_left -= len(data.records)
            told[item.position] = data
        reader = self._reader
        topics = (
            _by_topic(told) if not isinstance(reader, StandingReader) else self._all(reader, told)
        )
        return encode_response(
            self._version, 0, self._session_id(), topics, is_committed=self._request.is_committed
        )

    def _all(self, reader: StandingReader, told: dict[Position, PartitionData]) -> ToldTopics:
        """All that a standing reader asks for: what is new, and of the rest what was said last."""
        for position, data in told.items():
            assert isinstance(position, StandingPosition)
            position.quiet = self._quiet(data)
        return [
            (
                topic,
                [told.get(item) or item.quiet or self._peek(reader, item) for item in positions],
            )
            for topic, positions in reader.asked
        ]

    def _peek(self, reader: StandingReader, position: StandingPosition) -> PartitionData | bytes:
        """Of a partition that was not looked at, for others filled the answer, and of which we know nothing
        that still holds."""
        data = _data(reader.peek(position), 0, by_reference=False)
        position.quiet = self._quiet(data)
        return position.quiet or data

    def _quiet(self, data: PartitionData) -> bytes:
        """What to say of a partition while there is nothing new. An error is looked into each time."""
        if data.error_code:
            return b""
        return encode_quiet(self._version, data, is_committed=self._request.is_committed)

    def _session_id(self) -> int:
        """The session this fetch belongs to; if it is to begin one, that begins now."""
        if self._session is not None:
            return self._session.id
        if self._request.session_epoch != INITIAL_EPOCH:
            return SESSIONLESS
        by_id = self._version >= _TOPIC_IDS_FROM
        replica = self._request.replica_id if self._request.replica_id >= 0 else None
        self._session = self._door.fetch_sessions.open(self._reader, by_id, replica)
        return SESSIONLESS if self._session is None else self._session.id


def _by_topic(told: dict[Position, PartitionData]) -> ToldTopics:
    topics: dict[TopicKey, list[PartitionData | bytes]] = {}
    for position, data in told.items():
        topics.setdefault(position.key[0], []).append(data)
    return list(topics.items())


def _data(item: Found, inline_bytes: int, *, by_reference: bool) -> PartitionData:
    position = item.position
    partition: int = position.key[1]
    if item.error is not None:
        position.told_high_watermark = -1  # whatever it is then is news when the error is gone
        hw, start = item.high_watermark, item.log_start_offset
        return PartitionData(partition, int(item.error.code), hw, hw, start)
    records: FileSlice | FileReference | bytes | None = None
    if isinstance(item.records, FileSlice):
        try:
            records = _as_sent(item.records, inline_bytes, by_reference=by_reference)
        except (CorruptLogError, OSError):
            return PartitionData(partition, int(ErrorCode.kafka_storage_error))
    position.told_high_watermark = item.high_watermark
    position.told_log_start = item.log_start_offset
    return PartitionData(
        partition, 0, item.high_watermark, item.high_watermark, item.log_start_offset, records,
        item.diverging,
    )  # fmt: skip


def _as_sent(
    records: FileSlice, inline_bytes: int, *, by_reference: bool
) -> FileSlice | FileReference | bytes:
    """Few records as bytes, many as they are, or as where they are for who can look there."""
    if records.size <= inline_bytes:
        return records.read()
    return records.reference() if by_reference else records


API = RawApi("fetch", decode_request, answer)
