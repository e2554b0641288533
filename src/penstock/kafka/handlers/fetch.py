"""Fetch: records out, by long poll. Records leave as file ranges; only cold ones visit a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.fetching import Found, Reader, warm
from penstock.errors import ApiError, CorruptLogError, ErrorCode
from penstock.kafka.api import Answer, RawApi
from penstock.kafka.fetch_codec import (
    FetchRequest,
    Part,
    PartitionData,
    decode_request,
    encode_response,
)
from penstock.kafka.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, SESSIONLESS
from penstock.kafka.primitives import Topic as TopicKey
from penstock.log import ColdRead, FileSlice

if TYPE_CHECKING:
    from penstock.kafka.router import KafkaDoor

_TOPIC_IDS_FROM: Final = 13
_INLINE_BYTES: Final = 64 * 1024  # less than this is copied into the answer: one call sends it all


def answer(door: KafkaDoor, version: int, request: FetchRequest) -> Answer:
    try:
        fetch = _begin(door, version, request)
    except ApiError as error:
        return encode_response(version, int(error.code), SESSIONLESS, [])
    found = fetch.collect()
    missing = request.min_bytes - sum(_size(item) for item in found)
    has_error = any(item.error or item.diverging for item in found)
    if missing <= 0 or has_error or request.max_wait_ms <= 0 or not len(fetch.reader):
        return fetch.finish(found)
    return fetch.wait(door.waiting_fetches, missing, request.max_wait_ms / 1000)


def _size(item: Found) -> int:
    """Bytes found; a cold read counts for all that it may bring."""
    return item.position.bytes_max if isinstance(item.records, ColdRead) else item.size


def _begin(door: KafkaDoor, version: int, request: FetchRequest) -> Fetch:
    """The reader that this request is for: its session's, or one of its own."""
    by_id = version >= _TOPIC_IDS_FROM
    sessions = door.fetch_sessions
    bytes_max = min(request.max_bytes, door.broker.config.fetch_bytes_max)
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != SESSIONLESS:
            sessions.close(request.session_id)
        reader = Reader(door.resolve)
        _update(reader, request)
        if request.session_epoch == FINAL_EPOCH:
            return Fetch(version, reader, SESSIONLESS, bytes_max, everything=True)
        session_id = sessions.open(reader, by_id)
        if session_id != SESSIONLESS:
            reader.follow()
        return Fetch(version, reader, session_id, bytes_max, everything=True)
    session = sessions.advance(request.session_id, request.session_epoch, by_id)
    for topic, indexes in request.forgotten:
        for index in indexes:
            session.reader.remove((topic, index))
    _update(session.reader, request)
    return Fetch(version, session.reader, session.id, bytes_max, everything=False)


def _update(reader: Reader, request: FetchRequest) -> None:
    for topic, partitions in request.topics:
        for item in partitions:
            position = reader.position((topic, item.partition))
            position.offset = item.offset
            position.bytes_max = max(item.bytes_max, 0)
            position.leader_epoch = item.leader_epoch
            position.last_fetched_epoch = item.last_fetched_epoch


class Fetch:
    """One fetch under way."""

    __slots__ = ("bytes_max", "everything", "reader", "session_id", "version")

    def __init__(
        self, version: int, reader: Reader, session_id: int, bytes_max: int, *, everything: bool
    ) -> None:
        self.version = version
        self.reader = reader
        self.session_id = session_id
        self.bytes_max = bytes_max
        self.everything = everything

    def collect(self) -> list[Found]:
        return self.reader.collect(self.bytes_max, everything=self.everything)

    def wait(
        self, waiting: set[Callable[[], None]], missing: int, seconds: float
    ) -> asyncio.Future[Any]:
        """A promise of the answer: when so many bytes have come, or when the time is up.

        While it waits it stands in `waiting`, by the function that answers it at once.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()

        def complete() -> None:
            if answered.done() or complete not in waiting:
                return
            stop_waiting()
            try:
                result = self.finish(self.collect())
            except Exception as error:
                answered.set_exception(error)
                return
            if isinstance(result, asyncio.Future):
                result.add_done_callback(deliver)
            else:
                answered.set_result(result)

        def deliver(done: asyncio.Future[Any]) -> None:
            if answered.done():
                return
            error = done.exception()
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(done.result())

        def wake() -> None:
            loop.call_soon(complete)

        def stop_waiting() -> None:
            timer.cancel()
            waiting.discard(complete)
            self.reader.stop_waiting()

        def cleanup(_: asyncio.Future[Any]) -> None:
            stop_waiting()
            if self.session_id == SESSIONLESS:
                self.reader.close()

        timer = loop.call_later(seconds, complete)
        self.reader.when_grown(missing, wake)
        waiting.add(complete)
        answered.add_done_callback(cleanup)
        return answered

    def finish(self, found: list[Found]) -> list[Part] | asyncio.Future[Any]:
        for item in found:
            if isinstance(item.records, ColdRead):
                return asyncio.ensure_future(self._finish_cold(found))
        return self._encode(found)

    async def _finish_cold(self, found: list[Found]) -> list[Part]:
        return self._encode(await warm(found))

    def _encode(self, found: list[Found]) -> list[Part]:
        topics: dict[TopicKey, list[PartitionData]] = {}
        for item in found:
            topic, partition = item.position.key
            topics.setdefault(topic, []).append(_data(partition, item))
        return encode_response(self.version, 0, self.session_id, list(topics.items()))


def _data(partition: int, item: Found) -> PartitionData:
    if item.error is not None:
        return PartitionData(partition, int(item.error.code))
    position = item.position
    position.told_high_watermark = item.high_watermark
    position.told_log_start = item.log_start_offset
    records: FileSlice | bytes | None = None
    if isinstance(item.records, FileSlice):
        records = item.records
        if records.size <= _INLINE_BYTES:
            try:
                records = records.read()
            except (CorruptLogError, OSError):
                return PartitionData(partition, int(ErrorCode.kafka_storage_error))
    return PartitionData(
        partition, 0, item.high_watermark, item.high_watermark, item.log_start_offset, records,
        item.diverging,
    )  # fmt: skip


API = RawApi("fetch", decode_request, answer)
