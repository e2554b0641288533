"""Watches of the etcd store: a reader's end, and the pump that fills it over any number of connections.

The pump always knows the next revision that the reader has not been given. It passes events on only by
whole revisions, so wherever the connection breaks, it resumes there: what the last stream sent in part
is sent again, and what was already passed on is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

import grpc
import grpc.aio

from penstock.metadata.errors import Compacted, StoreClosed, StoreUnavailable
from penstock.metadata.etcd_client import EtcdClient
from penstock.metadata.etcd_endpoint import Metadata, Stream, Unreachable
from penstock.metadata.etcd_messages import EVENT_DELETE, WATCH, Message
from penstock.metadata.store import Event
from penstock.metadata.unread import Unread

__all__ = ["EtcdWatch"]

logger = logging.getLogger(__name__)

# When so many events wait for their reader the stream is left to wait, too. etcd then keeps the place,
# and the history from there on until it is compacted.
UNREAD_EVENTS_MAX: Final = 10_000
_RESUME_PAUSE_FIRST_S: Final = 0.02
_RESUME_PAUSE_MAX_S: Final = 0.5
_DENIALS_MAX: Final = 2  # the first may come of an old token


class EtcdWatch:
    """A `Watch` on etcd. It ends when it is closed, when its store is, or when nobody holds it."""

    def __init__(
        self,
        client: EtcdClient,
        key: bytes,
        range_end: bytes,
        from_revision: int,
        decode_key: Callable[[bytes], str],
    ) -> None:
        self._unread = _BoundedUnread()
        pump = _Pump(client, key, range_end, from_revision, decode_key, self._unread)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(pump.run())

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> Event:
        return await self._unread.take()

    async def aclose(self) -> None:
        self._unread.close()
        await self._stop()

    async def end(self) -> None:
        """The store is closed: the reader gets what is unread, then `StoreClosed`."""
        self._unread.fail(StoreClosed())
        await self._stop()

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def __del__(self) -> None:
        # The pump does not know the watch, only what is unread: it must be told that nobody reads.
        if not self._task.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed, the pump with it
                self._loop.call_soon_threadsafe(self._task.cancel)


class _Ended(Exception):
    """etcd will not go on with this watch."""


class _BoundedUnread(Unread):
    """The same with a bound, which whoever fills it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._room = asyncio.Event()
        self._room.set()

    async def take(self) -> Event:
        event = await super().take()
        if len(self) < UNREAD_EVENTS_MAX:
            self._room.set()
        return event

    def put(self, events: Iterable[Event]) -> None:
        super().put(events)
        if len(self) >= UNREAD_EVENTS_MAX:
            self._room.clear()

    async def room(self) -> None:
        """Wait until there is room for more."""
        await self._room.wait()


class _Pump:
    def __init__(
        self,
        client: EtcdClient,
        key: bytes,
        range_end: bytes,
        from_revision: int,
        decode_key: Callable[[bytes], str],
        unread: _BoundedUnread,
    ) -> None:
        self._client = client
        self._key = key
        self._range_end = range_end
        self._decode_key = decode_key
        self._unread = unread
        self._next = from_revision  # every event before it was passed on, none from it on
        self._partial: list[Event] = []  # of one revision, of which more may come
        self._denials = 0
        self._failures = 0  # in a row, without an answer between

    async def run(self) -> None:
        """Stream until the watch cannot go on; the reader then finds out why."""
        try:
            while True:
                try:
                    await self._stream_once()
                except (Unreachable, StoreUnavailable, grpc.aio.AioRpcError) as error:
                    await self._pause(error)
        except Compacted as error:
            self._unread.fail(error)
        except _Ended as error:
            self._unread.fail(StoreUnavailable(str(error)))
        except Exception as error:
            logger.exception("a watch failed")
            self._unread.fail(StoreUnavailable(f"the watch failed: {error!r}"))

    async def _pause(self, error: Exception) -> None:
        if self._failures == 0:
            logger.warning(
                "a watch lost its connection and resumes",
                extra={
                    "prefix": self._key.decode(errors="replace"),
                    "reason": str(error) or repr(error),
                },
            )
        pause_s = min(_RESUME_PAUSE_MAX_S, _RESUME_PAUSE_FIRST_S * 2 ** min(self._failures, 10))
        self._failures += 1
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))

    async def _stream_once(self) -> None:
        """One stream, until it breaks: returns or raises what `run` resumes after."""
        client = self._client
        endpoint = client.current
        timeout_s = client.config.request_timeout_s
        self._partial.clear()
        stream: Stream | None = None
        try:
            metadata = await client.prepare(endpoint, timeout_s)
            stream = endpoint.stream(WATCH, metadata)
            async with asyncio.timeout(timeout_s):
                await self._create(stream, metadata)
            while (answer := await stream.read()) is not grpc.aio.EOF:
                self._accept(answer)
                await self._unread.room()
            raise Unreachable("etcd ended the stream")
        except (Unreachable, grpc.aio.AioRpcError, TimeoutError) as error:
            client.leave(endpoint)
            if isinstance(error, TimeoutError):
                raise Unreachable(f"{endpoint.address} did not answer") from None
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if stream is None or not stream.cancelled() or (task is not None and task.cancelling()):
                raise
            raise Unreachable(f"{endpoint.address} was left") from None
        finally:
            if stream is not None:
                endpoint.end_stream(stream)

    async def _create(self, stream: Stream, metadata: Metadata) -> None:
        """Begin the watch on a new stream.

        It begins one revision early. A compaction at C leaves a watch from C possible, yet forgets a
        delete that happened at C itself; asked for C - 1, etcd says that the history is gone.
        """
        request = WATCH.request()
        create = request.create_request
        create.key, create.range_end = self._key, self._range_end
        create.start_revision = max(1, self._next - 1)
        create.progress_notify = True
        create.fragment = True
        with contextlib.suppress(asyncio.InvalidStateError):  # the stream failed: reading tells why
            await stream.write(request)
        answer: Message = await stream.read()
        if answer is grpc.aio.EOF:
            raise Unreachable("etcd ended the stream")
        if answer.canceled and not answer.compact_revision:
            self._denials += 1
            if self._denials < _DENIALS_MAX:
                self._client.forget_token(metadata)
                raise Unreachable(answer.cancel_reason)
        self._accept(answer)
        self._denials = 0

    def _accept(self, answer: Message) -> None:
        self._failures = 0
        if answer.canceled:
            if answer.compact_revision:
                raise Compacted(answer.compact_revision + 1)
            raise _Ended(f"etcd ended the watch: {answer.cancel_reason}")
        for event in answer.events:
            revision = event.kv.mod_revision
            if self._partial and self._partial[-1].mod_revision != revision:
                self._pass_on()
            if revision < self._next:
                continue
            self._partial.append(
                Event(
                    key=self._decode_key(event.kv.key),
                    value=None if event.type == EVENT_DELETE else event.kv.value,
                    mod_revision=revision,
                    last_in_revision=False,
                )
            )
        if answer.fragment:
            return
        if self._partial:
            self._pass_on()
        elif not answer.events and not answer.created:
            # Nothing happened under our prefix up to here: a resumed watch need not ask for it.
            self._next = max(self._next, answer.header.revision + 1)

    def _pass_on(self) -> None:
        """Give the reader the one revision that is complete now."""
        last = self._partial[-1]
        self._partial[-1] = Event(
            key=last.key, value=last.value, mod_revision=last.mod_revision, last_in_revision=True
        )
        self._unread.put(self._partial)
        self._next = last.mod_revision + 1
        self._partial.clear()
