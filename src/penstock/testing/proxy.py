"""A network that can be hurt: TCP proxies that hold back, lose, delay and cut, on purpose.

    async with proxy(target) as network:       # in your event loop
        network.silent = True                  # nothing passes either way; connections stay
        network.cut()                          # every connection breaks

    with proxies() as network:                 # in a thread of its own, for synchronous tests
        front = network.add(Proxy("127.0.0.1:9092"))
        network.do(front.cut)

What passes can be looked at and changed by a `Filter`, one for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class Cut(Exception):
    """Raised by a filter: pass on `last`, then break the connection."""

    def __init__(self, last: bytes = b"") -> None:
        super().__init__()
        self.last = last


class Filter(Protocol):
    """What a connection's bytes go through. A method may hold bytes back and give them later."""

    def from_client(self, data: bytes) -> bytes: ...

    def from_server(self, data: bytes) -> bytes: ...


class Proxy:
    """Passes bytes on to `target` (host:port), as long as it is let. Belongs to one event loop.

    `silent`: bytes from either side are held back, as if the network had lost them for now; new
        connections are accepted and nothing more.
    `silenced`: the same for clients that connect from one of these addresses.
    `swallow_answers`: what the server says next is dropped and the connection is cut.
    `answer_delay_s`: what the server says is passed on later.
    """

    def __init__(
        self,
        target: str = "",
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        new_filter: Callable[[], Filter] | None = None,
    ) -> None:
        self.target = target  # may be set before the first client comes
        self.swallow_answers = False
        self.answer_delay_s = 0.0
        self.connections = 0  # ever made
        self._listen = listen
        self._new_filter = new_filter
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, str] = {}  # with the address of the client
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent = False
        self._silenced: frozenset[str] = frozenset()
        self._flow_changed = asyncio.Event()  # replaced by another whenever it is set

    @property
    def address(self) -> str:
        return f"{self._listen[0]}:{self._listen[1]}"

    @property
    def silent(self) -> bool:
        return self._silent

    @silent.setter
    def silent(self, value: bool) -> None:
        self._silent = value
        self._wake()

    @property
    def silenced(self) -> frozenset[str]:
        return self._silenced

    @silenced.setter
    def silenced(self, hosts: frozenset[str]) -> None:
        self._silenced = hosts
        self._wake()

    async def start(self) -> None:
        """Listen, on the same port in all of its lives."""
        self._server = await asyncio.start_server(self._serve, *self._listen)
        self._listen = (self._listen[0], self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Refuse connections and cut those that are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, hosts: frozenset[str] | None = None) -> None:
        """Break every connection, or those of clients at `hosts`, both ways, with nothing said before."""
        for writer, host in list(self._open.items()):
            if hosts is None or host in hosts:
                _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        host = str(writer.get_extra_info("peername", ("",))[0])
        self._open[writer] = host
        far_writer: asyncio.StreamWriter | None = None
        try:
            await self._until_flowing(host)
            target, _, port = self.target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(target, int(port))
            self._open[far_writer] = host
            bytes_filter = self._new_filter() if self._new_filter is not None else _AllPasses()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, far_writer, host, bytes_filter))
                group.create_task(self._answers(far_reader, writer, host, bytes_filter))
        except* (OSError, Cut, asyncio.CancelledError):
            pass  # cancelled by `stop`: a server's callback that ends so is logged as a failure
        finally:
            for end in filter(None, (writer, far_writer)):
                self._open.pop(end, None)
                _reset(end)

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        bytes_filter: Filter,
    ) -> None:
        while data := await reader.read(65536):
            await self._until_flowing(host)
            await _pass_on(writer, bytes_filter.from_client, data)
        raise Cut

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        bytes_filter: Filter,
    ) -> None:
        while data := await reader.read(65536):
            await self._until_flowing(host)
            if self.swallow_answers:
                raise Cut
            if self.answer_delay_s:
                await asyncio.sleep(self.answer_delay_s)
            await _pass_on(writer, bytes_filter.from_server, data)
        raise Cut

    async def _until_flowing(self, host: str) -> None:
        while self._silent or host in self._silenced:
            await self._flow_changed.wait()

    def _wake(self) -> None:
        before, self._flow_changed = self._flow_changed, asyncio.Event()
        before.set()


class Proxies:
    """An event loop in a thread, and the proxies that live in it. Methods wait for what they ask."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxies: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def add(self, new: Proxy) -> Proxy:
        """Start it. Change it by `do` only."""
        asyncio.run_coroutine_threadsafe(new.start(), self._loop).result()
        self._proxies.append(new)
        return new

    def do(self, action: Callable[[], _Result]) -> _Result:
        """Call `action` in the loop, as one step: nothing passes meanwhile."""

        async def act() -> _Result:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    def close(self) -> None:
        for running in self._proxies:
            asyncio.run_coroutine_threadsafe(running.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.asynccontextmanager
async def proxy(target: str) -> AsyncIterator[Proxy]:
    """A proxy in the running event loop."""
    running = Proxy(target)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


@contextlib.contextmanager
def proxies() -> Iterator[Proxies]:
    """Proxies in a thread, gone with the block."""
    running = Proxies()
    try:
        yield running
    finally:
        running.close()


class _AllPasses:
    def from_client(self, data: bytes) -> bytes:
        return data

    def from_server(self, data: bytes) -> bytes:
        return data


async def _pass_on(
    writer: asyncio.StreamWriter, change: Callable[[bytes], bytes], data: bytes
) -> None:
    try:
        writer.write(change(data))
    except Cut as cut:
        writer.write(cut.last)
        with contextlib.suppress(OSError):
            await writer.drain()
        raise
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
